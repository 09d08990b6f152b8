"""Lock the directories of runs, sweeps and searches: one process works in each at a time."""

from contextlib import suppress
from pathlib import Path
from typing import Any

from base.errors import InputError

_held: dict[Path, Any] = {}  # the lock of each directory that this process has locked


def lock(run: Path) -> None:
    """Lock the directory of a run, a sweep or a search until `release` or the end of this process."""
    from filelock import FileLock, Timeout

    if run in _held:
        return
    try:
        # `in_use` of another process, such as `train.py --runs`, may hold the lock for a moment: wait for that.
        _held[run] = FileLock(run / ".lock", timeout=1).acquire().lock
    except Timeout:
        raise InputError(f"{run}: another process is training there; wait for it or stop it first") from None


def release() -> None:
    """Unlock all directories that this process has locked."""
    while _held:
        _held.popitem()[1].release()


def in_use(run: Path) -> bool:
    """Whether another process has locked the directory of `run`."""
    from filelock import FileLock, Timeout

    with suppress(Timeout), FileLock(run / ".lock", timeout=0.1):  # not 0: two processes may try at once
        return False
    return True
