"""Compute baselines for a model's loss: a uniform distribution, and n-gram models, which count sequences of n tokens.

A model has learned more than frequencies only if its loss is below the loss of the n-gram model.
"""

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

MAX_ORDER = 7
MAX_COUNTED = 3 * 10**7  # training tokens: counting these needs about 5 seconds and 1.2 GB of memory


class Baselines(NamedTuple):
    """The baselines that a model's loss is compared with, in nats per token.

    Attributes:
        uniform: the loss if all tokens are equally likely.
        ngram: the loss of the best n-gram model, or None for a text of more than `MAX_COUNTED` tokens.
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
    from gpt.evaluation import choose_windows  # loads torch

    uniform = math.log(text.tokenizer.size)
    if len(text.train) > MAX_COUNTED:
        return Baselines(uniform, None, None)
    # A list is read after an end mark.
    read = text.validation if text.end is None else np.concatenate((text.end, text.validation))  # (M,)
    windows = choose_windows(text.validation, context, end=text.end, most=tokens)
    edges = np.zeros(len(read) + 1, np.int8)
    first = windows.begins + len(read) - len(text.validation) + 1  # place of each window's first target
    edges[first + windows.counted] += 1
    edges[first + windows.lengths] -= 1
    scored = edges[:-1].cumsum(dtype=np.int8) > 0
    scored[0] |= text.end is None
    losses = ngram_losses(text.train, read, text.tokenizer.size, scored)
    best = min(range(len(losses)), key=losses.__getitem__)
    return Baselines(uniform, losses[best], best + 1)


def ngram_losses(
    train: np.ndarray, text: np.ndarray, size: int, scored: np.ndarray | slice = slice(None)
) -> list[float]:
    """Return the losses of `text` under the n-gram models counted in `train`, in nats per token, for n = 1, 2, ...

    `scored`, (M,) bool or a slice, selects the tokens over which the loss is averaged, by default all. The other
    arguments are those of `probabilities`.
    """
    return [-float(np.log(probability[scored]).mean()) for probability in probabilities(train, text, size)]


def probabilities(train: np.ndarray, text: np.ndarray, size: int) -> Iterator[np.ndarray]:
    """Yield the probability of each token of `text` under the n-gram models of `train`: (M,) for each of n = 1, 2, ...

    The highest n is `MAX_ORDER`, or less if the vocabulary is large, because an n-gram is stored in 63 bits. The same
    array is yielded for every n, and each n overwrites it. The models are interpolated: if a context occurred m times,
    with k different next tokens, the prediction of the next shorter context has the weight k / (m + k). The empty
    context is interpolated with equal probabilities for all tokens. The first token has probability 1 / size, as in a
    model's loss.

    Source: Witten and Bell, IEEE Transactions on Information Theory 37 (1991), method C, interpolated.

    Args:
        train: tokens to count, (N,), of any integer type. Shorter n-grams are counted only at positions where an n-gram
            of the highest n begins.
        text: tokens to predict, (M,).
        size: number of tokens in the vocabulary.
    """
    bits = max(1, (size - 1).bit_length())
    highest = min(MAX_ORDER, 63 // bits, len(train))  # an n-gram is one int64
    known = _packed(train, highest, bits)  # (N - highest + 1,)
    known.sort()
    begun = _packed(np.pad(text, (0, highest - 1)), highest, bits)  # (M,)
    by_ngram = begun.argsort()
    begun = begun[by_ngram]
    # The n-gram that begins at token i of the text occurs at known[low[i] : high[i]].
    low, high = np.zeros(len(text), np.int64), np.full(len(text), len(known))
    probability = np.full(len(text), 1 / size)
    for order in range(1, highest + 1):
        shift = bits * (highest - order)
        ngrams, wanted = known >> shift, begun >> shift
        differs = np.concatenate(([False], ngrams[1:] != ngrams[:-1]))
        number = differs.cumsum(dtype=np.int32)  # index of each distinct n-gram
        seen = high > low
        n, k = high - low, np.where(seen, number[high - 1] - number[low * seen] + 1, 0)
        low[by_ngram], high[by_ngram] = np.searchsorted(ngrams, wanted), np.searchsorted(ngrams, wanted, "right")
        last = slice(order - 1, None)  # last token of each n-gram that ends within the text
        mixed = (high - low + k * np.pad(probability[last], (0, order - 1))) / np.maximum(n + k, 1)  # (M,)
        probability[last] = np.where(seen, mixed, np.pad(probability[last], (0, order - 1)))[: len(text) - order + 1]
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
