"""Several ways to compute the same attention, and `choose_kernel`, which chooses the fastest one.

A *kernel* computes softmax(q k^T / sqrt(D) + bias) v: `explicit_attention` or `fused_attention`. If the model has a
window or ALiBi, a *pattern* creates the biases and calls the kernel with them: `biased_attention`, `attention_in_parts`
or `windowed_attention`.
Shapes: B windows, T queries, M keys, H heads of size D.
"""

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from gpt.config import ModelConfig
from gpt.dropout import dropout as drop

FUSED_FROM = 1024  # length in tokens from which torch's fused kernel trains faster on a CPU
MAX_SCORES = 2**25  # maximum number of attention scores in memory at once, outside training
Kernel = Callable[..., Tensor]  # `explicit_attention` or `fused_attention`
MIN_BLOCK = 16  # minimum queries per block of windowed attention: matmuls of smaller blocks are slow


def attend(config: ModelConfig, q: Tensor, k: Tensor, v: Tensor, slopes: Tensor | None, training: bool) -> Tensor:
    """Return the output of causal attention, (B, H, T, D), computed by the functions that `choose_kernel` returns.

    `q`, `k` and `v` are (B, H, T, D). `slopes` are ALiBi's slopes, (H,), or None if the model does not use ALiBi.
    Dropout is applied only if `training` is true.
    """
    kernel, pattern = choose_kernel(config, q.shape[2], q.device.type, training)
    dropout = config.dropout if training else 0.0
    if pattern is None:
        return kernel(q, k, v, None, dropout)  # (B, H, T, D)
    return pattern(kernel, q, k, v, config.window, slopes, dropout)  # (B, H, T, D)


def choose_kernel(
    config: ModelConfig, length: int | torch.SymInt, device: str, training: bool
) -> tuple[Kernel, Callable[..., Tensor] | None]:
    """Return the two functions that together compute attention fastest, as (kernel, pattern).

    The kernel is `explicit_attention` or `fused_attention`. The pattern is `biased_attention`, `attention_in_parts` or
    `windowed_attention`: it creates the biases of a window or of ALiBi and calls the kernel with them. If there is
    neither a window shorter than the text nor ALiBi, no biases are needed, and the pattern is None.

    Args:
        config: the architecture of the model. `config.attention` sets the kernel unless it is `auto`.
        length: the number of tokens, T. While a graph is exported for all lengths, `length` is symbolic, so no
            condition may depend on its value.
        device: the type of the device, such as cpu or cuda.
        training: whether the model is trained, so that a backward pass follows.
    """
    pattern: Callable[..., Tensor] | None = None
    explicit, symbolic = device == "cpu", isinstance(length, torch.SymInt)
    if config.positions == "alibi" or (config.window is not None and (symbolic or config.window < length)):
        pattern = biased_attention
    if not symbolic:
        width = 2 * max(config.window or length, MIN_BLOCK)  # keys per block
        # On a CPU the fused kernel has a slow backward and no dropout, and is slow for the blocks of a window.
        slow = training and (length < FUSED_FROM or config.dropout > 0)
        explicit = explicit and (slow or length > width)
        if pattern is biased_attention and not training and config.heads * length * min(length, width) > MAX_SCORES:
            pattern = attention_in_parts
        elif length > width:  # otherwise the keys of a block would cover the whole text
            pattern = windowed_attention
    explicit = {"auto": explicit, "explicit": True, "sdpa": False}[config.attention]
    return explicit_attention if explicit else fused_attention, pattern


def explicit_attention(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None = None, dropout: float = 0.0) -> Tensor:
    """Return softmax(q k^T / sqrt(D) + bias) v, (B, H, T, D), computed with two batched matmuls.

    On a CPU this is up to three times faster than torch's fused kernel, whose backward pass is slow there.
    Source: Attention Is All You Need, arXiv:1706.03762, equation 1, with the causal mask of section 3.2.3.

    Args:
        q: the queries, (B, H, T, D).
        k: the keys, (B, H, M, D).
        v: the values, (B, H, M, D).
        bias: added to the scores, (1 or H, T, M), -inf for masked keys; None applies the causal mask and requires M =
            T.
        dropout: probability with which an attention weight is set to 0.
    """
    (B, H, T, D), M = q.shape, k.shape[2]
    if bias is None:
        bias = torch.full((1, T, T), -math.inf, dtype=q.dtype, device=q.device).triu(1)
    q, k, v = (x.reshape(B * H, -1, D) for x in (q, k, v))  # (B*H, T or M, D)
    added = bias.to(q.dtype).expand(B, H, T, M).reshape(B * H, T, M)  # no copy of the causal mask
    scores = torch.baddbmm(added, q, k.transpose(1, 2), alpha=D**-0.5)  # (B*H, T, M)
    # Without a dtype, autocast would widen the scores to fp32 and narrow them again: twice the memory traffic, although
    # the kernel accumulates in fp32 anyway.
    weights = drop(torch.softmax(scores, -1, dtype=scores.dtype), dropout)  # (B*H, T, M)
    return (weights @ v).view(B, H, T, D)  # (B, H, T, D)


