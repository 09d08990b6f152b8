"""Define an encoded text with its three splits."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from data.tokenizer import Tokenizer


class ShardedTokens(Protocol):
    """Training tokens that need not fit on this disk: `data.remote.shards.Shards`."""

    def __len__(self) -> int: ...

    def __getitem__(self, part: slice, /) -> np.ndarray: ...

    def windows(self, seed: int, step: int, batch: int, context: int, rows: slice) -> np.ndarray:
        """Return rows of a batch; see `data.batches.train_batch`."""


@dataclass(frozen=True)
class Text:
    """An encoded corpus."""

    train: np.ndarray | ShardedTokens  # one-dimensional, uint8 or uint16, mapped into memory
    validation: np.ndarray  # the same dtype, never in shards
    test: np.ndarray  # the same dtype, empty if its fraction is 0
    tokenizer: Tokenizer  # has the characters of all splits
    name: str  # name of the corpus, for messages
    fingerprint: str  # hexadecimal; equal for equal content, settings and tokenizer
    characters: Mapping[str, int]  # number of characters of each split; with bytes as tokens, at most its tokens
    extra_chars: str  # added to the vocabulary, whether the corpus has them or not
