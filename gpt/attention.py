"""Causal multi-head self-attention, with QK-norm, rotary positions and offset keys."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gpt.attention_kernels import attend
from gpt.config import ModelConfig
from gpt.positions import position_tables, slopes_in


class Attention(nn.Module):
    """Causal multi-head self-attention: (B, T, dim) -> (B, T, dim).

    `qkv.weight` stacks the query, key and value projections, each with its heads in order: the layout of
    `nn.MultiheadAttention.in_proj_weight`, so weights can be copied from there.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.qkv = nn.Linear(config.dim, 3 * config.dim, bias=config.bias)
        self.proj = nn.Linear(config.dim, config.dim, bias=config.bias)

    def forward(self, x: Tensor, tables: tuple[Tensor, ...] | None = None) -> Tensor:
        """Attend from each position to itself and those before it: (B, T, dim) -> (B, T, dim).

        `tables` are the `position_tables` for T positions; with None, this function calls `position_tables` itself.
        """
        (B, T, C), config = x.shape, self.config
        tables = position_tables(config, T, x.device) if tables is None else tables
        q, k, v = self.queries_keys_values(x, tables)  # 3 x (B, H, T, D)
        y = attend(config, q, k, v, slopes_in(tables, config), self.training)  # (B, H, T, D)
        return self.proj(y.transpose(1, 2).reshape(B, T, C))  # (B, T, C)

    def queries_keys_values(self, x: Tensor, tables: tuple[Tensor, ...] = ()) -> tuple[Tensor, Tensor, Tensor]:
        """Return the queries, keys and values of all heads: (B, T, C) -> 3 x (B, H, T, D).

        As `config` says, queries and keys are normalised (`qk_norm`) and rotated (`rotate`, with the cosines and sines
        in `tables`), and the keys are offset (`offset_keys`).
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
    """Return x with each channel pair (i, i + R/2) rotated by the angle of its position: (B, H, T, D).

    If queries and keys are rotated, q . k depends on their distance and not on their positions.

    `x` contains queries or keys, (B, H, T, D); `cos` and `sin` are (T, R/2). Channels from R on are not changed.
    Source: RoFormer, arXiv:2104.09864, equation 34, with the two members of a pair R/2 apart (GPT-NeoX's layout).
    """
    cos, sin = cos.to(x.dtype), sin.to(x.dtype)
    half = cos.shape[-1]
    first, second, rest = x.split((half, half, x.shape[-1] - 2 * half), dim=-1)  # (B, H, T, R/2) twice, the rest
    return torch.cat((first * cos - second * sin, first * sin + second * cos, rest), dim=-1)  # (B, H, T, D)


def offset_keys(k: Tensor) -> Tensor:
    """Return the keys with the second half of each taken from the previous position: (B, H, T, D) -> (B, H, T, D).

    At the first position, the second half is zeros. With the offset, a single layer can look up what came after an
    earlier occurrence of a character. Without it, this needs two layers that work together (an induction head).
    Source: the partial key offset of modded-nanogpt (https://github.com/KellerJordan/modded-nanogpt).
    """
    half = k.shape[-1] // 2
    own, moved = k.split((k.shape[-1] - half, half), dim=-1)  # (B, H, T, D - half), (B, H, T, half)
    return torch.cat((own, F.pad(moved, (0, 0, 1, -1))), dim=-1)  # (B, H, T, D)
