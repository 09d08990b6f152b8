"""Position encodings: formulas in NumPy, because sampling runs without torch, and the model's tables as tensors."""

from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING

import numpy as np

from gpt.config import ModelConfig

if TYPE_CHECKING:
    import torch


def rotary_tables(positions: np.ndarray, channels: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the cosines and sines by which R = `channels` are rotated: (...) -> 2 x (..., ceil(R / 2)) float64.

    The angle of pair i at position t is t * 10000^(-2i/R).
    Source: RoFormer, arXiv:2104.09864, section 3.2.2.
    """
    angle = positions[..., None] * frequencies(channels)  # (..., R/2)
    return np.cos(angle), np.sin(angle)


@cache
def frequencies(channels: int) -> np.ndarray:
    """Return the angles between successive positions: (ceil(R / 2),) float64."""
    return np.array([10_000.0 ** (-i / channels) for i in range(0, channels, 2)])


def sinusoidal_table(positions: np.ndarray, dim: int) -> np.ndarray:
    """Return the sinusoidal encodings of `positions`: (...) -> (..., C) float64, with C = `dim`.

    At position t, channel 2i is sin(t * 10000^(-2i/C)) and channel 2i + 1 the cosine of the same
    angle. Source: Attention Is All You Need, arXiv:1706.03762, section 3.5.
    """
    cos, sin = rotary_tables(positions, dim)  # 2 x (..., ceil(C / 2))
    pairs = np.stack((sin, cos), axis=-1)  # (..., ceil(C / 2), 2)
    channels = pairs.reshape(*positions.shape, -1)  # (..., 2 ceil(C / 2))
    return channels[..., :dim]  # (..., C), without the last cosine if C is odd


TABLES: dict[str, Callable[[np.ndarray, int], tuple[np.ndarray, ...]]] = {
    "rotary": rotary_tables,
    "sinusoidal": lambda positions, dim: (sinusoidal_table(positions, dim),),
}


def position_tables(
    config: ModelConfig, length: int, device: "torch.device"
) -> "tuple[torch.Tensor, ...]":
    """Return the fp32 tables of the first T = `length` positions.

    Rotary: cosines and sines, (T, R/2) each. Sinusoidal: encodings, (T, C). Learned and none: an
    empty tuple.
    """
    if config.positions in ("learned", "none"):
        return ()
    # As long as needed, because a stranger's model may declare a huge context; the whole context
    # for a symbolic T.
    longest = length if isinstance(length, int) else config.context
    # a power of two, at least 64: few tables are cached
    rows = 1 << max(longest - 1, 63).bit_length()
    tables = _tables(config.positions, config.rotary_dims or config.dim, rows, device)
    return tuple(table[:length] for table in tables)


@cache
def _tables(
    positions: str, channels: int, rows: int, device: "torch.device"
) -> "tuple[torch.Tensor, ...]":
    import torch

    tables = TABLES[positions](np.arange(rows), channels)
    with torch.inference_mode(False):  # the cached tensors must also work in training
        return tuple(torch.from_numpy(table.astype(np.float32)).to(device) for table in tables)
