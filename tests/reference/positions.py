"""Rotary position embedding in NumPy, one pair at a time."""

import cmath

import numpy as np


def rotary(x: np.ndarray, base: float = 10000.0, channels: int | None = None) -> np.ndarray:
    """Rotate the vector at time t by the angles t * theta_i, for x of shape (time, head size D).

    Su et al., RoFormer, arXiv:2104.09864, eq. 14, 15 and 34, theta_i = base^(-2i/D), i = 0 ... D/2 - 1. A pair is
    read as the complex number x_i + i x_{i + D/2} and multiplied by exp(i t theta_i): the layout of GPT-NeoX,
    whose pairs are half a head apart (the paper's own are neighbours). With `channels` only so many are
    turned, as if they were the whole head.
    """
    time, size = x.shape
    size = size if channels is None else channels
    half = size // 2
    out = x.copy()
    for t in range(time):
        for i in range(half):
            turned = complex(x[t, i], x[t, i + half]) * cmath.exp(1j * t * base ** (-2 * i / size))
            out[t, i], out[t, i + half] = turned.real, turned.imag
    return out
