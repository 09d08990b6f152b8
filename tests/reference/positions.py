"""Ways for places to enter a model in NumPy, one number at a time."""

import cmath
import math

import numpy as np


def rotary(x, size):
    """Rotate the vector at time t by the angles t * theta_i, for x of shape (time, head size D).

    Su et al., RoFormer, arXiv:2104.09864, eq. 14, 15 and 34, theta_i = 10000^(-2i/D), i = 0 ... D/2
    - 1. A pair is read as the complex number x_i + i x_{i + D/2} and multiplied by exp(i t
    theta_i): the layout of GPT-NeoX, whose pairs are half a head apart (the paper's own are
    neighbours). Only the first `size` channels are turned, as if they were the whole head.
    """
    out = x.copy()
    half = size // 2
    for t in range(len(x)):
        for i in range(half):
            turned = complex(x[t, i], x[t, i + half]) * cmath.exp(
                1j * t * 10000 ** (-2 * i / size)
            )
            out[t, i], out[t, i + half] = turned.real, turned.imag
    return out


def sinusoidal(time, dim):
    """The table (time, dim) that is added to the embeddings.

    Vaswani et al., arXiv:1706.03762, section 3.5: PE(pos, 2i) = sin(pos / 10000^(2i/d)) and
    PE(pos, 2i + 1) = cos(pos / 10000^(2i/d)).
    """

    def entry(t, channel):
        angle = t / 10000 ** (2 * (channel // 2) / dim)
        return math.cos(angle) if channel % 2 else math.sin(angle)

    return np.array([[entry(t, channel) for channel in range(dim)] for t in range(time)])
