"""Run directories: `runs/<name>/` with config.yaml, checkpoints/, event files, train.log and summary.json.

Imports nothing heavy: a wrong name is answered before torch is loaded.
"""

import json
import os
import secrets
import time
from pathlib import Path
from typing import Any

RUNS = Path("runs")


class RunError(ValueError):
    """A run that cannot be made or found, in one line."""


def rank() -> int:
    """This process' number among all that fit together, known before any of them has talked to another."""
    for variable in ("RANK", "SLURM_PROCID", "LOCAL_RANK"):
        if variable in os.environ:
            return int(os.environ[variable])
    return 0


def new_name() -> str:
    """Make up a name from the time and a short unique id; every process of a job gets the same one."""
    job = os.environ.get("TORCHELASTIC_RUN_ID", "none")
    job = os.environ.get("SLURM_JOB_ID", "none") if job == "none" else job
    if "CHARGPT_RUN" not in os.environ:
        if job == "none" and int(os.environ.get("WORLD_SIZE", "1")) > 1:
            raise RunError("name=null: several processes need one directory; give name=…")
        unique = secrets.token_hex(2) if job == "none" else job
        clock = time.strftime("%Y-%m-%d_%H-%M-%S_") if job == "none" else ""
        os.environ["CHARGPT_RUN"] = f"{clock}{unique}"  # inherited by the processes that Lightning starts
    return os.environ["CHARGPT_RUN"]


def forget_name() -> None:
    """Let the next run of this process make up a name of its own."""
    os.environ.pop("CHARGPT_RUN", None)


def checkpoint_of(run: Path, name: str = "last") -> Path:
    """Where a run keeps the checkpoint `best` or `last`."""
    return run / "checkpoints" / f"{name}.ckpt"


def summary_of(run: Path) -> dict[str, Any]:
    """The run's summary.json; empty when there is none yet or it cannot be read."""
    try:
        return json.loads((run / "summary.json").read_text("utf-8"))
    except (OSError, ValueError):
        return {}


def write_text(path: Path, text: str) -> None:
    """Write a small file so that it is always either the old or the whole new one."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    temporary.write_text(text, encoding="utf-8")
    os.replace(temporary, path)


def all_runs() -> list[Path]:
    """Every run with a checkpoint, the most recently written one first."""
    runs = [run for run in RUNS.glob("*") if checkpoint_of(run).exists()]
    return sorted(runs, key=lambda run: checkpoint_of(run).stat().st_mtime_ns, reverse=True)


def to_resume(resume: str, name: str | None) -> Path | None:
    """Find the run that `resume` means.

    Args:
        resume: `auto`, a run directory or a checkpoint file.
        name: the name given beside it.

    Returns:
        The run's directory, or None for a fresh start, which only `resume=auto` with a name allows.

    Raises:
        RunError: there is no such run, or it has nothing to go on from.
    """
    if resume == "auto" and name is not None:
        return RUNS / name if checkpoint_of(RUNS / name).exists() else None
    if name is not None:
        raise RunError(f"name={name}: has no meaning with resume={resume}, which goes on in that run's own directory")
    if resume == "auto":
        unfinished = [run for run in all_runs() if summary_of(run).get("status") != "finished"]
        if not unfinished:
            raise RunError(f"resume=auto: no unfinished run in {RUNS}/")
        return unfinished[0]
    path = Path(resume)
    whole = path if path.name and path.parent.name else path.resolve()
    run = whole.parent.parent if path.suffix == ".ckpt" else whole
    if not path.exists():
        raise RunError(f"resume={resume}: no such run or checkpoint{_known_runs()}")
    for needed in (run / "config.yaml", checkpoint_of(run)):
        if not needed.exists():
            raise RunError(f"resume={resume}: is no run that can go on (without {needed})")
    if path.suffix == ".ckpt" and not path.samefile(checkpoint_of(run)):
        raise RunError(f"resume={resume}: a run goes on from its last checkpoint, resume={checkpoint_of(run)}")
    return run


def check_free(name: str) -> None:
    """Raise `RunError` when a run of that name exists."""
    if (RUNS / name).exists():
        raise RunError(f"name={name}: {RUNS / name} exists; resume=auto goes on with it, another name starts afresh")


def find_checkpoint(argument: str | None) -> Path:
    """Find the checkpoint that a person means.

    Args:
        argument: a checkpoint, a run directory, the name of a run, or None for the newest run.

    Returns:
        The checkpoint; of a run, its best.

    Raises:
        RunError: there is none.
    """
    if argument is None:
        runs = all_runs()
        if not runs:
            raise RunError(f"no run in {RUNS}/ yet; make one with `python train.py`, or name a checkpoint")
        return _best(runs[0])
    path = Path(argument)
    if path.is_file():
        return path
    for run in (path, RUNS / argument):
        if run.is_dir():
            return _best(run)
    raise RunError(f"{argument}: no such checkpoint or run{_known_runs()}")


def _best(run: Path) -> Path:
    for name in ("best", "last"):
        if checkpoint_of(run, name).exists():
            return checkpoint_of(run, name)
    raise RunError(f"{run}: holds no checkpoint yet")


def _known_runs() -> str:
    names = [str(run) for run in all_runs()[:3]]
    return f"; the newest are {', '.join(names)}" if names else ""
