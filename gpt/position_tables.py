"""The tables of `gpt.positions` as cached tensors, one copy for all layers."""

from functools import cache

import numpy as np
import torch
from torch import Tensor

from gpt.config import ModelConfig
from gpt.positions import alibi_slopes, rotary_tables, sinusoidal_table


def position_tables(config: ModelConfig, length: int, device: torch.device) -> tuple[Tensor, ...]:
    """Return the float32 tables of the model's position encoding for the first T positions; T is at most `context`.

    Rotary: cosines (T, R/2) and sines (T, R/2); sinusoidal: (T, C); ALiBi: slopes (H,); learned and none: no table.
    """
    if config.positions == "alibi":
        return _tables("alibi", config.heads, 0, device)
    if config.positions not in ("rotary", "sinusoidal"):
        return ()
    # Only as long as they must be, since a model file from a stranger may name a huge context. Export has a symbolic T.
    longest = length if isinstance(length, int) else config.context
    rows = 1 << max(longest - 1, 63).bit_length()
    tables = _tables(config.positions, config.rotary_dims or config.dim, rows, device)
    return tuple(table[:length] for table in tables)


@cache
def _tables(positions: str, size: int, rows: int, device: torch.device) -> tuple[Tensor, ...]:
    tables: tuple[np.ndarray, ...]
    if positions == "rotary":
        tables = rotary_tables(np.arange(rows), size)
    else:
        tables = (sinusoidal_table(np.arange(rows), size) if positions == "sinusoidal" else alibi_slopes(size),)
    with torch.inference_mode(False):  # the cached tensors must also work in training
        return tuple(torch.from_numpy(table.astype(np.float32)).to(device) for table in tables)
