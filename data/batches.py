"""From tokens to batches, as pure functions: nothing is drawn, stored or advanced.

Training batch k follows from (seed, k) alone, so a run can be resumed at any step, and micro-batches
and ranks are slices of the rows of a batch. Evaluation counts every target exactly once.
"""

from collections.abc import Iterator

import numpy as np
import torch

GOLDEN = 0x9E3779B97F4A7C15


def _mix(x: np.ndarray) -> np.ndarray:
    """Scramble uint64 numbers: the finalizer of splitmix64 (Steele, Lea, Flood 2014)."""
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB
    return x ^ (x >> 31)


def permute(index: np.ndarray, size: int, key: np.ndarray) -> np.ndarray:
    """Apply the permutation of 0..size-1 that belongs to `key`, computed one by one and never stored.

    A Feistel network permutes 0..2^bits-1, the smallest such range that holds `size` numbers; whatever
    falls outside 0..size-1 goes round again until it is inside (Black and Rogaway 2002, "cycle walking").

    Args:
        index: (rows,) uint64, each below `size`.
        size: how many numbers are permuted.
        key: (rows,) uint64; rows with the same key belong to the same permutation.

    Returns:
        (rows,) uint64, each below `size`.
    """
    bits = (size - 1).bit_length()
    low_bits = (bits + 1) // 2
    low_mask, high_mask = (1 << low_bits) - 1, (1 << (bits - low_bits)) - 1
    # Halves of so few bits mix slowly: with 6 rounds some of 5 numbers came 10 % too often, with 16 none.
    rounds = 6 if bits > 5 else 16
    keys = [_mix(key + GOLDEN * turn % 2**64) for turn in range(1, rounds + 1)]
    inside = np.zeros(index.shape, bool)
    while not inside.all():
        low, high = index & low_mask, index >> low_bits
        for even, odd in zip(keys[::2], keys[1::2], strict=True):
            # Each line can be undone by itself, so the whole is a permutation whatever _mix does.
            high = high ^ (_mix(low + even) & high_mask)
            low = low ^ (_mix(high + odd) & low_mask)
        index = np.where(inside, index, high << low_bits | low)
        inside = index < size
    return index


def windows_per_epoch(length: int, context: int) -> int:
    """How many windows of context + 1 tokens, `context` apart, fit into `length` tokens at every phase."""
    return (length - min(context, length - context)) // context


def window_starts(length: int, seed: int, step: int, batch: int, context: int) -> np.ndarray:
    """Where the windows of batch `step` begin in a text of `length` tokens: (batch,) int64.

    The batches are consecutive pieces of an endless sequence of epochs. Epoch e takes all windows
    that begin at phase_e + i * context, in an order of its own; all phases have the same number of them.

    Raises:
        ValueError: the text holds no window of context + 1 tokens.
    """
    if length <= context:
        raise ValueError(f"{length} tokens hold no window of {context} and its targets")
    phases, windows = min(context, length - context), windows_per_epoch(length, context)
    row = np.arange(batch, dtype=np.uint64) + step * batch
    epoch, index = row // windows, row % windows
    key = _mix(_mix(np.array([seed % 2**64], np.uint64)) + epoch * GOLDEN)
    phase = _mix(key) % phases
    return (phase + permute(index, windows, key) * context).astype(np.int64)


def train_batch(
    tokens: np.ndarray, seed: int, step: int, batch: int, context: int, rows: slice = slice(None)
) -> torch.Tensor:
    """Return rows of batch `step` as windows of context + 1 tokens: inputs and, one further, targets.

    Args:
        tokens: the text, one-dimensional, of any integer type.
        seed: of the run.
        step: optimizer step, from 0.
        batch: windows per step over all micro-batches and ranks.
        context: window length in tokens.
        rows: which of the `batch` rows to gather; those of this rank or micro-batch.

    Returns:
        (rows, context + 1) int64.

    Raises:
        ValueError: the text holds no window of context + 1 tokens.
    """
    starts = window_starts(len(tokens), seed, step, batch, context)[rows]
    return _gather(tokens, starts[:, None] + np.arange(context + 1))  # (rows, context + 1)


def _gather(tokens: np.ndarray, index: np.ndarray) -> torch.Tensor:
    """`tokens[index]` as int64."""
    return torch.from_numpy(np.asarray(tokens)[index].astype(np.int64))


def _evaluated(length: int, context: int, stride: int | None, most: int | None) -> np.ndarray:
    """Which windows are evaluated: (windows,) int64; window w begins at w * stride."""
    stride = context if stride is None else stride
    if not 1 <= stride <= context:
        raise ValueError(f"stride={stride}: must be at least 1 and at most context={context}")
    # The first window counts `context` targets, each further one `stride`; the last may count fewer.
    windows = 0 if length < 2 else 1 + max(0, -(-(length - 1 - context) // stride))
    wanted = windows if most is None or most >= length - 1 else max(1, 1 + (most - context) // stride)
    wanted = min(wanted, windows)
    return np.arange(wanted) * windows // max(wanted, 1)


def evaluation_windows(
    tokens: np.ndarray,
    context: int,
    batch: int,
    *,
    stride: int | None = None,
    rank: int = 0,
    ranks: int = 1,
    most: int | None = None,
) -> Iterator[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
    """Cover a text with windows so that every token but the first is predicted and counted exactly once.

    Disjoint windows (stride = context) are the cheapest. With a smaller stride windows overlap, and all
    but the first count their last `stride` targets only, each of which then sees at least
    context - stride earlier tokens.

    Args:
        tokens: the text, one-dimensional, of any integer type.
        context: window length in tokens, T.
        batch: windows per batch on this rank, B.
        stride: from one window to the next; None is `context`.
        rank: which of `ranks` this is; together the ranks count every target once.
        ranks: how many share the work.
        most: count at most this many targets (but one window at least): a fixed choice of whole
            windows, evenly spaced through the text, the first among them.

    Yields:
        inputs (B, T) int64, targets (B, T) int64, counted (B, T) bool. Every batch has B rows and every rank
        the same number of batches; what fills them up is not counted and holds any tokens of the text.

    Raises:
        ValueError: a stride below 1 or above `context`.
    """
    windows = _evaluated(len(tokens), context, stride, most)
    stride = context if stride is None else stride
    column = np.arange(context)
    for first in range(0, len(windows), batch * ranks):
        place = first + rank * batch + np.arange(batch)
        window = windows[np.minimum(place, len(windows) - 1)][:, None]  # (B, 1)
        position = window * stride + np.arange(context + 1)  # (B, T + 1)
        gathered = _gather(tokens, np.minimum(position, len(tokens) - 1))  # (B, T + 1)
        new = (window == 0) | (column >= context - stride)
        counted = new & (position[:, 1:] < len(tokens)) & (place < len(windows))[:, None]  # (B, T)
        yield gathered[:, :-1], gathered[:, 1:], torch.from_numpy(counted)
