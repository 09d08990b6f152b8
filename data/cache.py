"""The cache of encoded texts and downloads: where it is, and how one of several processes makes what it holds."""

import os
from collections.abc import Callable
from pathlib import Path

from filelock import FileLock

from base.errors import InputError, describe_os_error
from base.files import atomic, remove_unfinished
from base.progress import Progress
from data.config import DataConfig


def cache_dir(config: DataConfig) -> Path:
    """Return the folder in which encoded texts and downloads are stored.

    The folder is `data.cache_dir` or, if this option is null, `chargpt` in $XDG_CACHE_HOME or else
    in ~/.cache.
    """
    user_cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    path = Path(config.cache_dir or Path(user_cache, "chargpt"))
    try:
        return path.expanduser()
    except RuntimeError:  # no HOME and no entry of the user in the list of users
        raise InputError(
            f"data.cache_dir={path}: there is no such home directory; name another folder"
        ) from None


def make_once(
    path: Path,
    make: Callable[[Path, Progress], None],
    what: str,
    size: int = 0,
    is_whole: Callable[[Path], bool] = Path.exists,
) -> None:
    """Have `make` write a file or folder of the cache unless it is there: of several processes, one does, others wait.

    `what` and `size`, in bytes, are for the progress bar.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # The mode lets a group share the lock, whatever the umask of its first user.
        lock = FileLock(path.parent / ".lock", mode=0o664)
        with Progress(what, size, "B") as progress, lock:
            if not is_whole(path):
                remove_unfinished(path.parent)
                with atomic(path) as unfinished:
                    make(unfinished, progress)
    except OSError as error:
        reason = describe_os_error(error, path)
        raise InputError(reason, advice="data.cache_dir= sets another folder") from error
