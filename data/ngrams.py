"""Count n-grams, as baselines for a model's loss, and to warn if the validation split is unlike the training split.

A model has learned more than frequencies only if its loss is below the loss of the n-gram model.
"""

import math
from collections.abc import Iterator
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

MAX_ORDER = 7
# training tokens: counting these needs about 5 seconds and 1.2 GB of memory
MAX_COUNTED = 3 * 10**7
BLOCKS = 4  # passages of the training text that validation is compared with
LONGEST = 2**17  # tokens of a passage: looking up longer ones would need more time than counting
SHORTEST = 500  # tokens of a passage: the loss of a shorter one is noisy
# Warn if the n-gram loss of validation is above the passages' highest loss, or below their lowest,
# by this factor.
UNLIKE, REPEATED = 1.35, 0.6
MOST_LINES = 2**20  # tokens, from the beginning, whose lines are checked for order
SORTED = 0.95  # fraction of neighbouring lines that are in order in a sorted text


class Baselines(NamedTuple):
    """The baselines that a model's loss is compared with, in nats per token.

    Attributes:
        uniform: the loss if all tokens are equally likely.
        ngram: the loss of the best n-gram model, or None for a text of more than `MAX_COUNTED`
            tokens.
        order: the n of that n-gram model, or None for such a text.
    """

    uniform: float
    ngram: float | None
    order: int | None


def baselines(text: Any, context: int, tokens: int) -> Baselines:
    """Return the baselines of a model's validation loss, measured on the same tokens as the model.

    Args:
        text: a `data.text.Text`.
        context: context length with which the model was evaluated, in tokens.
        tokens: maximum number of tokens of the validation split on which the model was evaluated.
    """
    uniform = math.log(text.tokenizer.size)
    if len(text.train) > MAX_COUNTED:
        return Baselines(uniform, None, None)
    validation = text.validation  # (M,)
    if text.end is not None:  # a list is read after an end mark
        validation = np.concatenate((text.end, text.validation))  # (M,)
    windows = text.evaluated.windows(context, most=tokens)
    mark = len(validation) - len(text.validation)  # tokens of the end mark
    first_targets = windows.begins + mark + 1  # (W,), positions in `validation`
    # Counted targets begin at edges of 1 and end before edges of -1.
    edges = np.zeros(len(validation) + 1, np.int8)  # (M + 1,)
    edges[first_targets + windows.first_counted] += 1
    edges[first_targets + windows.lengths] -= 1
    scored = edges[:-1].cumsum(dtype=np.int8) > 0  # (M,)
    if text.end is None:  # the first token is no window's target
        scored[0] = True
    losses = ngram_losses(text.train, validation, text.tokenizer.size, scored)
    best = int(np.argmin(losses))
    return Baselines(uniform, losses[best], best + 1)


def ngram_losses(
    train: np.ndarray, text: np.ndarray, size: int, scored: np.ndarray | slice = slice(None)
) -> list[float]:
    """Return the loss of the `scored` tokens of `text`, (M,), in nats per token, by the models of `probabilities`."""
    losses: list[float] = []
    for probability in probabilities(train, text, size):  # (M,)
        losses.append(-float(np.log(probability[scored]).mean()))
    return losses


