"""How a character's place in the window enters the model: the formulas, in NumPy, for the model and the decoder.

Learned and sinusoidal places are added to the embeddings; rotary ones turn queries and keys, ALiBi lowers the scores
of attention by distance. Without any, a causal model still sees which characters come before which, but not how far.
"""

from functools import cache

import numpy as np

BASE = 10_000.0


def rotary_tables(places: np.ndarray, channels: int, base: float = BASE) -> tuple[np.ndarray, np.ndarray]:
    """Return the cosines and sines of the angles t * base^(-2i/R) for place t and pair i.

    Source: RoFormer, arXiv:2104.09864, section 3.2.2.

    Args:
        places: of any shape (...).
        channels: how many channels R of a head are turned.
        base: the slowest pair turns once in 2 pi * base^(1 - 2/R) places.

    Returns:
        Two float64 arrays (..., R / 2), rounded up. In float64 the same place has the same angle on every machine.
    """
    angle = places[..., None] * _frequencies(channels, base)  # (..., R/2)
    return np.cos(angle), np.sin(angle)


@cache
def _frequencies(channels: int, base: float) -> np.ndarray:
    return np.array([base ** (-i / channels) for i in range(0, channels, 2)])  # (R/2,)


def sinusoidal_table(places: np.ndarray, dim: int) -> np.ndarray:
    """Return the encoding of each place: channel 2i is sin(t * 10000^(-2i/C)), channel 2i + 1 its cosine.

    Source: Attention Is All You Need, arXiv:1706.03762, section 3.5.

    Args:
        places: of any shape (...).
        dim: number of channels C.

    Returns:
        (..., C) float64.
    """
    cos, sin = rotary_tables(places, dim)
    return np.stack((sin, cos), axis=-1).reshape(*places.shape, -1)[..., :dim]  # (..., C)


def alibi_slopes(heads: int) -> np.ndarray:
    """Return how much the scores of each head fall with every place of distance, for ALiBi.

    A geometric sequence: 2^(-8/H), 2^(-16/H), ..., 2^-8 where H is a power of two. Otherwise that of the power of two
    below, and then every other slope of the sequence for the power above.
    Source: Train Short, Test Long, arXiv:2108.12409, section 3, and the authors' code for other numbers of heads.

    Returns:
        (H,) float64.
    """
    below = 1 << (heads.bit_length() - 1)  # the largest power of two that is no more than H
    h = np.arange(heads)
    return 2.0 ** (-8 * np.where(h < below, (h + 1) / below, (2 * (h - below) + 1) / (2 * below)))
