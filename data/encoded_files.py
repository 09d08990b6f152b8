"""Encoded texts on this disk: written atomically, checked when they are read."""

import json
import shutil
import zlib
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path

import numpy as np

from base.errors import printable
from base.files import atomic, remove_unfinished
from base.progress import Progress
from data.corpus import DataError
from data.split import SPLITS
from data.tokenizer import ByteTokenizer, Tokenizer, tokenizer_from

FORMAT = 1  # part of the fingerprint: raise it when the same text would be split or encoded differently
DAY = 86_400  # seconds


def cannot_keep(folder: Path, error: OSError) -> DataError:
    """What to tell of a cache that cannot be written."""
    return DataError(
        f"{printable(folder)}: cannot keep the encoded text there: {error.strerror or error}; "
        "another place is set by data.cache_dir="
    )


def keep(folder: Path, tokenizer: Tokenizer, encoded: Iterable[tuple[str, np.ndarray]]) -> None:
    """Write the tokens of the splits into `folder`, all or nothing.

    Raises:
        OSError: the cache cannot be written.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    remove_unfinished(folder.parent, seconds=DAY)
    lengths, counts, checksums = (dict.fromkeys(SPLITS, 0) for _ in range(3))
    try:
        with atomic(folder) as unfinished:
            unfinished.mkdir()
            with ExitStack() as stack:
                files = {split: stack.enter_context(open(unfinished / f"{split}.bin", "wb")) for split in SPLITS}
                for split, piece in encoded:
                    files[split].write(piece.data)
                    checksums[split] = zlib.crc32(piece.data, checksums[split])
                    lengths[split] += len(piece)
                    counts[split] += count_characters(piece, isinstance(tokenizer, ByteTokenizer))
            meta = {"vocabulary": tokenizer.vocabulary, "lengths": lengths, "characters": counts}
            (unfinished / "meta.json").write_text(json.dumps(meta | {"checksums": checksums}), encoding="ascii")
            if load(folder) is None:
                shutil.rmtree(folder, ignore_errors=True)
    except OSError:
        if load(folder) is None:  # else another process was quicker
            raise


def count_characters(tokens: np.ndarray, are_bytes: bool) -> int:
    """How many characters begin in these tokens: each is one, or where they are bytes, all but 10xxxxxx begin one."""
    return len(tokens) - (int(np.count_nonzero((tokens & 0xC0) == 0x80)) if are_bytes else 0)


def checked(folder: Path) -> "tuple[dict[str, np.ndarray], Tokenizer, dict[str, int]] | None":
    """Open what `keep` has written, as `load` does, with progress."""
    with Progress("checking the encoded text"):
        return load(folder)


def load(folder: Path) -> tuple[dict[str, np.ndarray], Tokenizer, dict[str, int]] | None:
    """Open what `keep` has written, or return None where it is missing, incomplete or damaged."""
    try:
        meta = json.loads((folder / "meta.json").read_text(encoding="ascii"))
        tokenizer = tokenizer_from(meta["vocabulary"])
        arrays = {split: _map(folder / f"{split}.bin", tokenizer.dtype, meta["lengths"][split]) for split in SPLITS}
        if any(zlib.crc32(arrays[split].data) != meta["checksums"][split] for split in SPLITS):
            return None
        return arrays, tokenizer, {split: int(meta["characters"][split]) for split in SPLITS}
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _map(path: Path, dtype: type[np.unsignedinteger], length: int) -> np.ndarray:
    """Map a file of `length` tokens into memory, read-only; ValueError if it has another size."""
    size = path.stat().st_size
    if size != length * np.dtype(dtype).itemsize:
        raise ValueError(f"{path} holds {size} bytes")
    return np.memmap(path, dtype, mode="r") if length else np.zeros(0, dtype)  # an empty file cannot be mapped
