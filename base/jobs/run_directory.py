"""Find, name and check run directories, `runs/<name>/`. Does not load torch, so that errors appear at once."""

import errno
import hashlib
import itertools
import json
import math
import os
import secrets
import shlex
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from base import processes, ranks
from base.errors import InputError, one_line

RUNS = Path(processes.from_here("runs"))


def new_name(settings: str) -> str:
    """Return a generated name for a run: the time and a random suffix.

    In a job of SLURM or torchrun, the name is the job's id and a hash of `settings`, the configuration as text. So all
    processes of the job generate the same name, and a restarted job finds the directories of its runs.
    """
    identity = ranks.identity()
    if identity is not None:
        return f"{identity}_{hashlib.sha256(settings.encode()).hexdigest()[:6]}"
    if ranks.launched() not in (None, (1, 1)):
        raise InputError("name=null: processes on several machines need one directory; give name=…")
    return f"{time.strftime('%Y-%m-%d_%H-%M-%S')}_{secrets.token_hex(3)}"


def model_of(run: Path, name: str) -> Path:
    """Return the path of the model file called `name`, which is `best` or `last`, in the run directory `run`."""
    return run / "checkpoints" / f"{name}.safetensors"


def summary_of(run: Path) -> dict[str, Any]:
    """Return the content of a run's summary.json, or {} if the file is missing or unreadable."""
    path = run / "summary.json"
    try:
        summary = json.loads(path.read_text("utf-8")) if path.is_file() else {}
        return summary if isinstance(summary, dict) else {}
    except (OSError, ValueError, RecursionError):
        return {}


def all_runs() -> list[Path]:
    """Return the directories of the runs that have a checkpoint or a model, the newest run first."""
    return newest_first("checkpoints/*.ckpt", "checkpoints/*.safetensors")


def unfinished() -> list[Path]:
    """Return the directories of the runs that have not finished, except debug runs, the newest run first."""
    runs = [run for run in newest_first("config.yaml", "checkpoints/*.ckpt") if not is_debug(run.name)]
    return [run for run in runs if summary_of(run).get("status") != "finished"]


def newest_first(*patterns: str) -> list[Path]:
    """Return the directories of the runs that contain a file matching one of `patterns`, the newest run first."""
    if RUNS.is_dir():
        os.listdir(RUNS)  # raises if it cannot be read, which `glob` does not
    begun: dict[Path, float] = {}
    for depth, pattern in itertools.product(("*", "*/*"), patterns):
        for file in RUNS.glob(f"{depth}/{pattern}"):
            run = file.parents[pattern.count("/")]
            with suppress(OSError):  # the running process has just removed the file
                begun[run] = max(begun.get(run, 0.0), file.stat().st_mtime)
    for run in begun:
        with suppress(KeyError, TypeError, ValueError):
            begun[run] = datetime.fromisoformat(summary_of(run)["begun"]).timestamp()
    return sorted(begun, key=begun.__getitem__, reverse=True)


def lacks_checkpoints(run: Path) -> bool:
    """Return whether a run still has its best model but has lost all checkpoints, so that it cannot be resumed.

    Training from step 0 would overwrite the best model. If a run was killed after its first model and before its first
    checkpoint, the result is False, because training from step 0 loses nothing.
    """
    begun = summary_of(run).get("status") in ("running", "failed")
    return model_of(run, "best").exists() and not begun and not any((run / "checkpoints").glob("*.ckpt"))


def is_debug(name: str) -> bool:
    """Return whether `name` is the name of a debug run (`debug=fast` names its run `debug-fast`).

    A debug run is replaced by the next debug run with the same name. Commands that use the newest run ignore debug
    runs.
    """
    return name.startswith("debug-")


