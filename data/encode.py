"""Read a corpus twice: first to make the tokenizer, then to encode the text."""

import json
import shutil
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np

from base.errors import printable
from base.files import atomic, remove_unfinished
from base.progress import Progress
from data.corpus import Corpus, DataError
from data.text import SPLITS, Part, cuts
from data.tokenizer import ByteTokenizer, CharTokenizer, Tokenizer, UnknownCharacter, tokenizer_from


def scan(corpus: Corpus, tick: Callable[[int], object] = lambda size: None) -> tuple[list[int], str]:
    """First pass: how long each document is, and the distinct characters (or bytes) of them all, sorted."""
    sizes, low, others = [], b"", np.zeros(0x110000, bool)
    for document in corpus.documents:
        size = 0
        for chunk in corpus.read(document, tick):
            size += len(chunk)
            if isinstance(chunk, str) and not chunk.isascii():
                points = np.frombuffer(chunk.encode("utf-32-le", "surrogatepass"), np.uint32)
                if not others.take(points, mode="clip").all():  # reading is far quicker than writing
                    others[points] = True
            else:
                raw = chunk.encode("ascii") if isinstance(chunk, str) else chunk
                # Deleting what is known leaves nothing, except early on: far quicker than looking at each byte.
                low += bytes(set(raw.translate(None, low)))
        sizes.append(size)
    others[list(low)] = True
    return sizes, "".join(map(chr, np.flatnonzero(others)))


def make_tokenizer(corpus: Corpus, characters: str, known: str, joined: bool) -> Tokenizer:
    """Make the tokenizer for a corpus, or refuse it."""
    if not characters:
        raise DataError(f"{corpus.name}: is empty: 0 characters")
    if len(characters) == 1:
        raise DataError(f"{corpus.name}: holds only one distinct character, {characters!r}: there is nothing to learn")
    if corpus.encoding is None:
        return ByteTokenizer()
    if joined:
        characters += "\n"
    try:
        return CharTokenizer(characters + known)
    except ValueError as error:
        raise DataError(f"{corpus.name}: {error}") from None


def pieces(
    corpus: Corpus, parts_of: list[list[Part]], tokenizer: Tokenizer, tick: Callable[[int], object] = lambda size: None
) -> Iterator[tuple[str, np.ndarray]]:
    """Second pass: the tokens of each split, in the order of the text, pieces of documents joined by one newline."""
    begun = set()
    for document, parts in zip(corpus.documents, parts_of, strict=True):
        position = 0
        for chunk in corpus.read(document, tick):
            tokens = np.frombuffer(chunk, np.uint8) if isinstance(chunk, bytes) else tokenizer.pack(chunk)
            for split, begin, end in parts:
                piece = tokens[max(begin - position, 0) : max(end - position, 0)]
                if len(piece):
                    if position <= begin and split in begun:
                        yield split, tokenizer.pack("\n")
                    begun.add(split)
                    yield split, piece
            position += len(tokens)


def encode(corpus: Corpus, digest: str, shares: list[float], known: str, folder: Path) -> None:
    """Encode a corpus into `folder`, all or nothing.

    Raises:
        DataError: the text cannot be read or used.
        OSError: the cache cannot be written.
    """
    changed = DataError(f"{corpus.name}: was changed while it was being read; start again")
    try:
        with Progress("encoding", 2 * corpus.size(), "B") as progress:
            sizes, characters = scan(corpus, progress.update)
            tokenizer = make_tokenizer(corpus, characters, known, joined=sum(size > 0 for size in sizes) > 1)

            def encoded() -> Iterator[tuple[str, np.ndarray]]:
                yield from pieces(corpus, cuts(corpus, sizes, shares), tokenizer, progress.update)
                if corpus.digest() != digest:
                    raise changed

            keep(folder, tokenizer, encoded())
    except UnknownCharacter:  # the first pass has seen every character there was
        raise changed from None


FORMAT = 1  # part of the fingerprint: raise it when the same text would be split or encoded differently
DAY_SECONDS = 86_400  # seconds


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
    remove_unfinished(folder.parent, seconds=DAY_SECONDS)
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