def probabilities(train: np.ndarray, text: np.ndarray, size: int) -> Iterator[np.ndarray]:
    """Yield the probability of each token of `text` under the n-gram models of `train`: (M,) for each of n = 1, 2, ...

    The highest n is `MAX_ORDER`, or less if the vocabulary is large, because an n-gram is stored
    in 63 bits. The same array is yielded for every n, and each n overwrites it. The models are
    interpolated: if a context occurred m times, with k different next tokens, the prediction of
    the next shorter context has the weight k / (m + k). The empty context is interpolated with
    equal probabilities for all tokens. The first token has probability 1 / size, as in a model's
    loss.

    Source: Witten and Bell, IEEE Transactions on Information Theory 37 (1991), method C,
    interpolated.

    Args:
        train: tokens to count, (N,), of any integer type. Shorter n-grams are counted only at
            positions where an n-gram of the highest n begins.
        text: tokens to predict, (M,).
        size: number of tokens in the vocabulary.
    """
    bits = max(1, (size - 1).bit_length())
    highest = min(MAX_ORDER, 63 // bits, len(train))  # an n-gram is one int64
    counted = _packed(train, highest, bits)  # (N - highest + 1,), the n-grams of the training text
    counted.sort()
    # (M,), the n-gram at each token of the text
    wanted = _packed(np.pad(text, (0, highest - 1)), highest, bits)
    by_ngram = wanted.argsort()  # (M,), because searching is faster in order
    wanted = wanted[by_ngram]

    # The n-gram that begins at token i of the text occurs at counted[low[i] : high[i]].
    low = np.zeros(len(text), np.int64)  # (M,)
    high = np.full(len(text), len(counted))  # (M,)
    probability = np.full(len(text), 1 / size)  # (M,)
    for order in range(1, highest + 1):
        shift = bits * (highest - order)  # leaves the first `order` tokens of an n-gram
        ngrams = counted >> shift  # (N - highest + 1,)

        # The context of an n-gram is its first order - 1 tokens, which the last round searched.
        seen = high > low  # (M,), whether the context occurs
        occurrences = high - low  # (M,), m of the context
        is_new = np.concatenate(([False], ngrams[1:] != ngrams[:-1]))
        index = is_new.cumsum(dtype=np.int32)  # counts distinct n-grams from 0
        first = np.where(seen, low, 0)  # (M,); where nothing occurs, `low` may lie past the end
        distinct = index[high - 1] - index[first] + 1  # (M,), meaningless where nothing occurs
        followers = np.where(seen, distinct, 0)  # (M,), k of the context

        ends = slice(order - 1, None)  # the last tokens of the n-grams that end in the text
        within = max(0, len(text) - order + 1)  # number of these n-grams
        prefixes = wanted >> shift  # (M,)
        low[by_ngram] = np.searchsorted(ngrams, prefixes)
        high[by_ngram] = np.searchsorted(ngrams, prefixes, "right")
        shorter = probability[ends]  # (within,), by the n-gram that is shorter by one
        weighted = (high - low)[:within] + followers[:within] * shorter  # (within,)
        mixed = weighted / np.maximum(occurrences + followers, 1)[:within]  # (within,)
        probability[ends] = np.where(seen[:within], mixed, shorter)
        probability[0] = 1 / size
        yield probability


def _packed(tokens: np.ndarray, length: int, bits: int) -> np.ndarray:
    """Return the `length` tokens that begin at each position, packed into one integer: (N,) -> (N - length + 1,) int64.

    Each token occupies `bits` bits of the integer.
    """
    packed = np.zeros(len(tokens) - length + 1, np.int64)
    for offset in range(length):
        packed <<= bits
        packed |= tokens[offset : offset + len(packed)]
    return packed


def describe_likeness(losses: list[float], ordered: bool) -> tuple[str, ...]:
    """Return a one-tuple with a warning if validation is unlike training or a copy of it, otherwise ().

    `losses` are those of `losses_of_passages`; `ordered` says that the lines are sorted and not
    shuffled.
    """
    if ordered:
        return ("the lines are sorted: data.documents=line shuffles them",)
    if not losses:
        return ()
    loss, *passages = losses
    low, high = min(passages), max(passages)
    figures = f"n-gram loss {loss:.2f}, four passages of training {low:.2f} to {high:.2f}"
    if loss > UNLIKE * high + 0.01:  # the losses of a text of equal lines are about 0
        return (
            f"validation is unlike the training text ({figures}): a licence, an index, another language?",
        )
    if loss < REPEATED * low:
        return (f"validation repeats passages of the training text ({figures})",)
    return ()


def losses_of_passages(train: np.ndarray, validation: np.ndarray, size: int) -> list[float]:
    """Return the losses of an n-gram model on validation and on `BLOCKS` passages of training, in nats per token.

    The passages are evenly spaced in training. The n-grams are counted only in the training tokens
    outside the passages, so neither validation nor the passages were counted. Each loss is the
    lowest over n. A passage is as long as validation, but has at most `LONGEST` tokens, and
    together the passages are at most half of training. The result is empty if the text is too
    short or too long.
    """
    length = min(len(validation), len(train) // (2 * BLOCKS), LONGEST)
    if length < SHORTEST or len(train) > MAX_COUNTED:
        return []
    middles = (2 * np.arange(BLOCKS) + 1) * len(train) // (2 * BLOCKS)  # (BLOCKS,)
    begins = middles - length // 2  # (BLOCKS,)
    # alternate: kept, left out
    parts = np.split(train, np.stack((begins, begins + length), axis=1).reshape(-1))
    scored = [validation, *parts[1::2]]
    sizes = np.array([len(passage) for passage in scored])  # (1 + BLOCKS,)
    starts = sizes.cumsum() - sizes  # (1 + BLOCKS,), of the passages in the joined text
    losses: list[np.ndarray] = []  # for each n, (1 + BLOCKS,)
    for probability in probabilities(np.concatenate(parts[::2]), np.concatenate(scored), size):
        nats = -np.add.reduceat(np.log(probability), starts)  # (1 + BLOCKS,)
        losses.append(nats / sizes)
    return np.min(losses, axis=0).tolist()


def are_sorted(text: str) -> bool:
    """Return whether the lines of `text` are sorted, with or without regard to case.

    Blank lines are ignored, and 5 % of the neighbouring lines may be out of order. The result is
    False if the text has fewer than 100 lines that are not blank, or if its first line is not
    before its last.
    """
    for variant in (text, text.casefold()):
        lines = list(filter(str.strip, variant.split("\n")))
        in_order = sum(before <= after for before, after in pairwise(lines))
        if len(lines) >= 100 and lines[0] < lines[-1] and in_order >= SORTED * (len(lines) - 1):
            return True
    return False