def fused_attention(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None = None, dropout: float = 0.0) -> Tensor:
    """Return the result of `explicit_attention` for the same arguments, computed with torch's fused kernel."""
    bias = None if bias is None else bias.to(q.dtype)[None]  # (1, 1 or H, T, M)
    return F.scaled_dot_product_attention(q, k, v, bias, dropout, is_causal=bias is None)


def make_bias(queries: Tensor, attended: Tensor, window: int | None = None, slopes: Tensor | None = None) -> Tensor:
    """Return the bias to add to attention scores: -inf for masked keys, and for other keys ALiBi's bias or 0.

    A key is masked if it comes after the query, lies outside the window or is padding.
    Source: Train Short, Test Long, arXiv:2108.12409, section 3, for the bias; Mistral 7B, arXiv:2310.06825, section 2,
    for the window.

    Args:
        queries: positions of the queries, (..., T).
        attended: positions of the keys, (..., M), where a negative position marks padding.
        window: number of positions that a query attends to, including its own; None: no limit.
        slopes: ALiBi's slopes, (H,); None without ALiBi.

    Returns:
        The bias, float32, which is (H, ..., T, M) with ALiBi and (1, ..., T, M) without ALiBi.
    """
    distance = queries[..., :, None] - attended[..., None, :]  # (..., T, M)
    hidden = (distance < 0) | (attended < 0)[..., None, :]  # (..., T, M)
    if window is not None:
        hidden = hidden | (distance >= window)
    heads = torch.zeros(1, device=attended.device) if slopes is None else -slopes  # (1 or H,)
    bias = heads.view(-1, *[1] * distance.ndim) * distance  # (1 or H, ..., T, M)
    return bias.masked_fill(hidden, -math.inf)


def biased_attention(
    kernel: Kernel, q: Tensor, k: Tensor, v: Tensor, window: int | None, slopes: Tensor | None, dropout: float
) -> Tensor:
    """Call the kernel once, with one bias tensor for all T queries and T keys, and return its result, (B, H, T, D).

    Args:
        kernel: `explicit_attention` or `fused_attention`.
        q: the queries, (B, H, T, D).
        k: the keys, (B, H, T, D).
        v: the values, (B, H, T, D).
        window: number of positions that a query attends to, including its own; None: no limit.
        slopes: ALiBi's slopes, (H,); None without ALiBi.
        dropout: probability with which an attention weight is set to 0.
    """
    positions = torch.arange(q.shape[2], device=q.device)  # (T,)
    return kernel(q, k, v, make_bias(positions, positions, window, slopes), dropout)  # (B, H, T, D)


def attention_in_parts(
    kernel: Kernel, q: Tensor, k: Tensor, v: Tensor, window: int | None, slopes: Tensor | None, dropout: float
) -> Tensor:
    """Return the result of `biased_attention`, computed for a few queries at a time so that less memory is needed.

    The arguments are the same as those of `biased_attention`, but `dropout` is ignored, because this function is only
    used outside training.
    """
    H, T = q.shape[1:3]
    positions, parts, count = torch.arange(T, device=q.device), [], max(1, MAX_SCORES // (H * T))
    for start in range(0, T, count):
        stop = min(start + count, T)
        first = max(0, start - window + 1) if window else 0
        bias = make_bias(positions[start:stop], positions[first:stop], window, slopes)  # (1 or H, n, m)
        parts.append(kernel(q[:, :, start:stop], k[:, :, first:stop], v[:, :, first:stop], bias))  # (B, H, n, D)
    return torch.cat(parts, dim=2)  # (B, H, T, D)


def windowed_attention(
    kernel: Kernel, q: Tensor, k: Tensor, v: Tensor, window: int, slopes: Tensor | None, dropout: float
) -> Tensor:
    """Return the result of `biased_attention` with a window, at a cost that is linear in T.

    The arguments are the same as those of `biased_attention`. The text is cut into blocks of b >= `window` positions.
    The queries of a block need only the keys of the same block and of the block before it, so each block is a small
    attention of b queries to 2b keys.
    Source: Longformer, arXiv:2004.05150, section 3.1 and appendix A ("sliding chunks").
    """
    (B, H, T, D), b = q.shape, max(window, MIN_BLOCK)
    n = -(-T // b)
    q, k, v = (F.pad(x, (0, 0, 0, n * b - T)).view(B, H, n, b, D) for x in (q, k, v))  # (B, H, n, b, D)
    k, v = (torch.cat((F.pad(x, (0, 0, 0, 0, 1, -1)), x), dim=3) for x in (k, v))  # (B, H, n, 2b, D)
    positions = torch.arange(n * b, device=q.device).view(n, b)  # (n, b)
    bias = make_bias(positions, torch.cat((positions - b, positions), dim=1), window, slopes)  # (1 or H, n, b, 2b)
    bias = bias.expand(H, n, b, 2 * b).reshape(H * n, b, 2 * b)  # (H*n, b, 2b)
    y = kernel(q.flatten(1, 2), k.flatten(1, 2), v.flatten(1, 2), bias, dropout)  # (B, H*n, b, D)
    return y.reshape(B, H, n * b, D)[:, :, :T]  # (B, H, T, D)
