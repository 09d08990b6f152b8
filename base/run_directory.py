"""Find, name and compare run directories, `runs/<name>/`. Imports nothing heavy: errors come before torch is loaded."""

import hashlib
import json
import math
import os
import secrets
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from base import processes
from base.errors import InputError, one_line

RUNS = Path("runs")
DEBUG = "debug-"  # scratch runs: replaced by the next run of the same name, skipped when no run is named


def new_name(settings: str) -> str:
    """Make up a name, the same in all processes: from the time, or from the job's id and a hash of `settings`.

    A restarted job finds each of its runs by `settings`, the configuration as text.
    """
    if "CHARGPT_RUN" not in os.environ:
        identity = processes.identity()
        if identity is None and processes.launched() not in (None, (1, 1)):
            raise InputError("name=null: processes on several machines need one directory; give name=…")
        if identity is None:
            name = f"{time.strftime('%Y-%m-%d_%H-%M-%S')}_{secrets.token_hex(3)}"
        else:
            name = f"{identity}_{hashlib.sha256(settings.encode()).hexdigest()[:6]}"
        os.environ["CHARGPT_RUN"] = name  # inherited by the ranks that Lightning starts
    return os.environ["CHARGPT_RUN"]


def forget_name() -> None:
    """Let the next run of this process make up a new name."""
    os.environ.pop("CHARGPT_RUN", None)


def model_of(run: Path, name: str) -> Path:
    """Return the path of a run's model `best` or `last`."""
    return run / "checkpoints" / f"{name}.safetensors"


def summary_of(run: Path) -> dict[str, Any]:
    """Read a run's summary.json; empty if it is missing or unreadable."""
    try:
        summary = json.loads((run / "summary.json").read_text("utf-8"))
        return summary if isinstance(summary, dict) else {}
    except (OSError, ValueError, RecursionError):
        return {}


def all_runs() -> list[Path]:
    """List the runs with a checkpoint or a model, including trials of sweeps, the most recently written first."""

    def written(run: Path) -> int:
        times = [0]
        for file in (file for kind in ("*.ckpt", "*.safetensors") for file in (run / "checkpoints").glob(kind)):
            with suppress(OSError):  # the run that is training there has just removed it
                times.append(file.stat().st_mtime_ns)
        return max(times)

    found = [checkpoints.parent for depth in ("*", "*/*") for checkpoints in RUNS.glob(f"{depth}/checkpoints")]
    return sorted(filter(written, found), key=written, reverse=True)


def unfinished() -> list[Path]:
    """List the runs that have not finished, without scratch runs, the most recently written first."""
    over = ("finished", "pruned")
    return [run for run in all_runs() if summary_of(run).get("status") not in over and not is_debug(run.name)]


def is_debug(name: str) -> bool:
    """Whether a name is that of a scratch run."""
    return name.startswith(DEBUG)


def to_resume(resume: str, name: str | None) -> Path | None:
    """Find the run directory that `resume` means.

    Args:
        resume: `auto` with a name, a run directory or a checkpoint file.
        name: the value of `name=`.

    Returns:
        The directory; None if `resume=auto` with a name starts a fresh run.

    Raises:
        InputError: there is no such run, or it has no checkpoint.
    """
    if resume == "auto":
        run = RUNS / str(name)
        _check_place(run, str(name))
        return run if any((run / "checkpoints").glob("*.ckpt")) else None
    if name is not None:
        raise InputError(f"name={name}: cannot be given with resume={resume}, which continues in that run's directory")
    path = Path(resume)
    try:
        found = path.exists()
        whole = path if path.name and path.parent.name else path.resolve()
    except (OSError, RuntimeError) as error:  # a name that is too long, a link to itself
        raise InputError(f"resume={resume[:80]}: {one_line(getattr(error, 'strerror', None) or error)}") from None
    run = whole.parent.parent if path.suffix == ".ckpt" and not path.is_dir() else whole
    if not found:
        raise InputError(f"resume={resume}: no such run or checkpoint{_known_runs()}")
    if is_sweep(run):
        raise InputError(f"resume={resume}: is a sweep; repeat its command, or resume={run}/TRIAL for one trial")
    if not (run / "config.yaml").exists():
        raise InputError(f"resume={resume}: is not a run that can continue (without {run / 'config.yaml'})")
    if not list((run / "checkpoints").glob("*.ckpt")):
        inside = run.resolve().is_relative_to(RUNS.resolve())
        fresh = f"; name={name_of(run)} resume=auto starts it afresh" if inside else ""
        raise InputError(f"resume={resume}: has no checkpoint to continue from yet{fresh}")
    return run


