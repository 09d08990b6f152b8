"""Write files and folders atomically: a reader sees either the old version or the complete new version."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


@contextmanager
def atomic(path: Path) -> Iterator[Path]:
    """Yield a temporary path, then flush the file or folder written there to disk and rename it to `path`.

    A file at `path` is replaced, but a folder must be empty. A killed process leaves `.NAME.*.tmp`
    (see `remove_unfinished`).
    """
    temporary = path.with_name(f".{path.name}.{os.urandom(4).hex()}.tmp")
    try:
        yield temporary
        for written in (temporary, *temporary.rglob("*")):
            sync(written)
        os.replace(temporary, path)
    except BaseException as error:
        _remove(temporary)
        if (
            isinstance(error, OSError)
            and error.errno
            and temporary.name in str(error.filename or temporary)
        ):
            error.filename = str(path)  # a failed write names no file, or the temporary one
        raise
    sync(path.parent)  # makes the rename survive a power cut


def write_text(path: Path, text: str) -> None:
    """Write `text` to the file `path` in UTF-8, atomically (see `atomic`)."""
    with atomic(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def sync(path: Path) -> None:
    """Flush a file or, except on Windows, a folder to disk."""
    is_folder = path.is_dir()
    if is_folder and os.name != "posix":
        return
    mode = os.O_RDONLY if is_folder else os.O_RDWR
    handle = os.open(path, mode)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def remove_unfinished(folder: Path, name: str = "*") -> None:
    """Remove what killed processes left in `folder` while writing `name`, which may be a glob."""
    for path in folder.glob(f".{name}.*.tmp"):
        _remove(path)


def _remove(path: Path) -> None:
    # Errors are ignored: the next `remove_unfinished` tries again.
    shutil.rmtree(path, ignore_errors=True)
    with suppress(OSError):
        path.unlink()
