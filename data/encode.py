"""Read a corpus twice: first to make the tokenizer, then to encode the text into files.

The folder of an encoded text has `meta.json` and, with the tokens as uint8 or uint16, `train.bin`, `validation.bin` and
`test.bin`.
"""

import hashlib
import json
import shutil
import zlib
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from base.errors import printable
from base.files import atomic, remove_unfinished
from base.progress import Progress
from data.corpus import Corpus, DataError, Tick
from data.splits import SPLITS, Part, split_documents
from data.tokenizer import ByteTokenizer, CharTokenizer, Tokenizer, UnknownCharacter, tokenizer_from

FORMAT = 1  # part of `fingerprint_of`: raise it when the same text would be split or encoded differently
DAY_SECONDS = 86_400
Encoded = tuple[dict[str, np.ndarray], Tokenizer, dict[str, int]]  # tokens and number of characters of each split


def fingerprint_of(*settings: Any) -> str:
    """Hash what determines an encoded text."""
    return hashlib.sha256(json.dumps([FORMAT, *settings]).encode()).hexdigest()


def scan(corpus: Corpus, tick: Tick = lambda size: None) -> tuple[list[int], str]:
    """First pass: return the length of each document, and the sorted distinct characters (or bytes) of all."""
    sizes, seen = [], np.zeros(0x110000, bool)  # `seen`: whether each code point occurs
    single = b""  # distinct characters of ASCII chunks, or distinct bytes
    for document in corpus.documents:
        size = 0
        for chunk in corpus.read(document, tick):
            size += len(chunk)
            if isinstance(chunk, str) and not chunk.isascii():
                points = np.frombuffer(chunk.encode("utf-32-le", "surrogatepass"), np.uint32)
                if not seen.take(points, mode="clip").all():  # reading is far faster than writing
                    seen[points] = True
            else:
                raw = chunk.encode("ascii") if isinstance(chunk, str) else chunk
                # First delete the bytes that are in `single` already: far faster than a set of the whole chunk.
                single += bytes(set(raw.translate(None, single)))
        sizes.append(size)
    seen[list(single)] = True
    return sizes, "".join(map(chr, np.flatnonzero(seen)))


def make_tokenizer(corpus: Corpus, characters: str, extra_chars: str, joined: bool) -> Tokenizer:
    """Make the tokenizer of a corpus. If documents are `joined`, add the newline that separates them."""
    if not characters:
        raise DataError(f"{corpus.name}: is empty: 0 characters")
    if len(characters) == 1:
        raise DataError(f"{corpus.name}: holds only one distinct character, {characters!r}: there is nothing to learn")
    if corpus.encoding is None:
        return ByteTokenizer()
    if joined:
        characters += "\n"
    try:
        return CharTokenizer(characters + extra_chars)
    except ValueError as error:
        raise DataError(f"{corpus.name}: {error}") from None


def encode_parts(
    corpus: Corpus, parts_of: list[list[Part]], tokenizer: Tokenizer, tick: Tick = lambda size: None
) -> Iterator[tuple[str, np.ndarray]]:
    """Second pass: yield (split, tokens) in the order of the text, with a newline between the parts of a split.

    `parts_of` lists the parts of each document.
    """
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


def encode_corpus(
    corpus: Corpus, stamps: list[tuple[int, int]], shares: list[float], extra_chars: str, folder: Path
) -> Encoded:
    """Encode a corpus into `folder`, atomically. `stamps` are the corpus's stamps from before its files were hashed."""
    changed = DataError(f"{corpus.name}: was changed while it was being read; start again")
    try:
        with Progress("encoding", 2 * corpus.size(), "B") as progress:
            sizes, characters = scan(corpus, progress.update)
            joined = sum(size > 0 for size in sizes) > 1
            tokenizer = make_tokenizer(corpus, characters, extra_chars, joined)

            def encoded() -> Iterator[tuple[str, np.ndarray]]:
                yield from encode_parts(corpus, split_documents(corpus, sizes, shares), tokenizer, progress.update)
                if corpus.stamps() != stamps:
                    raise changed

            save(folder, tokenizer, encoded())
    except UnknownCharacter:  # the first pass did not see this character
        raise changed from None
    return load_saved(folder)


def cannot_save(folder: Path, error: OSError) -> DataError:
    """Return the error for a cache that cannot be written."""
    return DataError(
        f"{printable(folder)}: cannot save the encoded text: {error.strerror or error}; "
        "data.cache_dir= sets another folder"
    )


def save(folder: Path, tokenizer: Tokenizer, encoded: Iterable[tuple[str, np.ndarray]]) -> None:
    """Write the (split, tokens) of `encoded` into `folder`, atomically."""
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
            if load(folder) is None:  # keep a valid folder: another process has just written the same text
                shutil.rmtree(folder, ignore_errors=True)
    except OSError:
        if load(folder) is None:  # a valid folder cannot be replaced, and need not be
            raise


def count_characters(tokens: np.ndarray, are_bytes: bool) -> int:
    """Count the characters of tokens. With bytes as tokens, 10xxxxxx continues a character and is not counted."""
    return len(tokens) - (int(np.count_nonzero((tokens & 0xC0) == 0x80)) if are_bytes else 0)


def load_saved(folder: Path) -> Encoded:
    """Open a folder that `save` has just written; see `load`."""
    with Progress("checking the encoded text"):
        opened = load(folder)
    if opened is None:
        raise DataError(f"{printable(folder)}: the encoded text was damaged as soon as it was written; check the disk")
    return opened


def load(folder: Path) -> Encoded | None:
    """Map the files of an encoded text into memory; return None if the folder is missing, incomplete or damaged."""
    try:
        meta = json.loads((folder / "meta.json").read_text(encoding="ascii"))
        tokenizer = tokenizer_from(meta["vocabulary"])
        arrays = {}
        for split in SPLITS:
            arrays[split] = np.zeros(0, tokenizer.dtype)
            if meta["lengths"][split]:  # an empty file cannot be mapped
                arrays[split] = np.memmap(folder / f"{split}.bin", tokenizer.dtype, mode="r")
            if zlib.crc32(arrays[split].data) != meta["checksums"][split]:
                return None
        return arrays, tokenizer, {split: int(meta["characters"][split]) for split in SPLITS}
    except (OSError, ValueError, KeyError, TypeError):
        return None
