"""Locks of run directories: one process trains in a run at a time."""

from pathlib import Path
from typing import Any

from base import processes
from base.run_directory import RunError

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
    """Let the next process in; what this one starts from now on has no part in the run."""
    processes.disown()
    while _held:
        _held.popitem()[1].release()


def claim(run: Path) -> Any | None:
    """Keep other processes from starting this run, until the lock is released; None when one has it in hand."""
    return _lock(run, ".claim")


def _lock(run: Path, name: str = ".lock") -> Any | None:
    from filelock import FileLock, Timeout

    try:
        lock = FileLock(run / name, blocking=False)
        lock.acquire()
        return lock
    except Timeout:
        return None


def in_use(run: Path) -> bool:
    """Whether another process is training there."""
    lock = _lock(run)
    if lock is not None:
        lock.release()
    return lock is None
