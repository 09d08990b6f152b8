"""Cache arrays on disk with a size limit. All processes that use the folder share the cache.

Array `7` is the file `7.bin`: its items, then their crc32. The file is written atomically. While a process makes the
array, it locks `7.lock`, reserves space with `7.room`, a sparse file of that size, and may write a temporary file
`7.copy`. If it is killed, the next process that needs space removes these files.
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
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

GB = 10**9
CRC = struct.Struct("<I")
WAIT_SECONDS = 60.0  # how long to wait until other processes release the arrays that they use


class Cache:
    """The arrays below a folder, together at most `max_bytes`; the least recently used is deleted first."""

    def __init__(self, root: Path, max_bytes: float) -> None:
        self.root, self.max_bytes = root, max_bytes

    def open(
        self, path: Path, dtype: type, length: int, make: Callable[[Path], Iterable[np.ndarray]], scratch_bytes: int
    ) -> np.ndarray:
        """Map the array of `path`.bin, (length,), read-only. Its file is not deleted while the array is in use.

        If the array is not cached, `make` yields its items in pieces. The argument of `make` is the path of a temporary
        file, which may take `scratch_bytes`. If arrays in use leave too little space, raise `DataError`.
        """
        path.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{path}.lock"):  # of several processes, one makes the array and the others wait
            array = self._open(path, dtype, length)
            if array is None:
                with Progress(f"fetching shard {path.name}"):
                    self._make(path, dtype, length, make, scratch_bytes)
                array = self._open(path, dtype, length)
            if array is None:
                raise DataError(f"{printable(path)}.bin: was damaged as soon as it was written; check the disk")
            return array

    def _open(self, path: Path, dtype: type, length: int) -> np.ndarray | None:
        """Map an array, or return None if it is missing or damaged."""
        size = length * np.dtype(dtype).itemsize
        try:
            with open(f"{path}.bin", "rb") as file:
                if fcntl:
                    fcntl.flock(file, fcntl.LOCK_SH)  # the mapping keeps the lock after the file is closed
                os.utime(file.fileno())  # `_make_room` deletes the files with the oldest modification times
                array: np.ndarray = np.memmap(file, np.uint8, mode="r")
        except (FileNotFoundError, ValueError):  # an empty file cannot be mapped
            return None
        if len(array) != size + CRC.size or CRC.unpack(array[size:].tobytes()) != (zlib.crc32(array[:size].data),):
            return None
        return array[:size].view(dtype)

    def _make(
        self, path: Path, dtype: type, length: int, make: Callable[[Path], Iterable[np.ndarray]], scratch_bytes: int
    ) -> None:
        whole, room = Path(f"{path}.bin"), Path(f"{path}.room")
        _remove_leftovers(room)
        whole.unlink(missing_ok=True)  # a damaged one
        self._make_room(room, length * np.dtype(dtype).itemsize + CRC.size + scratch_bytes)
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
        """Reserve `size` bytes. Delete arrays that are not in use, the least recently used first, until they fit."""
        until = time.monotonic() + WAIT_SECONDS
        while True:
            with FileLock(self.root / ".lock"):
                self._remove_dead()
                arrays = sorted(
                    (file.stat().st_mtime_ns, file.stat().st_size, file) for file in self.root.glob("*/*.bin")
                )
                used = sum(array_size for _, array_size, _ in arrays)
                used += sum(file.stat().st_size for file in self.root.glob("*/*.room"))
                for _, array_size, file in arrays:
                    if used + size <= self.max_bytes:
                        break
                    if _is_free(file):
                        with suppress(PermissionError):  # Windows does not delete a mapped file
                            file.unlink()
                            used -= array_size
                if used + size <= self.max_bytes:
                    room.touch()
                    os.truncate(room, size)
                    return
            if time.monotonic() > until:
                in_use = f"{used / GB:.3g} of the {self.max_bytes / GB:.3g} GB for shards are in use"
                raise DataError(
                    f"{printable(self.root)}: {in_use} and {size / GB:.3g} are needed; "
                    "raise data.cache_gb or set another folder with data.cache_dir="
                )
            time.sleep(0.2)

    def _remove_dead(self) -> None:
        """Remove what dead processes left of arrays they were making. A living process holds the array's lock."""
        for room in self.root.glob("*/*.room"):
            with suppress(Timeout), FileLock(room.with_suffix(".lock"), blocking=False):
                _remove_leftovers(room)


def _remove_leftovers(room: Path) -> None:
    """Remove the temporary files of an array; the caller holds its lock."""
    remove_unfinished(room.parent, f"{room.stem}.bin")
    room.with_suffix(".copy").unlink(missing_ok=True)
    room.unlink(missing_ok=True)


def _is_free(file: Path) -> bool:
    """Return whether no process has mapped a file; on Windows always True."""
    if fcntl is None:
        return True
    with open(file, "rb") as opened, suppress(BlockingIOError):
        fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    return False
