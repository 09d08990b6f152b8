"""Lock the directories of runs, sweeps and searches: one process works in each at a time."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from base import processes
from base.errors import InputError

_held: dict[Path, Any] = {}  # the lock of each directory that this process has locked


def lock(run: Path) -> None:
    """Lock the directory of a run, a sweep or a search until `release` or the end of this process."""
    if run in _held:
        return
    acquired = _acquire(run)
    if acquired is None:
        raise InputError(f"{run}: another process is training there; wait for it or stop it first")
    _held[run] = acquired


def release() -> None:
    """Unlock all directories that this process has locked, and unset CHARGPT_PARENT."""
    processes.unset_parent()
    while _held:
        _held.popitem()[1].release()


@contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Hold the `lock` of a directory for a block."""
    lock(directory)
    try:
        yield
    finally:
        release()


def _acquire(run: Path) -> Any | None:
    from filelock import FileLock, Timeout

    with suppress(Timeout):
        (file_lock := FileLock(run / ".lock", blocking=False)).acquire()
        return file_lock
    return None


def in_use(run: Path) -> bool:
    """Whether another process has locked the directory of `run`."""
    if acquired := _acquire(run):
        acquired.release()
    return acquired is None
