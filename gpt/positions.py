"""Position encodings: their formulas in NumPy, and the tables that the model needs as tensors.

Learned and sinusoidal encodings are added to the embeddings; rotary encodings rotate queries and keys. With
positions=none, a causal model can still infer the order of characters, but does not receive their distances. Only
`position_tables` imports torch, so that sampling starts fast without it.
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


TABLES: dict[str, Callable[[np.ndarray, int], tuple[np.ndarray, ...]]] = {
    "rotary": rotary_tables,
    "sinusoidal": lambda positions, dim: (sinusoidal_table(positions, dim),),
}


def position_tables(config: ModelConfig, length: int, device: "torch.device") -> "tuple[torch.Tensor, ...]":
    """Return the tables of the model's position encoding for the first T = `length` positions, as fp32 tensors.

    Rotary: cosines (T, R/2) and sines (T, R/2), with R rotated channels per head. Sinusoidal: encodings (T, C).
    Learned and none: an empty tuple.
    """
    if config.positions in ("learned", "none"):
        return ()
    # The tables are only as long as needed, because a stranger's model file may declare a huge context. While a graph
    # is exported, T is symbolic, so the tables must cover the whole context.
    longest = length if isinstance(length, int) else config.context
    rows = 1 << max(longest - 1, 63).bit_length()
    tables = _tables(config.positions, config.rotary_dims or config.dim, rows, device)
    return tuple(table[:length] for table in tables)


@cache
def _tables(positions: str, size: int, rows: int, device: "torch.device") -> "tuple[torch.Tensor, ...]":
    import torch

    tables = TABLES[positions](np.arange(rows), size)
    with torch.inference_mode(False):  # the cached tensors must also work in training
        return tuple(torch.from_numpy(table.astype(np.float32)).to(device) for table in tables)
