"""Causal multi-head self-attention and its kernels."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gpt.config import ModelConfig
from gpt.dropout import dropout as drop
from gpt.positions import rotary_tables, rotate


def explicit_attention(q: Tensor, k: Tensor, v: Tensor, dropout: float = 0.0) -> Tensor:
    """softmax(q k^T / sqrt(D) + mask) v, written out as two batched products.

    Source: Attention Is All You Need, arXiv:1706.03762, equation 1, with the causal mask of section 3.2.3.
    On a CPU this is up to three times faster than torch's fused kernel, whose backward is slow there.

    Args:
        q: queries, (B, H, T, D); `k` and `v` alike.
        k: keys.
        v: values.
        dropout: share of the attention weights set to zero.
    """
    B, H, T, D = q.shape
    q, k, v = (x.reshape(B * H, T, D) for x in (q, k, v))  # (B*H, T, D)
    mask = torch.full((T, T), -math.inf, dtype=q.dtype, device=q.device).triu(1)
    scores = torch.baddbmm(mask.expand(B * H, T, T), q, k.transpose(1, 2), alpha=D**-0.5)  # (B*H, T, T)
    # What softmax(dim=-1) calls (private by name), below autocast, which would widen the scores to fp32 and narrow
    # them again: twice the memory traffic, where the kernel accumulates in fp32 anyway. Switching autocast off around
    # it would keep torch.compile from caching what it makes of a block.
    weights = drop(torch._softmax(scores, -1, False), dropout)  # (B*H, T, T)
    return (weights @ v).view(B, H, T, D)  # (B, H, T, D)


def fused_attention(q: Tensor, k: Tensor, v: Tensor, dropout: float = 0.0) -> Tensor:
    """The same as `explicit_attention` through torch's fused kernel."""
    return F.scaled_dot_product_attention(q, k, v, dropout_p=dropout, is_causal=True)


def offset_keys(k: Tensor) -> Tensor:
    """Take the second half of each key from the place before, zeros at the first place.

    A query can then ask for "what came after such a character" and find it in one layer, where a model must
    otherwise learn two that work together (an induction head).
    Source: the partial key offset of modded-nanogpt (https://github.com/KellerJordan/modded-nanogpt).

    Args:
        k: keys, (B, H, T, D).
    """
    half = k.shape[-1] // 2
    own, moved = k.split((k.shape[-1] - half, half), dim=-1)  # (B, H, T, D - half), (B, H, T, half)
    return torch.cat((own, F.pad(moved, (0, 0, 1, -1))), dim=-1)  # (B, H, T, D)


class Attention(nn.Module):
    """Causal multi-head self-attention: (B, T, dim) -> (B, T, dim).

    `qkv.weight` holds the query, key and value projections one above the other, each with its heads in
    order: the layout of `nn.MultiheadAttention.in_proj_weight`, so weights can be copied from there.
    """

    cos: Tensor
    sin: Tensor

    def __init__(self, config: ModelConfig) -> None:
        """Make the layer for one block of the model that `config` describes."""
        super().__init__()
        self.heads = config.heads
        self.dropout = config.dropout
        self.qk_norm = config.qk_norm
        self.kernel = config.attention
        self.qkv = nn.Linear(config.dim, 3 * config.dim, bias=config.bias)
        self.proj = nn.Linear(config.dim, config.dim, bias=config.bias)
        self.key_offset = config.key_offset
        self.rotary = config.positions == "rotary"
        if self.rotary:
            # The offset half of a key is for finding a character wherever it stands: it is not turned by its place.
            turned = config.head_dim // 2 if config.key_offset else config.head_dim
            cos, sin = rotary_tables(config.context, turned)
            self.register_buffer("cos", cos, persistent=False)
            self.register_buffer("sin", sin, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """Let every place look at itself and at the places before it."""
        B, T, C = x.shape
        q, k, v = self.queries_keys_values(x)  # 3 x (B, H, T, D)
        explicit = self.kernel == "explicit" or (self.kernel == "auto" and x.device.type == "cpu")
        attend = explicit_attention if explicit else fused_attention
        y = attend(q, k, v, self.dropout if self.training else 0.0)
        return self.proj(y.transpose(1, 2).reshape(B, T, C))  # (B, T, C)

    def queries_keys_values(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """What attention is computed from: (B, T, C) -> 3 x (B, H, T, D)."""
        B, T, C = x.shape
        qkv = self.qkv(x).view(B, T, 3, self.heads, C // self.heads)  # (B, T, 3, H, D)
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)  # 3 x (B, H, T, D)
        if self.qk_norm:
            q, k = F.rms_norm(q, q.shape[-1:]), F.rms_norm(k, k.shape[-1:])
        if self.rotary:
            q, k = rotate(q, self.cos[:T], self.sin[:T]), rotate(k, self.cos[:T], self.sin[:T])
        if self.key_offset:
            k = offset_keys(k)
        return q, k, v
