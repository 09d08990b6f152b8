"""Causal multi-head self-attention with QK-norm, rotary positions and key offset, and two ways to compute it.

Shapes: B windows, T tokens in a window (queries), M keys, C = dim, H heads of size D = C / H, R rotated channels per
head.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gpt.config import ModelConfig
from gpt.dropout import dropout as drop
from gpt.positions import position_tables

FUSED_FROM = 1024  # length in tokens from which torch's fused kernel trains faster on a CPU
MIN_BLOCK = 16  # minimum queries per block of a window: matmuls of smaller blocks are slow


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


def attend(config: ModelConfig, q: Tensor, k: Tensor, v: Tensor, training: bool) -> Tensor:
    """Return the output of causal attention: 3 x (B, H, T, D) -> (B, H, T, D).

    With a window, a long text is cut into blocks of b >= `window` positions, so that the cost is linear in T: the
    queries of a block need only the keys of the same block and of the one before. While a graph is exported, T is
    symbolic, so no condition may depend on its value.
    Source: Longformer, arXiv:2004.05150, section 3.1 and appendix A ("sliding chunks").
    """
    (B, H, T, D), window, symbolic = q.shape, config.window, isinstance(q.shape[2], torch.SymInt)
    dropout = config.dropout if training else 0.0
    whole = window is None or not (symbolic or window < T)
    b = max(window or 0, MIN_BLOCK)
    explicit = is_explicit(config, T, T if whole else 2 * b, q.device.type, training)
    compute = explicit_attention if explicit else fused_attention
    if whole:
        return compute(q, k, v, None, dropout)  # (B, H, T, D)
    if symbolic or T <= 2 * b:
        positions = torch.arange(T, device=q.device)  # (T,)
        return compute(q, k, v, make_mask(positions, positions, window), dropout)  # (B, H, T, D)
    n = -(-T // b)
    q, k, v = (F.pad(x, (0, 0, 0, n * b - T)).view(B, H, n, b, D) for x in (q, k, v))  # (B, H, n, b, D)
    k, v = (torch.cat((F.pad(x, (0, 0, 0, 0, 1, -1)), x), dim=3) for x in (k, v))  # (B, H, n, 2b, D)
    positions = torch.arange(n * b, device=q.device).view(n, b)  # (n, b)
    mask = make_mask(positions, torch.cat((positions - b, positions), dim=1), window).repeat(H, 1, 1)  # (H*n, b, 2b)
    y = compute(q.flatten(1, 2), k.flatten(1, 2), v.flatten(1, 2), mask, dropout)  # (B, H*n, b, D)
    return y.reshape(B, H, n * b, D)[:, :, :T]  # (B, H, T, D)


def is_explicit(config: ModelConfig, length: int, keys: int, device: str, training: bool) -> bool:
    """Return whether to use `explicit_attention`: what `config.attention` says or, if that is `auto`, is faster.

    On a CPU, the fused kernel has a slow backward and no dropout, and is slow for the blocks of a window, whose queries
    see fewer `keys` than the text has.
    """
    if config.attention != "auto":
        return {"explicit": True, "sdpa": False}[config.attention]
    if device != "cpu" or isinstance(length, torch.SymInt):
        return device == "cpu"
    return length > keys or (training and (length < FUSED_FROM or config.dropout > 0))


def explicit_attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None, dropout: float = 0.0) -> Tensor:
    """Return softmax(q k^T / sqrt(D) + mask) v: (B, H, T, D), 2 x (B, H, M, D) -> (B, H, T, D).

    `mask` is (T, M) or (H, T, M); None is causal and requires M = T. Dropout applies to the attention weights.
    Source: Attention Is All You Need, arXiv:1706.03762, equation 1, with the causal mask of section 3.2.3.
    """
    (B, H, T, D), M = q.shape, k.shape[2]
    if mask is None:
        mask = torch.full((T, T), -math.inf, dtype=q.dtype, device=q.device).triu(1)
    q, k, v = (x.reshape(B * H, -1, D) for x in (q, k, v))  # (B*H, T or M, D)
    added = mask.to(q.dtype).expand(B, H, T, M).reshape(B * H, T, M)  # no copy of a mask that is equal in all heads
    scores = torch.baddbmm(added, q, k.transpose(1, 2), alpha=D**-0.5)  # (B*H, T, M)
    # Without a dtype, autocast would widen the scores to fp32, although the kernel accumulates in fp32 anyway.
    weights = drop(torch.softmax(scores, -1, dtype=scores.dtype), dropout)  # (B*H, T, M)
    return (weights @ v).view(B, H, T, D)  # (B, H, T, D)


def fused_attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None, dropout: float = 0.0) -> Tensor:
    """Like `explicit_attention`, with PyTorch's fused kernel."""
    mask = None if mask is None else mask.to(q.dtype)[None]  # (1, T, M) or (1, H, T, M)
    return F.scaled_dot_product_attention(q, k, v, mask, dropout, is_causal=mask is None)  # (B, H, T, D)


def make_mask(queries: Tensor, keys: Tensor, window: int | None = None) -> Tensor:
    """Return the mask to add to scores: 0 for the last `window` keys up to the query's own, -inf for all others.

    `queries`, (..., T), and `keys`, (..., M), are positions, of which negative ones are padding -> (..., T, M) float32.
    Source: Mistral 7B, arXiv:2310.06825, section 2, for the window.
    """
    distance = queries[..., :, None] - keys[..., None, :]  # (..., T, M)
    hidden = (distance < 0) | (keys < 0)[..., None, :]  # (..., T, M)
    if window is not None:
        hidden = hidden | (distance >= window)
    return torch.zeros_like(distance, dtype=torch.float32).masked_fill(hidden, -math.inf)  # (..., T, M)