def to_resume(resume: str, name: str | None) -> Path | None:
    """Return the directory of the run that `resume=` and `name=` ask to continue, or None if a new run is to begin.

    If `resume` is `auto`, the result is the directory of the run `name`, or None if the run has not begun. Otherwise
    `resume` is the directory or name of a run, or a checkpoint file of the run, and `name` must be None.
    """
    if resume == "auto":
        run = RUNS / str(name)
        _check_place(run, str(name))
        _check_checkpoints(run, f"name={name}")
        if (run / "config.yaml").exists() or any((run / "checkpoints").glob("*.ckpt")):
            return run
        if (run / "summary.json").exists():
            raise InputError(f"name={name}: {run} has lost its config.yaml; use another name")
        return None
    if name is not None:
        raise InputError(f"name={name}: cannot be combined with resume={resume}, which continues in its own directory")
    try:
        path = named_path(resume)
        found = path.exists()
        whole = path if path.name and path.parent.name else path.resolve()  # `.` and `last.ckpt` name no parents
    except (OSError, RuntimeError) as error:  # a name that is too long, a link to itself
        raise InputError(f"resume={resume}: {one_line(error)}") from None
    run = whole.parent.parent if path.suffix == ".ckpt" and not path.is_dir() else whole
    if not found:
        where = f"nor a run in {RUNS}/{_known_runs()}"
        raise InputError(f"resume={resume}: no such checkpoint, {where}")
    if is_sweep(run):
        raise InputError(f"resume={resume}: is a sweep; repeat its command, or resume={run}/TRIAL for one trial")
    if not (run / "config.yaml").exists():
        raise InputError(f"resume={resume}: is not a run that can continue: {run / 'config.yaml'} is missing")
    _check_checkpoints(run, f"resume={resume}")
    return run


def named_path(resume: str) -> Path:
    """Return the path of the run or checkpoint file that `resume`, the value of `resume=`, names."""
    return _named(resume, lambda path: path.is_file() if path.suffix == ".ckpt" else (path / "config.yaml").exists())


def _named(name: str, fits: Callable[[Path], bool]) -> Path:
    """Return the path that `name` means: `name` itself, or `runs/<name>`.

    `fits` says whether a path is what the caller looks for, such as a model. Of the two paths, the one that fits is
    returned. If neither path fits, the result is `runs/<name>` if that exists, else `name`.
    """
    here, run = Path(name), RUNS / name
    if name.startswith(("./", "../")) or not run.exists() or (here.exists() and here.samefile(run)):
        return here
    if fits(here) and fits(run):
        raise InputError(f"{name}: could be ./{name} or the run {run}; write the one that you mean")
    return here if fits(here) else run


def check_writable() -> None:
    """Raise a `PermissionError` if no run can be created in the working directory."""
    if not os.access(RUNS if RUNS.exists() else ".", os.W_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(RUNS))


def check_free(name: str) -> None:
    """Raise an `InputError` if a new run cannot be called `name`, for example because another run has this name."""
    run = RUNS / name
    _check_place(run, name)
    if not os.path.lexists(run):
        return
    if run.is_dir() and not run.is_symlink():
        # A process that was killed before it wrote config.yaml has left only these files.
        left_over = all(path.name in (".lock", "train.log") or path.suffix == ".tmp" for path in run.iterdir())
        if left_over or is_debug(name):
            return
    if (run / "config.yaml").exists():
        summary, found, continues = summary_of(run), "exists", f"{shlex.quote(f'name={name}')} resume=auto"
        if summary.get("status") == "finished":
            found = "is finished"
            continues = f"{shlex.quote(f'resume={run}')} trainer.max_steps={2 * (summary.get('steps') or 1)}"
        raise InputError(f"name={name}: {run} {found}; {continues} continues it, another name starts afresh")
    raise InputError(f"name={name}: {run} exists and is not a run; use another name")


def _check_checkpoints(run: Path, setting: str) -> None:
    """Raise an `InputError` if `run` has lost its checkpoints, so that it cannot be resumed."""
    if lacks_checkpoints(run):
        start = shlex.quote(f"init_from={run}")
        raise InputError(f"{setting}: has a model but no checkpoint; {start} starts another run from its model")


def _check_place(run: Path, name: str) -> None:
    """Raise an `InputError` if `run`, the directory of the run `name`, is a sweep or lies inside another run."""
    if is_sweep(run):
        raise InputError(f"name={name}: is a sweep; repeat its command, or name={name}/TRIAL for one trial")
    if "/" in name and (run.parent / "config.yaml").exists():
        raise InputError(f"name={name}: {run.parent} is a run and cannot contain another run")


