"""Arrays on this disk up to a bound, made when they are first asked for, and shared by the processes that use a folder.

`7.bin` holds the tokens of an array and their crc32, and takes that name when it is whole and on the disk. Whoever
makes it holds `7.lock`, and sets the bytes that making it may take aside with `7.room`, a file of that size without
contents. What a process that dies leaves, the next one removes.
"""

import os
import struct
import time
import zlib
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

import numpy as np
from filelock import FileLock, Timeout

from base.errors import printable
from base.files import atomic, remove_unfinished
from base.progress import Progress
from data.corpus import DataError

try:
    import fcntl
except ImportError:  # Windows, which removes no file that is mapped
    fcntl = None  # type: ignore[assignment]

GB = 10**9
CRC = struct.Struct("<I")
PATIENCE_SECONDS = 60.0  # seconds to wait for others to let go of what they use


class Cache:
    """The arrays below a folder, which take at most `most` bytes; the least recently used is the first to go."""

    def __init__(self, root: Path, most: float) -> None:
        self.root, self.most = root, most

    def open(
        self, path: Path, dtype: type, length: int, make: Callable[[Path], Iterable[np.ndarray]], more: int
    ) -> np.ndarray:
        """Open an array, which stays where it is as long as anyone has it.

        Args:
            path: where it is kept, below the folder, without a suffix.
            dtype: of its items.
            length: how many there are.
            make: yields the items in pieces, and may keep what it makes them from in the file it is given.
            more: bytes that this file may take.

        Returns:
            (length,) `dtype`, mapped into memory, read-only.

        Raises:
            DataError: what others are using leaves too little room.
            OSError: the folder cannot be written.
        """
        path.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{path}.lock"):  # of several processes, one makes it
            array = self._open(path, dtype, length)
            if array is None:
                with Progress(f"fetching shard {path.name}"):
                    self._make(path, dtype, length, make, more)
                array = self._open(path, dtype, length)
            if array is None:
                raise DataError(f"{printable(path)}.bin: was damaged as soon as it was written")
            return array

    def _open(self, path: Path, dtype: type, length: int) -> np.ndarray | None:
        """Map what is there, or return None where it is missing or damaged."""
        size = length * np.dtype(dtype).itemsize
        try:
            with open(f"{path}.bin", "rb") as file:
                if fcntl:
                    fcntl.flock(file, fcntl.LOCK_SH)  # lasts as long as the mapping, which has the file open, too
                os.utime(file.fileno())
                array: np.ndarray = np.memmap(file, np.uint8, mode="r")
        except (FileNotFoundError, ValueError):  # nothing can be mapped of an empty file
            return None
        if len(array) != size + CRC.size or CRC.unpack(array[size:].tobytes()) != (zlib.crc32(array[:size].data),):
            return None
        return array[:size].view(dtype)

    def _make(
        self, path: Path, dtype: type, length: int, make: Callable[[Path], Iterable[np.ndarray]], more: int
    ) -> None:
        whole, room = Path(f"{path}.bin"), Path(f"{path}.room")
        _remove_leftovers(room)
        whole.unlink(missing_ok=True)  # it is damaged
        self._make_room(room, length * np.dtype(dtype).itemsize + CRC.size + more)
        try:
            checksum = 0
            with atomic(whole) as temporary, open(temporary, "wb") as file:
                for piece in make(room.with_suffix(".copy")):
                    file.write(piece.data)
                    checksum = zlib.crc32(piece.data, checksum)
                file.write(CRC.pack(checksum))
        finally:
            _remove_leftovers(room)

    def _make_room(self, room: Path, size: int) -> None:
        """Set `size` bytes aside, for which as many arrays as need be are removed."""
        until = time.monotonic() + PATIENCE_SECONDS
        while True:
            with FileLock(self.root / ".lock"):
                self._remove_what_the_dead_left()
                kept = sorted(
                    (file.stat().st_mtime_ns, file.stat().st_size, file) for file in self.root.glob("*/*.bin")
                )
                used = sum(each for _, each, _ in kept)
                used += sum(file.stat().st_size for file in self.root.glob("*/*.room"))
                for _, each, file in kept:
                    if used + size <= self.most:
                        break
                    if _is_free(file):
                        file.unlink()
                        used -= each
                if used + size <= self.most:
                    room.touch()
                    os.truncate(room, size)
                    return
            if time.monotonic() > until:
                raise DataError(
                    f"{printable(self.root)}: {used / GB:.3g} of the {self.most / GB:.3g} GB for shards are in use and "
                    f"{size / GB:.3g} are needed; raise data.cache_gb or name another place with data.cache_dir="
                )
            time.sleep(0.2)

    def _remove_what_the_dead_left(self) -> None:
        for room in self.root.glob("*/*.room"):
            with suppress(Timeout), FileLock(room.with_suffix(".lock"), blocking=False):
                _remove_leftovers(room)


def _remove_leftovers(room: Path) -> None:
    """Remove what making an array has taken; whoever calls holds its lock."""
    remove_unfinished(room.parent, f"{room.stem}.bin")
    room.with_suffix(".copy").unlink(missing_ok=True)
    room.unlink(missing_ok=True)


def _is_free(file: Path) -> bool:
    """Whether nobody has mapped a file."""
    if fcntl is None:
        return True
    with open(file, "rb") as opened, suppress(BlockingIOError):
        fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    return False
