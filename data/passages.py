"""Which passages of the validation text a model is shown: what it goes on from, and what it is looked at over."""

import numpy as np
import torch
from torch import Tensor

from data.text import Text

PROMPT = 200  # tokens of a prompt, at most
ATTENDED = 30  # tokens of a passage whose attention is drawn
SEARCHED = 2**12  # tokens among which such a passage is chosen
COUNTED = 2**20  # tokens in which characters are counted


def prompt(text: Text, at: float = 0.5) -> Tensor:
    """What a text of the model's own goes on from: whole lines, (T0,) int64."""
    begin = int(len(text.validation) * at)
    tokens = text.validation[begin : begin + PROMPT]
    breaks = [place for place in range(len(tokens)) if text.tokenizer.decode(tokens[place : place + 1]) == "\n"]
    if len(breaks) > 1:
        tokens = tokens[breaks[0] + 1 : breaks[-1] + 1]
    return torch.from_numpy(tokens.astype("int64"))


def prompts(text: Text) -> Tensor:
    """Two prompts of the same length, from different places: (2, T0) int64."""
    first, second = prompt(text, 0.25), prompt(text, 0.75)
    length = min(len(first), len(second))
    return torch.stack((first[-length:], second[-length:]))  # (2, T0)


def lines_to_show(text: Text) -> int:
    """Where a passage with many different characters begins, at a line in the middle."""
    tokens, names = text.validation, text.tokenizer.names
    middle = max(1, len(tokens) // 2 - SEARCHED // 2)
    stretch = tokens[middle : middle + SEARCHED]
    breaks = np.flatnonzero(stretch[:-ATTENDED] == names.index("\n")) if "\n" in names else ()
    starts = [int(place) + 1 for place in breaks] or [0]
    return middle + max(starts, key=lambda start: len(np.unique(stretch[start : start + ATTENDED])))


def passage(text: Text, length: int) -> Tensor:
    """So many tokens, (T,) int64: what is worth showing, where there are as many behind it."""
    begin = max(0, min(lines_to_show(text), len(text.validation) - length))
    return torch.from_numpy(text.validation[begin : begin + length].astype("int64"))


def occurrences(text: Text) -> Tensor:
    """How often each token occurs, or in the beginning of a long text: (V,) int64."""
    return torch.from_numpy(np.bincount(text.validation[:COUNTED], minlength=text.tokenizer.size))