def is_sweep(directory: Path) -> bool:
    """Return whether a directory contains the trials of a sweep."""
    return (directory / "sweep.csv").exists()


def matching(pattern: str) -> list[Path]:
    """Return the directories of the runs that match a pattern such as `abl-*`, the newest run first."""
    runs = newest_first("config.yaml")
    return [run for run in runs if any(fnmatchcase(name_of(run), each) for each in (pattern, f"{pattern}/*"))]


def sweep_of(argument: str) -> Path | None:
    """Return the directory of the sweep that `argument` names, or None if `argument` is not a sweep."""
    return next((each for each in (Path(argument), RUNS / argument) if is_sweep(each)), None)


def trials_of(argument: str) -> list[Path]:
    """Return the directories of the runs of a sweep, or of the runs that match a pattern, sorted by path."""
    if sweep := sweep_of(argument):
        trials = [file.parent for file in sweep.glob("*/summary.json")]
    else:
        trials = [] if Path(argument).exists() or (RUNS / argument).exists() else matching(argument)
    return sorted(trial for trial in trials if val_bpc_of(trial) < math.inf)


def name_of(run: Path) -> str:
    """Return the name of a run, as `name=` sets it, or SWEEP/TRIAL for a trial of a sweep."""
    whole, inside = run.resolve(), RUNS.resolve()
    return whole.relative_to(inside).as_posix() if inside in whole.parents[:2] else whole.name


def val_bpc_of(run: Path) -> float:
    """Return the validation bits per character of a run's best checkpoint, or infinity if they are not known."""
    bits = summary_of(run).get("val_bpc")
    return bits if isinstance(bits, float) and not math.isnan(bits) else math.inf


def find_model(argument: str | None) -> Path:
    """Return the path of the model file that `argument` means.

    `argument` is a model file, a training checkpoint with a model file beside it, a run or a sweep. A run means its
    best model, and a sweep means the best model of its best trial. If `argument` is None, the newest run is used.
    """
    if argument is None:
        runs = [run for run in all_runs() if not is_debug(run.name)]
        if not runs:
            start = processes.command("python", "train.py")
            raise InputError(f"no run in {RUNS}/ yet; make one with `{start}`, or name a model file")
        return _best(runs[0])
    try:
        path = _named(argument, _has_model)
        if path.suffix == ".ckpt" and path.is_file():
            return _first_model(path, [path.with_name(f"{name}.safetensors") for name in ("last", "best")])
        if path.is_file():
            return path
        found = path.is_dir()
    except OSError as error:  # such as a name that is too long
        raise InputError(f"{argument}: {error.strerror}") from None
    if found:
        return _best(path)
    raise InputError(f"{argument}: no such model, nor a run in {RUNS}/{_known_runs()}")


def _has_model(path: Path) -> bool:
    if path.is_file():
        return path.suffix in (".safetensors", ".ckpt")
    return is_sweep(path) or any(file.is_file() for file in _models_in(path))


def _models_in(folder: Path) -> list[Path]:
    folder = folder / "checkpoints" if (folder / "checkpoints").is_dir() else folder
    return [folder / "best.safetensors", folder / "last.safetensors"]


def _best(run: Path) -> Path:
    if is_sweep(run):
        trial = min((path.parent for path in run.glob("*/summary.json")), key=val_bpc_of, default=run)
        if val_bpc_of(trial) == math.inf:
            raise InputError(f"{run}: no trial of this sweep has finished yet; name one of its trials")
        run = trial
    return _first_model(run, _models_in(run))


def _first_model(path: Path, files: list[Path]) -> Path:
    found = next((file for file in files if file.is_file()), None)
    if found is None:
        begun = (path / "checkpoints/last.ckpt").exists()
        command = processes.command("python", "train.py", f"resume={path}")
        way = f"; it has not been validated yet: {command} continues it" if begun else ""
        raise InputError(f"{path}: has no model file ({' or '.join(map(str, files))}){way}")
    return found


def _known_runs() -> str:
    names = [str(run) for run in all_runs()[:3]]
    return f"; the newest are {', '.join(names)}" if names else ""
