"""Lock run directories: one process trains in a run at a time."""

from pathlib import Path
from typing import Any

from base import processes
from base.errors import InputError

_held: dict[Path, Any] = {}  # this process' run directory and its lock


def lock(run: Path) -> None:
    """Lock a run directory until `release` or the end of this process.

    Raises:
        InputError: another process is training there.
        OSError: the directory cannot be written.
    """
    if run in _held:
        return
    acquired = _acquire(run, ".lock")
    if acquired is None:
        raise InputError(f"{run}: another process is training there; wait for it or stop it first")
    _held[run] = acquired


def release() -> None:
    """Unlock the run directory; later child processes are not ranks of this run."""
    processes.disown()
    while _held:
        _held.popitem()[1].release()


def claim(run: Path) -> Any | None:
    """Keep other processes from starting this run until the returned lock is released; None if one has claimed it."""
    return _acquire(run, ".claim")


def _acquire(run: Path, name: str) -> Any | None:
    from filelock import FileLock, Timeout

    file_lock = FileLock(run / name, blocking=False)
    try:
        file_lock.acquire()
    except Timeout:
        return None
    return file_lock


def in_use(run: Path) -> bool:
    """Whether another process is training there."""
    acquired = _acquire(run, ".lock")
    if acquired is not None:
        acquired.release()
    return acquired is None
