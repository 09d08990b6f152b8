"""Causal multi-head self-attention with QK-norm, rotary positions and key offset, and two ways to compute it.

Shapes: B windows, T tokens in a window (queries), M keys, C = dim, H heads of size D = C / H, R
rotated channels per head.
"""

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gpt.config import ModelConfig
from gpt.dropout import dropout as drop
from gpt.positions import position_tables

FUSED_FROM = 1024  # length in tokens from which torch's fused kernel trains faster on a CPU
MIN_BLOCK = 16  # minimum queries per block of a window: matmuls of smaller blocks are slow
# of q, k, v, mask, dropout
Kernel = Callable[[Tensor, Tensor, Tensor, Tensor | None, float], Tensor]


class Attention(nn.Module):
    """Causal multi-head self-attention: (B, T, C) -> (B, T, C).

    `qkv.weight`, (3C, C), stacks the projections to queries, keys and values like
    `nn.MultiheadAttention`.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.qkv = nn.Linear(config.dim, 3 * config.dim, bias=config.bias)
        self.proj = nn.Linear(config.dim, config.dim, bias=config.bias)

    def forward(self, x: Tensor, tables: tuple[Tensor, ...] | None = None) -> Tensor:
        """Attend from each position to itself and earlier ones; `tables` are the `position_tables` of T positions."""
        B, T, C = x.shape
        if tables is None:
            tables = position_tables(self.config, T, x.device)
        q, k, v = self.queries_keys_values(x, tables)  # 3 x (B, H, T, D)
        y = attend(self.config, q, k, v, self.training)  # (B, H, T, D)
        y = y.transpose(1, 2).reshape(B, T, C)  # (B, T, C)
        return self.proj(y)  # (B, T, C)

    def queries_keys_values(
        self, x: Tensor, tables: tuple[Tensor, ...] = ()
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return the queries, keys and values of all heads: (B, T, C) -> 3 x (B, H, T, D).

        `tables` are the `position_tables`, which only rotary positions need here.
        """
        B, T, C = x.shape
        H = self.config.heads
        D = C // H
        qkv = self.qkv(x).view(B, T, 3, H, D)  # (B, T, 3, H, D)
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)  # 3 x (B, H, T, D)
        if self.config.qk_norm:
            q = F.rms_norm(q, (D,))
            k = F.rms_norm(k, (D,))
        if self.config.rotary_dims:
            q = rotate(q, *tables)
            k = rotate(k, *tables)
        if self.config.key_offset:
            k = offset_keys(k)
        return q, k, v


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate pairs of channels by angles that grow with the position: (B, H, T, D) -> (B, H, T, D).

    Of the first R channels, i and i + R/2 form a pair (GPT-NeoX's layout); `cos` and `sin`, (T,
    R/2), are of the angles. The product q . k of a rotated query and key then depends only on the
    distance between their positions. Source: RoFormer, arXiv:2104.09864, equation 34.
    """
    cos = cos.to(x.dtype)  # (T, R/2)
    sin = sin.to(x.dtype)  # (T, R/2)
    half = cos.shape[-1]
    sizes = (half, half, x.shape[-1] - 2 * half)
    first, second, rest = x.split(sizes, dim=-1)  # 2 x (B, H, T, R/2), (B, H, T, D - R)
    rotated_first = first * cos - second * sin  # (B, H, T, R/2)
    rotated_second = first * sin + second * cos  # (B, H, T, R/2)
    return torch.cat((rotated_first, rotated_second, rest), dim=-1)  # (B, H, T, D)


def offset_keys(k: Tensor) -> Tensor:
    """Take the last D // 2 channels of each key from the previous position: (B, H, T, D) -> (B, H, T, D).

    At the first position they are zeros. One layer can then look up what followed an earlier
    occurrence of a character, for which an induction head needs two. Source: the partial key
    offset of modded-nanogpt (https://github.com/KellerJordan/modded-nanogpt).
    """
    D = k.shape[-1]
    half = D // 2
    current, moved = k.split((D - half, half), dim=-1)  # (B, H, T, D - half), (B, H, T, half)
    previous = F.pad(moved, (0, 0, 1, -1))  # (B, H, T, half), one position later
    return torch.cat((current, previous), dim=-1)  # (B, H, T, D)


def attend(config: ModelConfig, q: Tensor, k: Tensor, v: Tensor, training: bool) -> Tensor:
    """Return the output of causal attention: 3 x (B, H, T, D) -> (B, H, T, D).

    Without a window, or if the text fits into it, every query is compared with every key. A
    text of more than two blocks is cut by `attend_in_blocks`. While a graph is exported, T is
    symbolic, so no condition may depend on its value: the window is then a mask on all keys.
    """
    T = q.shape[2]
    window = config.window
    dropout = config.dropout if training else 0.0
    symbolic = isinstance(T, torch.SymInt)
    # cutting two blocks would save nothing
    in_blocks = window is not None and not symbolic and T > 2 * max(window, MIN_BLOCK)
    compute: Kernel = fused_attention
    if is_explicit(config, T, in_blocks, q.device.type, training):
        compute = explicit_attention

    if window is not None and in_blocks:
        return attend_in_blocks(compute, q, k, v, window, dropout)  # (B, H, T, D)
    mask = None
    if window is not None and (symbolic or T > window):
        positions = torch.arange(T, device=q.device)  # (T,)
        mask = make_mask(positions, positions, window)  # (T, T)
    return compute(q, k, v, mask, dropout)  # (B, H, T, D)


def attend_in_blocks(
    compute: Kernel, q: Tensor, k: Tensor, v: Tensor, window: int, dropout: float
) -> Tensor:
    """Return the output of attention in a window, block by block: 3 x (B, H, T, D) -> (B, H, T, D).

    The text is cut into n blocks of b >= `window` positions. The queries of a block need
    only the keys of the same block and of the one before, so the cost is linear in T. `compute`
    is one of the two functions below.
    Source: Longformer, arXiv:2004.05150, section 3.1 and appendix A ("sliding chunks").
    """
    B, H, T, D = q.shape
    block = max(window, MIN_BLOCK)  # b
    n = -(-T // block)  # rounded up
    padding = (0, 0, 0, n * block - T)  # behind the last position
    q = F.pad(q, padding).view(B, H, n, block, D)  # (B, H, n, b, D)
    k = F.pad(k, padding).view(B, H, n, block, D)  # (B, H, n, b, D)
    v = F.pad(v, padding).view(B, H, n, block, D)  # (B, H, n, b, D)
    k = with_block_before(k)  # (B, H, n, 2b, D)
    v = with_block_before(v)  # (B, H, n, 2b, D)

    queries = torch.arange(n * block, device=q.device).view(n, block)  # (n, b)
    keys = torch.cat((queries - block, queries), dim=1)  # (n, 2b), below 0 before the text
    mask = make_mask(queries, keys, window)  # (n, b, 2b)
    mask = mask.repeat(H, 1, 1)  # (H*n, b, 2b)

    # Each block of a head becomes a separate head.
    q = q.flatten(1, 2)  # (B, H*n, b, D)
    k = k.flatten(1, 2)  # (B, H*n, 2b, D)
    v = v.flatten(1, 2)  # (B, H*n, 2b, D)
    y = compute(q, k, v, mask, dropout)  # (B, H*n, b, D)
    y = y.reshape(B, H, n * block, D)  # (B, H, n*b, D)
    return y[:, :, :T]  # (B, H, T, D)


def with_block_before(x: Tensor) -> Tensor:
    """Join each block with the one before, the first with zeros: (B, H, n, b, D) -> (B, H, n, 2b, D)."""
    before = F.pad(x, (0, 0, 0, 0, 1, -1))  # (B, H, n, b, D)
    return torch.cat((before, x), dim=3)  # (B, H, n, 2b, D)


def is_explicit(
    config: ModelConfig, length: int, in_blocks: bool, device: str, training: bool
) -> bool:
    """Return whether to use `explicit_attention`: what `config.attention` says or, if that is `auto`, is faster.

    On a CPU, the fused kernel has a slow backward and no dropout, and is slow for the blocks of a
    window (`in_blocks`). `length` is that of the text.
    """
    if config.attention != "auto":
        return {"explicit": True, "sdpa": False}[config.attention]
    if device != "cpu":
        return False
    if in_blocks or isinstance(length, torch.SymInt):  # an exported length has no value to compare
        return True
    return training and (length < FUSED_FROM or config.dropout > 0)


def explicit_attention(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None, dropout: float = 0.0
) -> Tensor:
    """Return softmax(q k^T / sqrt(D) + mask) v: (B, H, T, D), 2 x (B, H, M, D) -> (B, H, T, D).

    `mask` is (T, M) or (H, T, M); None is causal and requires M = T. Dropout applies to the
    attention weights. Source: Attention Is All You Need, arXiv:1706.03762, equation 1, with the
    causal mask of section 3.2.3.
    """
    B, H, T, D = q.shape
    M = k.shape[2]
    if mask is None:
        mask = torch.full((T, T), -math.inf, dtype=q.dtype, device=q.device).triu(1)  # (T, T)
    mask = mask.to(q.dtype)  # (T, M) or (H, T, M)
    mask = mask.expand(B, H, T, M)  # (B, H, T, M)

    # A batched product has one batch dimension, so the heads of all windows become one.
    mask = mask.reshape(B * H, T, M)  # (B*H, T, M), not copied if it is equal in all heads
    q = q.reshape(B * H, T, D)  # (B*H, T, D)
    k = k.reshape(B * H, M, D)  # (B*H, M, D)
    v = v.reshape(B * H, M, D)  # (B*H, M, D)

    # (B*H, T, M): mask + q k^T / sqrt(D)
    scores = torch.baddbmm(mask, q, k.transpose(1, 2), alpha=D**-0.5)
    # Without a dtype, autocast would widen the scores to fp32, although the kernel accumulates in
    # fp32 anyway.
    weights = torch.softmax(scores, -1, dtype=scores.dtype)  # (B*H, T, M)
    weights = drop(weights, dropout)  # (B*H, T, M)
    y = weights @ v  # (B*H, T, D)
    return y.view(B, H, T, D)  # (B, H, T, D)


def fused_attention(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None, dropout: float = 0.0
) -> Tensor:
    """Like `explicit_attention`, with PyTorch's fused kernel."""
    causal = mask is None
    if mask is not None:
        mask = mask.to(q.dtype)[None]  # (1, T, M) or (1, H, T, M)
    return F.scaled_dot_product_attention(q, k, v, mask, dropout, is_causal=causal)  # (B, H, T, D)


def make_mask(queries: Tensor, keys: Tensor, window: int | None = None) -> Tensor:
    """Return the mask to add to scores: 0 for the last `window` keys up to the query's position, -inf for all others.

    `queries`, (..., T), and `keys`, (..., M), are positions, of which negative ones are padding ->
    (..., T, M) float32. Source: Mistral 7B, arXiv:2310.06825, section 2, for the window.
    """
    distance = queries[..., :, None] - keys[..., None, :]  # (..., T, M)
    future = distance < 0  # (..., T, M)
    padding = (keys < 0)[..., None, :]  # (..., 1, M)
    hidden = future | padding  # (..., T, M)
    if window is not None:
        hidden = hidden | (distance >= window)  # (..., T, M)
    visible = torch.zeros_like(distance, dtype=torch.float32)  # (..., T, M)
    return visible.masked_fill(hidden, -math.inf)  # (..., T, M)
