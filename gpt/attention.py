"""Causal multi-head self-attention with optional QK-norm, rotary positions and key offset (`offset_keys`).

Shapes: B windows, T tokens in a window, C = dim, H heads of size D = C / H, R rotated channels per head.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gpt.attention_kernels import attend
from gpt.config import ModelConfig
from gpt.positions import position_tables


class Attention(nn.Module):
    """Causal multi-head self-attention: (B, T, dim) -> (B, T, dim).

    `qkv.weight`, (3 * dim, dim), stacks the projections to queries, keys and values. Its layout is that of
    `nn.MultiheadAttention.in_proj_weight`, so weights can be copied between the two.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.qkv = nn.Linear(config.dim, 3 * config.dim, bias=config.bias)
        self.proj = nn.Linear(config.dim, config.dim, bias=config.bias)

    def forward(self, x: Tensor, tables: tuple[Tensor, ...] | None = None) -> Tensor:
        """Return the attention output, each position attending to itself and earlier ones: (B, T, dim) -> (B, T, dim).

        `tables` is the result of `position_tables` for T positions. If it is None, `forward` calls `position_tables`
        itself.
        """
        (B, T, C), config = x.shape, self.config
        tables = position_tables(config, T, x.device) if tables is None else tables
        q, k, v = self.queries_keys_values(x, tables)  # 3 x (B, H, T, D)
        y = attend(config, q, k, v, self.training)  # (B, H, T, D)
        return self.proj(y.transpose(1, 2).reshape(B, T, C))  # (B, T, C)

    def queries_keys_values(self, x: Tensor, tables: tuple[Tensor, ...] = ()) -> tuple[Tensor, Tensor, Tensor]:
        """Return the queries, keys and values of all heads: (B, T, C) -> 3 x (B, H, T, D).

        Queries and keys are normalised if `config.qk_norm` is true, and rotated (`rotate`) if the model has rotary
        positions. Keys are then offset (`offset_keys`) if `config.key_offset` is true. `tables` is the result of
        `position_tables`, which for rotary positions is (cosines, sines).
        """
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
    """Return queries or keys x with pairs of channels rotated by angles that depend on the position: (B, H, T, D).

    Of the D channels, the first R are rotated: channels i and i + R/2 form a pair for i < R/2 (GPT-NeoX's layout).
    `cos` and `sin`, (T, R/2), are the cosines and sines of the angles. If both queries and keys are rotated, q . k
    depends on the distance between their positions, not on the positions themselves.
    Source: RoFormer, arXiv:2104.09864, equation 34.
    """
    cos, sin = cos.to(x.dtype), sin.to(x.dtype)
    half = cos.shape[-1]
    first, second, rest = x.split((half, half, x.shape[-1] - 2 * half), dim=-1)  # (B, H, T, R/2) twice, the rest
    return torch.cat((first * cos - second * sin, first * sin + second * cos, rest), dim=-1)  # (B, H, T, D)


def offset_keys(k: Tensor) -> Tensor:
    """Return the keys, each with half of its channels taken from the previous position: (B, H, T, D) -> (B, H, T, D).

    The last D // 2 channels of each head are taken from the previous position. At the first position they are zeros.
    With the offset, a single layer can look up what came after an earlier occurrence of a character, which otherwise
    requires two layers (an induction head).
    Source: the partial key offset of modded-nanogpt (https://github.com/KellerJordan/modded-nanogpt).
    """
    half = k.shape[-1] // 2
    own, moved = k.split((k.shape[-1] - half, half), dim=-1)  # (B, H, T, D - half), (B, H, T, half)
    return torch.cat((own, F.pad(moved, (0, 0, 1, -1))), dim=-1)  # (B, H, T, D)
