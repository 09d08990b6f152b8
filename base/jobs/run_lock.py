"""Lock the directories of runs, sweeps and searches, so that only one process at a time works in a directory."""

import os
import sys
from contextlib import ExitStack
from pathlib import Path

from base.errors import InputError

_held: dict[Path, ExitStack] = {}  # by directory, the locks that this process holds


def lock(run: Path) -> None:
    """Lock `run`, the directory of a run, a sweep or a search, until `release` is called or this process ends."""
    from filelock import Timeout

    if run in _held:
        return
    try:
        # `in_use` in another process, such as `train.py --runs`, may hold the lock for a moment: wait until it is free.
        _held[run] = _acquire(run, seconds=1)
    except Timeout:
        raise InputError(f"{run}: another process is training there; wait for it or stop it first") from None


def release() -> None:
    """Unlock all directories that this process has locked."""
    while _held:
        _held.popitem()[1].close()


def in_use(run: Path) -> bool:
    """Return whether another process has locked the run directory `run`."""
    from filelock import Timeout

    try:
        _acquire(run, seconds=0.1).close()  # not 0: another `in_use` may hold the lock for a moment
    except Timeout:
        return True
    return False


def _acquire(run: Path, seconds: float) -> ExitStack:
    """Lock the directory `run` and the file `.lock` in it, and return an `ExitStack` that unlocks both when closed.

    The lock on the directory remains even if someone removes the file. `seconds` is how long to wait for the locks.
    """
    from filelock import FileLock, Timeout

    with ExitStack() as stack:
        stack.enter_context(FileLock(run / ".lock", timeout=seconds))
        if sys.platform != "win32":
            import fcntl

            directory = os.open(run, os.O_RDONLY)
            stack.callback(os.close, directory)
            try:
                fcntl.flock(directory, fcntl.LOCK_EX | fcntl.LOCK_NB)
                stack.callback(fcntl.flock, directory, fcntl.LOCK_UN)
            except BlockingIOError:
                raise Timeout(str(run)) from None
            except OSError:  # such as on NFS, which locks only what is open for writing: the lock of the file is enough
                pass
        return stack.pop_all()
