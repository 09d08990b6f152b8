"""A tokenized text with its three splits."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

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
