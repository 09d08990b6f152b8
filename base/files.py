"""Write files and folders atomically: a reader finds the old version or the whole new one."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


@contextmanager
def atomic(path: Path) -> Iterator[Path]:
    """Yield a temporary path at which to write a file or a folder; rename it to `path` when the block ends.

    So nobody sees a half-written file. The file or folder is flushed to disk first. A file at `path` is replaced; a
    folder at `path` must be empty. If the block raises, `path` stays as it was. A killed process leaves `.NAME.*.tmp`;
    see `remove_unfinished`.
    """
    temporary = path.with_name(f".{path.name}.{os.urandom(4).hex()}.tmp")
    try:
        yield temporary
        for written in (temporary, *temporary.rglob("*")):
            sync(written)
        os.replace(temporary, path)
    except BaseException as error:
        _remove(temporary)
        if isinstance(error, OSError) and error.errno and temporary.name in str(error.filename or temporary):
            error.filename = str(path)  # a failed write names no file, or the temporary one
        raise
    sync(path.parent)  # makes the rename survive a power cut


def write_text(path: Path, text: str) -> None:
    """Write a small text file; see `atomic`."""
    with atomic(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def sync(path: Path) -> None:
    """Flush a file or a folder to disk. Windows can flush only files, and only those that are open for writing."""
    is_folder = path.is_dir()
    if is_folder and os.name != "posix":
        return
    handle = os.open(path, os.O_RDONLY if is_folder else os.O_RDWR)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def remove_unfinished(directory: Path, name: str = "*") -> None:
    """Remove the temporary files and folders that killed processes left in `directory` while they wrote `name`."""
    for temporary in directory.glob(f".{name}.*.tmp"):
        _remove(temporary)


def _remove(path: Path) -> None:
    """Remove a file or a folder. Ignore errors: the next `remove_unfinished` tries again."""
    shutil.rmtree(path, ignore_errors=True)
    with suppress(OSError):
        path.unlink()
