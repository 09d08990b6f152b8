"""Write files and folders so that a reader finds either the old one or the whole new one."""

import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
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
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        yield temporary
        for file in (temporary, *temporary.rglob("*")):
            if file.is_file():
                with open(file, "r+b") as written:
                    os.fsync(written.fileno())
        os.replace(temporary, path)
    finally:
        if temporary.is_dir():
            shutil.rmtree(temporary)
        else:
            temporary.unlink(missing_ok=True)
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


def remove_unfinished(directory: Path) -> None:
    """Remove what killed processes had not finished writing in `directory`; nobody else may be writing there."""
    for temporary in directory.glob(".*.tmp"):
        if temporary.is_dir():
            shutil.rmtree(temporary)
        else:
            temporary.unlink(missing_ok=True)