def check_free(name: str) -> None:
    """Raise an `InputError` if a run of that name exists, unless it is a scratch run, or cannot be made."""
    _check_place(RUNS / name, name)
    if is_debug(name) and not (RUNS / name).is_symlink() and (RUNS / name).is_dir():
        return
    if os.path.lexists(RUNS / name):
        raise InputError(f"name={name}: {RUNS / name} exists; resume=auto continues it, another name starts afresh")


def _check_place(run: Path, name: str) -> None:
    if is_sweep(run):
        raise InputError(f"name={name}: is a sweep; repeat its command, or name={name}/TRIAL for one trial")
    if "/" in name and (run.parent / "config.yaml").exists():
        raise InputError(f"name={name}: {run.parent} is a run and cannot contain another run")


def is_sweep(directory: Path) -> bool:
    """Whether a directory holds the trials of a sweep."""
    return (directory / "sweep.csv").exists()


def name_of(run: Path) -> str:
    """Return the run's value of `name=`: SWEEP/TRIAL for a trial."""
    whole, inside = run.resolve(), RUNS.resolve()
    return whole.relative_to(inside).as_posix() if inside in whole.parents[:2] else whole.name


def rank_of(run: Path) -> float:
    """Return the validation bits per character of the best checkpoint; infinite if there is none.

    Runs are compared by it and not by their loss, which depends on the tokenizer.
    """
    bits = summary_of(run).get("val_bpc")
    return bits if isinstance(bits, float) and not math.isnan(bits) else math.inf


def find_model(argument: str | None) -> Path:
    """Find a model file: the best of a run, and of a sweep that of its best trial.

    Args:
        argument: a model file, a training checkpoint beside one, the directory or name of a run or a sweep, or None
            for the newest run.

    Raises:
        InputError: there is none.
    """
    if argument is None:
        runs = [run for run in all_runs() if not is_debug(run.name)]
        if not runs:
            raise InputError(
                f"no run in {RUNS}/ yet; make one with `{processes.here('python')} train.py`, or name a model file"
            )
        return _best(runs[0])
    path = Path(argument)
    try:
        if path.suffix == ".ckpt" and path.is_file():
            last = path.stem == "last" or path.stem.startswith("step-")
            return _first_model(path, [path.with_name("last.safetensors" if last else "best.safetensors")])
        if path.is_file():
            return path
        found = [run for run in (path, RUNS / argument) if run.is_dir()]
    except OSError as error:  # such as a name that is too long
        raise InputError(f"{argument[:80]}: {error.strerror}") from None
    if found:
        return _best(found[0])
    raise InputError(f"{argument}: no such model or run{_known_runs()}")


def _best(run: Path) -> Path:
    if is_sweep(run):
        trial = min((path.parent for path in run.glob("*/summary.json")), key=rank_of, default=run)
        if rank_of(trial) == math.inf:
            raise InputError(f"{run}: no trial of this sweep has finished yet; name one of them")
        run = trial
    folder = run / "checkpoints" if (run / "checkpoints").is_dir() else run
    return _first_model(run, [folder / "best.safetensors", folder / "last.safetensors"])


def _first_model(path: Path, files: list[Path]) -> Path:
    for file in files:
        if file.is_file():
            return file
    raise InputError(f"{path}: has no model file ({' or '.join(map(str, files))})")


def _known_runs() -> str:
    names = [str(run) for run in all_runs()[:3]]
    return f"; the newest are {', '.join(names)}" if names else ""
