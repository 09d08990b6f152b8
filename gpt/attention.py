"""Causal multi-head self-attention with QK-norm, rotary positions and key offset.

Shapes: B windows, T tokens in a window, C = dim, H heads of size D = C / H, R rotated channels per head.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gpt.attention_kernels import attend
from gpt.config import ModelConfig
from gpt.positions import position_tables


class Attention(nn.Module):
    """Causal multi-head self-attention: (B, T, C) -> (B, T, C).

    `qkv.weight`, (3C, C), stacks the projections to queries, keys and values like `nn.MultiheadAttention`.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.qkv = nn.Linear(config.dim, 3 * config.dim, bias=config.bias)
        self.proj = nn.Linear(config.dim, config.dim, bias=config.bias)

    def forward(self, x: Tensor, tables: tuple[Tensor, ...] | None = None) -> Tensor:
        """Attend from each position to itself and earlier ones; `tables` are the `position_tables` of T positions."""
        (B, T, C), config = x.shape, self.config
        tables = position_tables(config, T, x.device) if tables is None else tables
        q, k, v = self.queries_keys_values(x, tables)  # 3 x (B, H, T, D)
        y = attend(config, q, k, v, self.training)  # (B, H, T, D)
        return self.proj(y.transpose(1, 2).reshape(B, T, C))  # (B, T, C)

    def queries_keys_values(self, x: Tensor, tables: tuple[Tensor, ...] = ()) -> tuple[Tensor, Tensor, Tensor]:
        """Return the queries, keys and values of all heads: (B, T, C) -> 3 x (B, H, T, D)."""
        (B, T, C), config = x.shape, self.config
        qkv = self.qkv(x).view(B, T, 3, config.heads, C // config.heads)  # (B, T, 3, H, D)
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)  # 3 x (B, H, T, D)
        if config.qk_norm:
            q, k = F.rms_norm(q, q.shape[-1:]), F.rms_norm(k, k.shape[-1:])
        if config.rotary_dims:
            q, k = rotate(q, *tables), rotate(k, *tables)
        if config.key_offset:
            k = offset_keys(k)
        return q, k, v


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate pairs of channels by angles that grow with the position: (B, H, T, D) -> (B, H, T, D).

    Of the first R channels, i and i + R/2 form a pair (GPT-NeoX's layout); `cos` and `sin`, (T, R/2), are of the
    angles. The product q . k of a rotated query and key then depends only on the distance between their positions.
    Source: RoFormer, arXiv:2104.09864, equation 34.
    """
    cos, sin = cos.to(x.dtype), sin.to(x.dtype)
    half = cos.shape[-1]
    first, second, rest = x.split((half, half, x.shape[-1] - 2 * half), dim=-1)  # (B, H, T, R/2) twice, the rest
    return torch.cat((first * cos - second * sin, first * sin + second * cos, rest), dim=-1)  # (B, H, T, D)


def offset_keys(k: Tensor) -> Tensor:
    """Take the last D // 2 channels of each key from the previous position: (B, H, T, D) -> (B, H, T, D).

    At the first position they are zeros. One layer can then look up what followed an earlier occurrence of a
    character, for which an induction head needs two.
    Source: the partial key offset of modded-nanogpt (https://github.com/KellerJordan/modded-nanogpt).
    """
    half = k.shape[-1] // 2
    own, moved = k.split((k.shape[-1] - half, half), dim=-1)  # (B, H, T, D - half), (B, H, T, half)
    return torch.cat((own, F.pad(moved, (0, 0, 1, -1))), dim=-1)  # (B, H, T, D)
