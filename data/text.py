"""A tokenized text with its three splits."""

import hashlib
from collections.abc import Mapping, Sized
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from data.config import DataConfig
from data.corpus import Corpus, DataError
from data.tokenizer import Tokenizer


class ShardedTokens(Protocol):
    """Training tokens that need not fit on this disk; `data.remote.shards.Shards` are such."""

    def __len__(self) -> int: ...

    def __getitem__(self, part: slice, /) -> np.ndarray: ...

    def windows(self, seed: int, step: int, batch: int, context: int, rows: slice) -> np.ndarray:
        """Return rows of a batch, see `data.batches.train_batch`."""


@dataclass(frozen=True)
class Text:
    """An encoded corpus."""

    train: np.ndarray | ShardedTokens  # one-dimensional, uint8 or uint16, mapped into memory
    validation: np.ndarray  # likewise, never in shards
    test: np.ndarray  # likewise, empty if its fraction is 0
    tokenizer: Tokenizer  # made from the whole corpus, not from the training split alone
    name: str  # of the corpus, in messages
    fingerprint: str  # hexadecimal; equal for equal content, settings and tokenizer
    characters: Mapping[str, int]  # of each split; not the number of tokens with other tokenizers
    extra_chars: str  # of the vocabulary, besides those of the corpus


SPLITS = ("train", "validation", "test")
BY_FILE = 40  # from this many documents on, each belongs to one split as a whole
Part = tuple[str, int, int]  # of a document: split, begin, end


def check_lengths(arrays: Mapping[str, Sized], config: DataConfig, context: int, corpus: Corpus) -> None:
    """Raise `DataError` for a split that is shorter than a window."""
    unit = "characters" if corpus.encoding else "bytes"
    whole = sum(len(tokens) for tokens in arrays.values())
    if whole <= context:
        raise DataError(
            f"{corpus.name}: {whole:,} {unit} are too few: one window of model.context={context} "
            f"needs {context + 1:,} in train and in validation; lower model.context or name a longer text"
        )
    for split, share in zip(SPLITS, config.split, strict=True):
        length = len(arrays[split])
        # The test split is only evaluated, where windows may be shorter: two tokens make one prediction.
        needed = context + 1 if split != "test" else 2 if share > 0 else 0
        if length < needed:
            way = f"lower model.context={context} or " if split != "test" else ""
            raise DataError(
                f"{corpus.name}: {split} holds {length:,} of {whole:,} {unit} but needs at least {needed:,}; "
                f"{way}give it a larger share than {share:g} with data.split="
            )


def split_by_file(sizes: Mapping[str, int], shares: list[float]) -> dict[str, str]:
    """Assign each document, by name, to one split, which depends on names and sizes alone.

    In the order of a hash of their names, documents fill validation up to its share of the characters, then test; the
    rest is train. A document is skipped if taking it would miss the share by more than leaving it out.
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
    """Return where validation and test begin in a document of `size` characters."""
    # 1e-6 corrects products such as 0.29 * 100 = 28.999999999999996.
    first = int(size * shares[0] + 1e-6)
    return first, size if shares[2] == 0 else int(size * (shares[0] + shares[1]) + 1e-6)


def cuts(corpus: Corpus, sizes: list[int], shares: list[float]) -> list[list[Part]]:
    """Return the parts of each document."""
    if len(sizes) >= BY_FILE:
        names = [document.name for document in corpus.documents]
        placed = split_by_file(dict(zip(names, sizes, strict=True)), shares)
        return [[(placed[name], 0, size)] for name, size in zip(names, sizes, strict=True)]
    parts: list[list[Part]] = []
    for size in sizes:
        second, third = split_within(size, shares)
        parts.append([("train", 0, second), ("validation", second, third), ("test", third, size)])
    return parts
