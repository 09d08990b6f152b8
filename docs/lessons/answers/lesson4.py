"""Answers to the exercises of lesson 4: look here after trying."""

import numpy as np


def window_multiplications(T: int, N: int, D: int) -> int:
    """A place sees N, itself the last, but for the first N - 1, which see 1, ..., N - 1; a pair takes 2 D products."""
    N = min(N, T)  # a window that is longer than the text is the whole text
    missing = N * (N - 1) // 2  # (N - 1) + ... + 1: what the first places lack of a full window
    return 2 * D * (T * N - missing)


def receptive_field(layers: int, N: int, T: int) -> tuple[int, int]:
    """Each layer leads N - 1 places further back, so `layers` of them see layers * (N - 1) + 1 places, if there are."""
    enough = -(-(T - 1) // (N - 1))  # T - 1 places back, rounded up
    return min(T, layers * (N - 1) + 1), enough


def cache_bytes(layers: int, heads: int, D: int, T: int, size: int, N: int | None) -> int:
    """A key and a value of D numbers for each layer, each head, and each place that is still seen."""
    places = T if N is None else min(T, N)
    return 2 * layers * heads * D * places * size


def linear_recurrence(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
    """The state is a matrix S, what was stored under which key, and z, the sum of the keys."""
    S, z, out = np.zeros((k.shape[1], v.shape[1])), np.zeros(k.shape[1]), np.empty_like(v)
    for i in range(len(q)):
        S += np.outer(k[i], v[i])  # store the value under its key, beside all others
        z += k[i]
        out[i] = q[i] @ S / (q[i] @ z)
    return out


def merge(out1: np.ndarray, l1: np.ndarray, out2: np.ndarray, l2: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Each result is a sum over its keys divided by e^l: weigh the two by e^l, as shares of their sum.

    Only differences of logarithms go through the exponential, and none of them is above 0: logaddexp(l1, l2) is
    ln(e^l1 + e^l2), computed in that way, too.
    """
    both = np.logaddexp(l1, l2)
    share1, share2 = np.exp(l1 - both), np.exp(l2 - both)
    return share1[:, None] * out1 + share2[:, None] * out2, both
