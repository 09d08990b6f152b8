"""Write files and folders atomically: a reader sees either the old version or the complete new version."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


@contextmanager
def atomic(path: Path) -> Iterator[Path]:
    """Context manager that yields a temporary path and renames the file or folder written there to `path` at the end.

    The file or folder is flushed to disk before it is renamed, so nobody sees a half-written one. A file at `path` is
    replaced, but a folder at `path` must be empty. If the block raises an exception, `path` stays unchanged. A killed
    process leaves a file `.NAME.*.tmp`, which `remove_unfinished` removes.
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
    """Write `text` to the file `path` in UTF-8, atomically (see `atomic`)."""
    with atomic(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def sync(path: Path) -> None:
    """Flush a file or a folder to disk.

    On Windows, a folder is left alone, because only files can be flushed there.
    """
    is_folder = path.is_dir()
    if is_folder and os.name != "posix":
        return
    handle = os.open(path, os.O_RDONLY if is_folder else os.O_RDWR)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def remove_unfinished(directory: Path, name: str = "*") -> None:
    """Remove temporary files and folders from `directory` that killed processes left there while writing `name`."""
    for temporary in directory.glob(f".{name}.*.tmp"):
        _remove(temporary)


def _remove(path: Path) -> None:
    """Remove a file or a folder. Errors are ignored, because the next call of `remove_unfinished` tries again."""
    shutil.rmtree(path, ignore_errors=True)
    with suppress(OSError):
        path.unlink()
