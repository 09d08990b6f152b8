"""Write files and folders so that a reader finds either the old one or the whole new one."""

import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


@contextmanager
def atomic(path: Path) -> Iterator[Path]:
    """Yield a temporary path beside `path`; when the block ends, it takes the name `path` in one step.

    The block writes a file or makes a folder there; its contents reach the disk before it takes the name. If the block
    raises, nothing is left behind and what was at `path` stays. A process that is killed leaves `.NAME.*.tmp`, which
    `remove_unfinished` deletes.

    Args:
        path: a file, which is replaced, or a folder, which must be empty or missing.

    Raises:
        OSError: it could not be written or renamed.
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
    except BaseException:
        _remove(temporary)
        raise
    sync_directory(path.parent)


def write_text(path: Path, text: str) -> None:
    """Write a small text file; see `atomic`."""
    with atomic(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def sync_directory(directory: Path) -> None:
    """Make a rename in `directory` survive a power cut; Windows does so by itself and cannot be asked."""
    if os.name == "posix":
        handle = os.open(directory, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def remove_unfinished(directory: Path, name: str = "*", *, seconds: float = 0) -> None:
    """Remove what killed processes had not finished writing in `directory`.

    Args:
        directory: where they were writing.
        name: of the file or folder, which no other process may be writing.
        seconds: spare what is younger, which may belong to a process that is still at work.
    """
    for temporary in directory.glob(f".{name}.*.tmp"):
        with suppress(FileNotFoundError):  # another process was quicker
            if not seconds or time.time() - temporary.stat().st_mtime > seconds:
                _remove(temporary)


def _remove(path: Path) -> None:
    """Remove a file or a folder as far as that is possible; what is left is tried again by `remove_unfinished`."""
    shutil.rmtree(path, ignore_errors=True)
    with suppress(OSError):
        path.unlink()


def link(source: str | Path, target: str | Path) -> None:
    """Give `source` the further name `target`, at once; a copy where the file system has no hard links."""
    target = Path(target)
    if target.exists() and os.path.samefile(source, target):
        return  # a rename between two names of one file would do nothing and leave both
    with atomic(target) as temporary:
        try:
            os.link(source, temporary)
        except OSError:
            shutil.copyfile(source, temporary)
