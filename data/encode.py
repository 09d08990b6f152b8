"""Read a corpus twice: first to make the tokenizer, then to encode the text."""

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from base.progress import Progress
from data.corpus import Corpus, DataError
from data.encoded_files import keep
from data.split import Part, cuts
from data.tokenizer import ByteTokenizer, CharTokenizer, Tokenizer, UnknownCharacter


# -- Encoding ------------------------------------------------------------------------------------
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
