"""Position encodings: their formulas in NumPy, and the tables that the model needs as tensors.

Learned and sinusoidal encodings are added to the embeddings, rotary encodings rotate queries and keys, and ALiBi lowers
attention scores in proportion to the distance. With positions=none, a causal model can still infer the order of
characters, but does not receive their distances. Only `position_tables` imports torch, so that sampling starts fast
without it.
"""

from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING

import numpy as np

from gpt.config import ModelConfig

if TYPE_CHECKING:
    import torch


def rotary_tables(positions: np.ndarray, channels: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the cosines and sines of the angles by which rotary positions rotate pairs of channels.

    The angle of pair i at position t is t * 10000^(-2i/R).
    Source: RoFormer, arXiv:2104.09864, section 3.2.2.

    Args:
        positions: the positions, of any shape (...).
        channels: the number of rotated channels, R.

    Returns:
        A tuple (cosines, sines) of arrays (..., ceil(R / 2)), float64 so that angles are the same on every machine.
    """
    angle = positions[..., None] * _frequencies(channels)  # (..., R/2)
    return np.cos(angle), np.sin(angle)


@cache
def _frequencies(channels: int) -> np.ndarray:
    return np.array([10_000.0 ** (-i / channels) for i in range(0, channels, 2)])  # (R/2,)


def sinusoidal_table(positions: np.ndarray, dim: int) -> np.ndarray:
    """Return the sinusoidal encodings of `positions`, with C = `dim` channels: (...) -> (..., C) float64.

    For position t, channel 2i is sin(t * 10000^(-2i/C)), and channel 2i + 1 is the cosine of the same angle.
    Source: Attention Is All You Need, arXiv:1706.03762, section 3.5.
    """
    cos, sin = rotary_tables(positions, dim)
    return np.stack((sin, cos), axis=-1).reshape(*positions.shape, -1)[..., :dim]  # (..., C)


def alibi_slopes(heads: int) -> np.ndarray:
    """Return ALiBi's slopes for H = `heads` attention heads: (H,) float64.

    The attention scores of head h fall by slope h for each position of distance from query to key. If H is a power of
    two, the slopes are 2^(-8/H), 2^(-16/H), ..., 2^-8. Otherwise they are the slopes for the next smaller power of two,
    followed by every other slope for the next larger power of two.
    Source: Train Short, Test Long, arXiv:2108.12409, section 3, and the authors' code for other numbers of heads.
    """
    below = 1 << (heads.bit_length() - 1)  # the largest power of two that is at most H
    h = np.arange(heads)
    return 2.0 ** (-8 * np.where(h < below, (h + 1) / below, (2 * (h - below) + 1) / (2 * below)))


TABLES: dict[str, Callable[[np.ndarray, int], tuple[np.ndarray, ...]]] = {
    "rotary": rotary_tables,
    "sinusoidal": lambda positions, dim: (sinusoidal_table(positions, dim),),
    "alibi": lambda _, heads: (alibi_slopes(heads),),
}


def position_tables(config: ModelConfig, length: int, device: "torch.device") -> "tuple[torch.Tensor, ...]":
    """Return the tables of the model's position encoding for the first T = `length` positions, as fp32 tensors.

    Rotary: cosines (T, R/2) and sines (T, R/2), with R rotated channels per head. Sinusoidal: encodings (T, C). ALiBi:
    slopes (H,). Learned and none: an empty tuple.
    """
    if config.positions in ("learned", "none"):
        return ()
    if config.positions == "alibi":
        return _tables("alibi", config.heads, 0, device)
    # The tables are only as long as needed, because a stranger's model file may declare a huge context. While a graph
    # is exported, T is symbolic, so the tables must cover the whole context.
    longest = length if isinstance(length, int) else config.context
    rows = 1 << max(longest - 1, 63).bit_length()
    tables = _tables(config.positions, config.rotary_dims or config.dim, rows, device)
    return tuple(table[:length] for table in tables)


def slopes_in(tables: "tuple[torch.Tensor, ...]", config: ModelConfig) -> "torch.Tensor | None":
    """Return ALiBi's slopes, (H,), or None if `config.positions` is not alibi.

    `tables` is the result of `position_tables` for the same `config`.
    """
    return tables[0] if config.positions == "alibi" else None


@cache
def _tables(positions: str, size: int, rows: int, device: "torch.device") -> "tuple[torch.Tensor, ...]":
    import torch

    tables = TABLES[positions](np.arange(rows), size)
    with torch.inference_mode(False):  # the cached tensors must also work in training
        return tuple(torch.from_numpy(table.astype(np.float32)).to(device) for table in tables)
