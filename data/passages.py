"""Passages: prompts for samples, text whose attention and losses are shown, and text to guess."""

import re

import numpy as np
import torch
from torch import Tensor

from data.text import Text

PROMPT = 200  # tokens of a prompt, at most
ATTENDED = 30  # tokens of a passage whose attention is plotted
SEARCHED = 2**12  # tokens in which such a passage is searched
COUNTED = 2**20  # tokens that `occurrences` counts
NUM_TO_GUESS = 6  # passages
TO_GUESS = 200  # characters of a passage to guess


def prompt(text: Text, at: float = 0.5) -> Tensor:
    """Return a prompt of whole lines, from a fraction `at` of the text: (T0,) int64."""
    begin = int(len(text.validation) * at)
    tokens = text.validation[begin : begin + PROMPT]
    breaks = [i for i in range(len(tokens)) if text.tokenizer.decode(tokens[i : i + 1]) == "\n"]
    if len(breaks) > 1:
        tokens = tokens[breaks[0] + 1 : breaks[-1] + 1]
    return torch.from_numpy(tokens.astype("int64"))


def prompts(text: Text) -> Tensor:
    """Return two prompts of the same length, from different parts of the text: (2, T0) int64."""
    first, second = prompt(text, 0.25), prompt(text, 0.75)
    length = min(len(first), len(second))
    return torch.stack((first[-length:], second[-length:]))  # (2, T0)


def lines_to_show(text: Text) -> int:
    """Return where the line near the middle with the most distinct characters begins."""
    tokens, names = text.validation, text.tokenizer.names
    middle = max(1, len(tokens) // 2 - SEARCHED // 2)
    stretch = tokens[middle : middle + SEARCHED]
    breaks = np.flatnonzero(stretch[:-ATTENDED] == names.index("\n")) if "\n" in names else ()
    starts = [int(i) + 1 for i in breaks] or [0]
    return middle + max(starts, key=lambda start: len(np.unique(stretch[start : start + ATTENDED])))


def passage(text: Text, length: int) -> Tensor:
    """Return `length` tokens from `lines_to_show`, or earlier ones near the end of the text: (T,) int64."""
    begin = max(0, min(lines_to_show(text), len(text.validation) - length))
    return torch.from_numpy(text.validation[begin : begin + length].astype("int64"))


def occurrences(text: Text) -> Tensor:
    """Count each token in the first `COUNTED` tokens of the validation text: (V,) int64."""
    return torch.from_numpy(np.bincount(text.validation[:COUNTED], minlength=text.tokenizer.size))


def to_guess(text: str, trained: str, characters: str) -> list[str]:
    """Choose passages of the given characters that begin lines and of which no quarter occurs in `trained`."""
    found: list[str] = []
    free = 0  # where the next passage may begin: they are spread over the text
    for line in re.finditer(r"(?<=\n).", text):
        passage = text[line.start() : line.start() + TO_GUESS]
        usable = line.start() >= free and len(passage) == TO_GUESS and set(passage) <= set(characters)
        if usable and not any(passage[i : i + TO_GUESS // 4] in trained for i in range(0, TO_GUESS, TO_GUESS // 4)):
            found.append(passage)
            free = max(line.start() + TO_GUESS, len(found) * len(text) // NUM_TO_GUESS)
    return found
