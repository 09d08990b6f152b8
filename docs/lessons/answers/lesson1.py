"""Answers to the exercises of lesson 1. Try each yourself first."""

from collections.abc import Iterator

import numpy as np


def recent_mean(x: np.ndarray, window: int) -> np.ndarray:
    """Mean of the last `window` rows up to each row, fewer at the start: (T, d) -> (T, d)."""
    here, there = np.indices((len(x), len(x)))  # (T, T) twice: the row that looks, the row that is looked at
    visible = (there <= here) & (there > here - window)  # (T, T)
    # Equal scores for what is visible, no weight for the rest: a softmax over these is a mean.
    weights = np.exp(np.where(visible, 0.0, -np.inf))  # (T, T)
    return weights / weights.sum(1, keepdims=True) @ x  # (T, d)


def fold_scale(W_q: np.ndarray) -> np.ndarray:
    """Query weights (C, D) with which unscaled attention does what scaled attention does with `W_q`."""
    # (x W_q) . k / sqrt(D) = (x (W_q / sqrt(D))) . k: a constant factor can be moved into a linear map.
    return W_q / W_q.shape[1] ** 0.5


def padded_attention(q: np.ndarray, k: np.ndarray, v: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Attention among the first `lengths[b]` places of row b, zeros at the others: 3 x (B, T, D) -> (B, T, D)."""
    real = np.arange(q.shape[1]) < lengths[:, None]  # (B, T)
    scores = q @ k.swapaxes(1, 2) / q.shape[2] ** 0.5  # (B, T, T)
    # Hiding the padding as keys keeps it out of every weight and every denominator: each real row is as it would be
    # alone. Nothing hides the padding as queries: it looks at the real places, and what it sees there is thrown away.
    scores = np.where(real[:, None, :], scores, -np.inf)  # (B, T, T)
    weights = np.exp(scores - scores.max(2, keepdims=True))  # (B, T, T)
    weights /= weights.sum(2, keepdims=True)
    return np.where(real[:, :, None], weights @ v, 0.0)  # (B, T, D)


def reachable(visible: np.ndarray, layers: int) -> np.ndarray:
    """Whether what place j holds can matter at place i after so many layers: bool (T, T) -> bool (T, T)."""
    # An arrow for each pair that may look, and a loop at each place for the residual path. After two layers j matters
    # at i where some place m looks at j and i looks at m: a product of matrices, of which only "zero or not" counts.
    # With a window of 10, news travels 9 places in a layer: 99 places need 11 layers.
    arrows = visible | np.eye(len(visible), dtype=bool)  # (T, T)
    reached = np.eye(len(visible), dtype=bool)  # (T, T): with no layers each place knows itself
    for _ in range(layers):
        reached = arrows @ reached
    return reached


def streaming(query: np.ndarray, pairs: Iterator[tuple[np.ndarray, np.ndarray]]) -> np.ndarray:
    """Attention of one query (D,) to keys (D,) and values (d,) that come by one at a time and once: -> (d,)."""
    # Numerator and denominator of the softmax are sums, so they can grow as the pairs come. Both are kept divided by
    # exp(highest score so far), which keeps them from overflowing; when the highest rises, they are scaled down to it.
    highest, below, above = -np.inf, 0.0, 0.0
    for key, value in pairs:
        score = query @ key / len(query) ** 0.5
        previous, highest = highest, max(highest, score)
        fade, weight = np.exp(previous - highest), np.exp(score - highest)  # the first time, exp(-inf) = 0
        below = fade * below + weight
        above = fade * above + weight * value  # (d,)
    return above / below  # (d,)
