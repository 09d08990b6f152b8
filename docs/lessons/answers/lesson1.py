"""Answers to the exercises of lesson 1. Try each yourself first."""

from collections.abc import Iterator

import numpy as np


def recent_mean(x: np.ndarray, window: int) -> np.ndarray:
    """Mean of the last `window` rows up to each row, fewer at the start: (T, d) -> (T, d)."""
    here, there = np.indices((len(x), len(x)))  # (T, T) twice: query position, key position
    visible = (there <= here) & (there > here - window)  # (T, T)
    # Equal logits where visible, -inf elsewhere: the softmax of these is a mean.
    weights = np.exp(np.where(visible, 0.0, -np.inf))  # (T, T)
    return weights / weights.sum(1, keepdims=True) @ x  # (T, d)


def fold_scale(W_q: np.ndarray) -> np.ndarray:
    """Query weights (C, D) with which unscaled attention equals scaled attention with `W_q`."""
    # (x W_q) . k / sqrt(D) = (x (W_q / sqrt(D))) . k: a constant factor can be moved into a linear
    # map.
    return W_q / W_q.shape[1] ** 0.5


def padded_attention(
    q: np.ndarray, k: np.ndarray, v: np.ndarray, lengths: np.ndarray
) -> np.ndarray:
    """Attention among the first `lengths[b]` positions of row b, zeros at the others: 3 x (B, T, D) -> (B, T, D)."""
    real = np.arange(q.shape[1]) < lengths[:, None]  # (B, T)
    logits = q @ k.swapaxes(1, 2) / q.shape[2] ** 0.5  # (B, T, T)
    # Padding is masked as keys, so it is in no weight and no denominator: each real row is as it
    # would be alone. As queries it is not masked: it attends to the real positions, and the result
    # is thrown away below.
    logits = np.where(real[:, None, :], logits, -np.inf)  # (B, T, T)
    weights = np.exp(logits - logits.max(2, keepdims=True))  # (B, T, T)
    weights /= weights.sum(2, keepdims=True)
    return np.where(real[:, :, None], weights @ v, 0.0)  # (B, T, D)


def reachable(visible: np.ndarray, layers: int) -> np.ndarray:
    """Whether position j can influence position i after this many layers: bool (T, T) -> bool (T, T)."""
    # One arrow for each visible pair, and a loop at each position for the residual path. After two
    # layers j influences i if some position m attends to j and i attends to m: a matrix product,
    # of which only "zero or not" counts. With a window of 10, information travels 9 positions in a
    # layer: 99 positions need 11 layers.
    arrows = visible | np.eye(len(visible), dtype=bool)  # (T, T)
    # (T, T): without layers each position only knows itself
    reached = np.eye(len(visible), dtype=bool)
    for _ in range(layers):
        reached = arrows @ reached
    return reached


def streaming(query: np.ndarray, pairs: Iterator[tuple[np.ndarray, np.ndarray]]) -> np.ndarray:
    """Attention of one query (D,) to keys (D,) and values (d,) that are given one at a time, each once: -> (d,)."""
    # Numerator and denominator of the softmax are sums, so they can be summed pair by pair. Both
    # are divided by exp(highest logit so far), so they do not overflow; when the highest rises,
    # they are rescaled.
    highest, below, above = -np.inf, 0.0, 0.0
    for key, value in pairs:
        logit = query @ key / len(query) ** 0.5
        previous, highest = highest, max(highest, logit)
        # the first time, exp(-inf) = 0
        fade, weight = np.exp(previous - highest), np.exp(logit - highest)
        below = fade * below + weight
        above = fade * above + weight * value  # (d,)
    return above / below  # (d,)
