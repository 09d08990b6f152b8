"""Answers to the exercises of lesson 2. N sequences, T positions, d wide, H heads of size D."""

import torch
from torch import Tensor


def unbatched(x: Tensor, w_in: Tensor, w_out: Tensor, heads: int) -> Tensor:
    """Causal attention of (..., T, d): axes are counted from the end, so any axes may be in front."""
    *leading, T, d = x.shape
    qkv = (x @ w_in.T).view(*leading, T, 3, heads, d // heads)  # (..., T, 3, H, D)
    q, k, v = (each.transpose(-3, -2) for each in qkv.unbind(-3))  # 3 x (..., H, T, D)
    logits = q @ k.transpose(-2, -1) / (d // heads) ** 0.5  # (..., H, T, T)
    future = torch.ones(T, T, dtype=torch.bool).triu(1)
    weights = logits.masked_fill(future, -torch.inf).softmax(-1)
    return (weights @ v).transpose(-3, -2).reshape(*leading, T, d) @ w_out.T  # (..., T, d)


def sizes(x: Tensor, w_q: Tensor, w_k: Tensor, w_v: Tensor, w_o: Tensor) -> Tensor:
    """Causal attention of (N, T, d) whose heads have keys of size K and values of size V; the two may differ.

    Queries and keys share K because of the dot product, and logits are divided by its root. Values
    are only multiplied by W_O, which maps all H V channels back to d.
    """
    T = x.shape[1]
    # One sequence, all heads: (N, 1, T, d) @ (H, d, K) is broadcast to (N, H, T, K).
    q, k, v = (x[:, None] @ w for w in (w_q, w_k, w_v))
    logits = q @ k.transpose(-2, -1) / k.shape[-1] ** 0.5  # (N, H, T, T)
    weights = logits.masked_fill(torch.ones(T, T, dtype=torch.bool).triu(1), -torch.inf).softmax(
        -1
    )
    return (weights @ v).transpose(1, 2).flatten(2) @ w_o  # (N, T, H V) @ (H V, d)


def right_einsum(q: Tensor, k: Tensor) -> Tensor:
    """Logits (N, H, T, S): sequence and head are in both inputs and in the output, so only D is summed."""
    return torch.einsum("n h i d, n h j d -> n h i j", q, k)


def wrong_einsum(q: Tensor, k: Tensor) -> Tensor:
    """The published one: it sums heads in each input, then channels and sequences in one product.

    sum over b, s, n, j of q[b, s, i, j] k[b, n, k, j]: `s` occurs only in q and `n` only in k, so
    each sum can be done in its own factor first. `b` and `j` are in both: the product contracts
    them.
    """
    q, k = q.sum(1), k.sum(1)  # (N, T, D), (N, S, D)
    return q.transpose(0, 1).flatten(1) @ k.transpose(0, 1).flatten(1).T  # (T, N D) @ (N D, S)


def row_order(heads: int, size: int) -> Tensor:
    """Rows of a q|k|v weight in head-first order: number them, view them as (3, H, D), swap two axes."""
    # (3 H D,)
    return torch.arange(3 * heads * size).view(3, heads, size).transpose(0, 1).flatten()


def fold(w_v: Tensor, w_o: Tensor, heads: int) -> Tensor:
    """(H, d, d): head h moves x @ w_v[its rows].T @ w_o[:, its columns].T: two matrices of this head alone.

    Each product has rank D at most. Together they are H d^2 numbers instead of 2 d^2: useful to
    analyse a layer, not to run it.
    """
    d = w_v.shape[0]
    into = w_v.view(heads, d // heads, d)  # (H, D, d)
    out = w_o.view(d, heads, d // heads).permute(1, 2, 0)  # (H, D, d)
    return into.transpose(1, 2) @ out  # (H, d, D) @ (H, D, d)


def prune(w_in: Tensor, w_out: Tensor, heads: int, kept: list[int]) -> tuple[Tensor, Tensor]:
    """The weights of a layer with only some heads: a head is rows of `w_in` and columns of `w_out`."""
    d = w_out.shape[0]
    smaller_in = w_in.view(3, heads, d // heads, d)[:, kept].reshape(-1, d)  # (3 len(kept) D, d)
    smaller_out = w_out.view(d, heads, d // heads)[:, kept].reshape(d, -1)  # (d, len(kept) D)
    return smaller_in, smaller_out
