"""Run directories: `runs/<name>/` with config.yaml, checkpoints/, event files, train.log and summary.json.

Imports nothing heavy: a wrong name is answered before torch is loaded.
"""

import json
import os
import secrets
import subprocess
import time
from pathlib import Path
from typing import Any

from conf.fields import one_line

RUNS = Path("runs")


class RunError(ValueError):
    """A run that cannot be made or found, in one line."""


def rank() -> int:
    """This process' number among all that fit together, known before any of them has talked to another."""
    for variable in ("RANK", "SLURM_PROCID", "LOCAL_RANK"):
        if variable in os.environ:
            return int(os.environ[variable])
    return 0


def started_by_another_rank() -> bool:
    """Whether rank 0 has started this process itself, and not torchrun or SLURM, which look after theirs."""
    return os.environ.get("LOCAL_RANK", "0") != "0" and not {"TORCHELASTIC_RUN_ID", "SLURM_JOB_ID"} & set(os.environ)


def new_name() -> str:
    """Make up a name from the time and a short unique id; every process of a job gets the same one."""
    job = os.environ.get("TORCHELASTIC_RUN_ID", "none")
    job = os.environ.get("SLURM_JOB_ID", "none") if job == "none" else job
    if "CHARGPT_RUN" not in os.environ:
        if job == "none" and int(os.environ.get("WORLD_SIZE", "1")) > 1:
            raise RunError("name=null: several processes need one directory; give name=…")
        unique = secrets.token_hex(3) if job == "none" else job
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
    try:
        with open(temporary, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


_held: dict[Path, Any] = {}  # the run that this process works in, and its lock


def hold(run: Path) -> None:
    """Keep other processes out of a run until `let_go`, or until this process has ended, however it ends.

    Raises:
        RunError: another process is at work there.
        OSError: the directory cannot be written.
    """
    if run in _held:
        return
    lock = _lock(run)
    if lock is None:
        raise RunError(f"{run}: another process is training there; wait for it or stop it first")
    _held[run] = lock


def let_go() -> None:
    """Let the next process in."""
    while _held:
        _held.popitem()[1].release()


def _lock(run: Path) -> Any | None:
    from filelock import FileLock, Timeout

    try:
        lock = FileLock(run / ".lock", blocking=False)
        lock.acquire()
        return lock
    except Timeout:
        return None


def all_runs() -> list[Path]:
    """Every run with a checkpoint, the most recently written one first."""

    def written(run: Path) -> int:
        return max((file.stat().st_mtime_ns for file in (run / "checkpoints").glob("*.ckpt")), default=0)

    return sorted(filter(written, RUNS.glob("*")), key=written, reverse=True)


def to_resume(resume: str, name: str | None) -> tuple[Path | None, list[str]]:
    """Find the run that `resume` means.

    Args:
        resume: `auto`, a run directory or a checkpoint file.
        name: the name given beside it.

    Returns:
        The run's directory, or None for a fresh start, which only `resume=auto` with a name allows; and a line for
        each newer run that was passed over.

    Raises:
        RunError: there is no such run, or it has nothing to go on from.
    """
    if resume == "auto" and name is not None:
        return (RUNS / name if RUNS / name in all_runs() else None), []
    if name is not None:
        raise RunError(f"name={name}: has no meaning with resume={resume}, which goes on in that run's own directory")
    if resume == "auto":
        passed: list[str] = []
        for run in all_runs():
            if summary_of(run).get("status") == "finished":
                continue
            lock = _lock(run)
            if lock is not None:
                lock.release()
                return run, passed
            passed.append(f"{run}: another process is training there")
        raise RunError(f"resume=auto: no unfinished run in {RUNS}/{'; '.join(['', *passed])}")
    path = Path(resume)
    whole = path if path.name and path.parent.name else path.resolve()
    run = whole.parent.parent if path.suffix == ".ckpt" else whole
    if not path.exists():
        raise RunError(f"resume={resume}: no such run or checkpoint{_known_runs()}")
    if not (run / "config.yaml").exists():
        raise RunError(f"resume={resume}: is no run that can go on (without {run / 'config.yaml'})")
    if not list((run / "checkpoints").glob("*.ckpt")):
        fresh = f"; name={run.name} resume=auto starts it afresh" if run.parent.resolve() == RUNS.resolve() else ""
        raise RunError(f"resume={resume}: has no checkpoint to go on from yet{fresh}")
    return run, []


def restarted() -> bool:
    """Whether SLURM has started this job before and requeued it."""
    return os.environ.get("SLURM_RESTART_COUNT", "0") not in ("", "0")


def requeue() -> str:
    """Ask SLURM to start this job again, and say in one line whether it will."""
    job = os.environ["SLURM_JOB_ID"]
    if "SLURM_ARRAY_JOB_ID" in os.environ:
        job = f"{os.environ['SLURM_ARRAY_JOB_ID']}_{os.environ['SLURM_ARRAY_TASK_ID']}"
    try:
        subprocess.run(["scontrol", "requeue", job], check=True, capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.SubprocessError) as error:
        reason = one_line(getattr(error, "stderr", None) or error)
        return f"SLURM job {job} could not be requeued: {reason}"
    return f"SLURM job {job} is requeued and will go on with this run"


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
    steps = sorted((run / "checkpoints").glob("step-*.ckpt"))  # of a run that was killed before it gave the names
    if steps:
        return steps[-1]
    raise RunError(f"{run}: holds no checkpoint yet")


def _known_runs() -> str:
    names = [str(run) for run in all_runs()[:3]]
    return f"; the newest are {', '.join(names)}" if names else ""
