"""A tokenized text with its three splits."""

import hashlib
from collections.abc import Mapping, Sized
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from data.config import DataConfig
from data.corpus import Corpus, DataError
from data.tokenizer import Tokenizer

if TYPE_CHECKING:
    from data.remote.shards import Shards


@dataclass(frozen=True)
class Text:
    """An encoded corpus.

    Attributes:
        train: tokens, one-dimensional, uint8 or uint16, mapped into memory; of a text elsewhere, in shards.
        validation: likewise, never in shards.
        test: likewise, of length 0 where the split has no share for it.
        tokenizer: made from the whole corpus, not from the training part alone.
        name: of the corpus, for people.
        fingerprint: hexadecimal; equal for equal content, settings and tokenizer.
        characters: how many each split holds (tokens are fewer or more with other tokenizers).
        known: characters that the tokenizer was made to know besides those of the corpus.
    """

    train: "np.ndarray | Shards"
    validation: np.ndarray
    test: np.ndarray
    tokenizer: Tokenizer
    name: str
    fingerprint: str
    characters: Mapping[str, int]
    known: str


SPLITS = ("train", "validation", "test")
BY_FILE = 40  # from this many documents on, a document goes to one split as a whole
Part = tuple[str, int, int]  # of a document: a split, and from where to where


def check_lengths(arrays: Mapping[str, Sized], config: DataConfig, context: int, corpus: Corpus) -> None:
    """Refuse a split in which no window fits."""
    unit = "characters" if corpus.encoding else "bytes"
    whole = sum(len(tokens) for tokens in arrays.values())
    if whole <= context:
        raise DataError(
            f"{corpus.name}: {whole:,} {unit} are too few: one window of model.context={context} "
            f"needs {context + 1:,} in train and in validation; lower model.context or name a longer text"
        )
    for split, share in zip(SPLITS, config.split, strict=True):
        length = len(arrays[split])
        # Test is only ever evaluated, where a shorter last window is fine: two tokens make one prediction.
        needed = context + 1 if split != "test" else 2 if share > 0 else 0
        if length < needed:
            way = f"lower model.context={context} or " if split != "test" else ""
            raise DataError(
                f"{corpus.name}: {split} holds {length:,} of {whole:,} {unit} but needs at least {needed:,}; "
                f"{way}give it a larger share than {share:g} with data.split="
            )


def split_by_file(sizes: Mapping[str, int], shares: list[float]) -> dict[str, str]:
    """Send each document to one split.

    In an order given by a hash of their names, documents fill validation up to its share of the
    characters, then test; the rest is train. A document is passed over where taking it would miss the
    share by more than leaving it out does. So a document's place depends on names and sizes alone.

    Returns:
        The split of each document, by name.
    """
    left = sorted(sizes, key=lambda name: hashlib.sha256(name.encode("utf-8", "surrogatepass")).digest())
    whole = sum(sizes.values())
    placed = {}
    for split, share in zip(SPLITS[1:], shares[1:], strict=True):
        room = share * whole
        for name in left:
            if 0 < sizes[name] <= 2 * room:
                placed[name] = split
                room -= sizes[name]
        left = [name for name in left if name not in placed]
    return placed | dict.fromkeys(left, "train")


def split_within(size: int, shares: list[float]) -> tuple[int, int]:
    """Where validation and test begin in a document of `size` characters."""
    # The small number mends products such as 0.29 * 100 = 28.999999999999996.
    first = int(size * shares[0] + 1e-6)
    return first, size if shares[2] == 0 else int(size * (shares[0] + shares[1]) + 1e-6)


def cuts(corpus: Corpus, sizes: list[int], shares: list[float]) -> list[list[Part]]:
    """The parts that each document is cut into."""
    if len(sizes) >= BY_FILE:
        names = [document.name for document in corpus.documents]
        placed = split_by_file(dict(zip(names, sizes, strict=True)), shares)
        return [[(placed[name], 0, size)] for name, size in zip(names, sizes, strict=True)]
    parts: list[list[Part]] = []
    for size in sizes:
        second, third = split_within(size, shares)
        parts.append([("train", 0, second), ("validation", second, third), ("test", third, size)])
    return parts
