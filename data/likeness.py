"""Compare the validation split with the training split, to warn if its loss would say little."""

from itertools import pairwise
from typing import Any

import numpy as np

from data.ngrams import MAX_COUNTED, probabilities
from gpt.tokenizer import Tokenizer

BLOCKS = 4  # passages of the training text that validation is compared with
LONGEST = 2**17  # tokens of a passage: looking up longer ones would need more time than counting
SHORTEST = 500  # tokens of a passage: the loss of a shorter one is noisy
# Warn if the n-gram loss of validation is above the passages' highest loss, or below their lowest, by this factor.
UNLIKE, REPEATED = 1.35, 0.6
MOST_LINES = 2**20  # tokens, from the beginning, whose lines are checked for order
SORTED = 0.95  # fraction of neighbouring lines that are in order in a sorted text


def likeness(train: np.ndarray, validation: np.ndarray, tokenizer: Tokenizer) -> dict[str, Any]:
    """Compare the validation split with the training split, and return a dict for `describe_likeness`."""
    lines = are_sorted(tokenizer.decode(train[:MOST_LINES]))
    return {"losses": losses_of_passages(train, validation, tokenizer.size), "sorted": lines}


def describe_likeness(found: dict[str, Any], can_mix: bool) -> tuple[str, ...]:
    """Return a one-tuple with a warning in one line if `found` gives a reason for one, otherwise ()."""
    if can_mix and found["sorted"]:
        return ("the lines are sorted: data.documents=line shuffles them",)
    if not found["losses"]:
        return ()
    loss, *passages = found["losses"]
    low, high = min(passages), max(passages)
    figures = f"n-gram loss {loss:.2f}, four passages of training {low:.2f} to {high:.2f}"
    if loss > UNLIKE * high:
        way = " data.documents=paragraph shuffles it" if can_mix else ""
        return (f"validation is unlike the training text ({figures}): a licence, an index, another language?{way}",)
    return (f"validation repeats passages of the training text ({figures})",) if loss < REPEATED * low else ()


def losses_of_passages(train: np.ndarray, validation: np.ndarray, size: int) -> list[float]:
    """Return the losses of an n-gram model on validation and on `BLOCKS` passages of training, in nats per token.

    The passages are evenly spaced in training. The n-grams are counted only in the training tokens outside the
    passages, so neither validation nor the passages were counted. Each loss is the lowest over n (see `data.ngrams`). A
    passage is as long as validation, but has at most `LONGEST` tokens, and together the passages are at most half of
    training. The result is empty if the text is too short or too long.
    """
    length = min(len(validation), len(train) // (2 * BLOCKS), LONGEST)
    if length < SHORTEST or len(train) > MAX_COUNTED:
        return []
    begins = (2 * np.arange(BLOCKS) + 1) * len(train) // (2 * BLOCKS) - length // 2
    parts = np.split(train, np.stack((begins, begins + length), axis=1).reshape(-1))  # alternate: kept, left out
    scored = [validation, *parts[1::2]]
    sizes = np.array([len(each) for each in scored])
    found = [
        -np.add.reduceat(np.log(probability), sizes.cumsum() - sizes) / sizes
        for probability in probabilities(np.concatenate(parts[::2]), np.concatenate(scored), size)
    ]
    return np.min(found, axis=0).tolist()


def are_sorted(text: str) -> bool:
    """Return whether the lines of `text` are sorted, with or without regard to case.

    Blank lines are ignored, and 5 % of the neighbouring lines may be out of order. The result is False if the text has
    fewer than 100 lines that are not blank, or if its first line is not before its last.
    """
    for written in (text, text.casefold()):
        lines = [line for line in written.split("\n") if line.strip()]
        ordered = sum(before <= after for before, after in pairwise(lines))
        if len(lines) >= 100 and lines[0] < lines[-1] and ordered >= SORTED * (len(lines) - 1):
            return True
    return False
