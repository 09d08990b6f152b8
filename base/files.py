"""Write files and folders atomically: a reader finds the old version or the whole new one."""

import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


@contextmanager
def atomic(path: Path) -> Iterator[Path]:
    """Yield a temporary path beside `path`. When the block ends, sync the file or folder there and rename it to `path`.

    If the block raises, `path` stays as it was. A killed process leaves `.NAME.*.tmp`; see `remove_unfinished`.

    Args:
        path: a file, which is replaced, or a folder, which must be empty or missing.

    Raises:
        OSError: the file or folder could not be written or renamed.
    """
    temporary = path.with_name(f".{path.name}.{os.urandom(4).hex()}.tmp")
    try:
        yield temporary
        for written in (temporary, *temporary.rglob("*")):
            if written.is_dir():
                sync_directory(written)
            else:
                with open(written, "r+b") as file:
                    os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException as error:
        _remove(temporary)
        if isinstance(error, OSError) and error.errno and error.filename is None:
            error.filename = str(path)  # the error of a failed write names no file
        raise
    sync_directory(path.parent)


def write_text(path: Path, text: str) -> None:
    """Write a small text file; see `atomic`."""
    with atomic(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def sync_directory(directory: Path) -> None:
    """Make a rename in `directory` survive a power cut; Windows has no such call."""
    if os.name == "posix":
        handle = os.open(directory, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def remove_unfinished(directory: Path, name: str = "*", *, seconds: float = 0) -> None:
    """Remove the temporary files and folders that killed processes left in `directory`.

    Args:
        directory: the folder.
        name: name of the unfinished file or folder.
        seconds: keep what changed less than this long ago: a running process may still be writing it.
    """
    for temporary in directory.glob(f".{name}.*.tmp"):
        with suppress(FileNotFoundError):  # another process has removed it
            if not seconds or time.time() - temporary.stat().st_mtime > seconds:
                _remove(temporary)


def _remove(path: Path) -> None:
    """Remove a file or a folder. Ignore errors: the next `remove_unfinished` tries again."""
    shutil.rmtree(path, ignore_errors=True)
    with suppress(OSError):
        path.unlink()


def link(source: str | Path, target: str | Path) -> None:
    """Make `target` a hard link to `source`, atomically; copy `source` if the file system has no hard links."""
    target = Path(target)
    if target.exists() and os.path.samefile(source, target):
        return  # renaming one hard link to another does nothing and would leave the temporary one
    with atomic(target) as temporary:
        try:
            os.link(source, temporary)
        except OSError:
            shutil.copyfile(source, temporary)
