"""Lock the directories of runs, sweeps and searches, so that only one process at a time works in a directory."""

import os
import sys
from contextlib import ExitStack
from pathlib import Path

from base.errors import InputError

_held: dict[Path, ExitStack] = {}  # by directory, the locks that this process holds


def lock(run: Path) -> None:
    """Lock the directory `run` until `release` or the end of this process, or raise an `InputError` if it is in use."""
    if run in _held:
        return
    # `in_use` in another process, such as `train.py --runs`, may hold the lock for a moment: wait
    # until it is free.
    held = _acquire(run, seconds=1)
    if held is None:
        raise InputError(f"{run}: another process is training there; wait for it or stop it first")
    _held[run] = held


def release() -> None:
    """Unlock all directories that this process has locked."""
    while _held:
        _held.popitem()[1].close()


def in_use(run: Path) -> bool:
    """Return whether another process has locked the run directory `run`."""
    held = _acquire(run, seconds=0.1)  # not 0: another `in_use` may hold the lock for a moment
    if held:
        held.close()
    return held is None


def _acquire(run: Path, seconds: float) -> ExitStack | None:
    """Lock the directory `run` and the file `.lock` in it; closing the result unlocks both, None says in use."""
    from filelock import FileLock, Timeout  # 40 ms

    with ExitStack() as stack:
        try:
            # the mode lets a group share a run, whatever the umask of who began it
            stack.enter_context(FileLock(run / ".lock", timeout=seconds, mode=0o664))
        except Timeout:
            return None
        if sys.platform != "win32":
            import fcntl

            directory = os.open(run, os.O_RDONLY)  # this lock remains if someone removes the file
            stack.callback(os.close, directory)
            try:
                fcntl.flock(directory, fcntl.LOCK_EX | fcntl.LOCK_NB)
                stack.callback(fcntl.flock, directory, fcntl.LOCK_UN)
            except BlockingIOError:
                return None
            except OSError:  # such as on NFS, which locks only what is open for writing: the lock of the file is enough
                pass
        return stack.pop_all()
