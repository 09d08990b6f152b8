"""Answers to the exercises of lesson 4. Try each yourself first."""

import numpy as np


def window_multiplications(T: int, N: int, D: int) -> int:
    """Each position attends to N, itself included, the first N - 1 to 1, ..., N - 1; a pair takes 2 D products."""
    N = min(N, T)  # a window that is longer than the text is the whole text
    missing = N * (N - 1) // 2  # (N - 1) + ... + 1: what the first positions lack of a full window
    return 2 * D * (T * N - missing)


def receptive_field(layers: int, N: int, T: int) -> tuple[int, int]:
    """Each layer reaches N - 1 positions further back: layers * (N - 1) + 1 positions in all, at most T."""
    enough = -(-(T - 1) // (N - 1))  # T - 1 positions back, rounded up
    return min(T, layers * (N - 1) + 1), enough


def cache_bytes(layers: int, heads: int, D: int, T: int, size: int, N: int | None) -> int:
    """A key and a value of D numbers for each layer, each head, and each position in the window."""
    positions = T if N is None else min(T, N)
    return 2 * layers * heads * D * positions * size


def linear_recurrence(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
    """The state is a matrix S, the sum of outer products of keys and values, and z, the sum of the keys."""
    S, z, out = np.zeros((k.shape[1], v.shape[1])), np.zeros(k.shape[1]), np.empty_like(v)
    for i in range(len(q)):
        S += np.outer(k[i], v[i])  # add the value under its key
        z += k[i]
        out[i] = q[i] @ S / (q[i] @ z)
    return out


def merge(
    out1: np.ndarray, l1: np.ndarray, out2: np.ndarray, l2: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Average the two results with the weights e^l1 and e^l2, divided by their sum.

    Only differences of logarithms are exponentiated, and none is above 0. logaddexp(l1, l2)
    computes ln(e^l1 + e^l2) in the same way.
    """
    both = np.logaddexp(l1, l2)
    weight1, weight2 = np.exp(l1 - both), np.exp(l2 - both)
    return weight1[:, None] * out1 + weight2[:, None] * out2, both
