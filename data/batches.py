"""Make training batches and evaluation windows of tokens.

Training batch k depends on the text, the seed and k alone. So a run can be resumed at any step, and each rank takes a
slice of the batch's rows. Evaluation counts every target exactly once.
"""

import math
from collections.abc import Iterator
from functools import lru_cache

import numpy as np
import torch

COPIED = 2**28  # tokens copied to a GPU at once
STEPS = 64  # training steps whose window starts are copied to a GPU at once
VALIDATION_CHARACTERS = 2**15  # maximum tokens of a validation before the last step
EVALUATION_BATCH = 2**11  # tokens per batch of evaluation windows: keeps two cores busy and fits into their caches


def windows_per_epoch(length: int, context: int) -> int:
    """Return the number of windows in an epoch of `length` tokens, the same at every phase (see `epoch_starts`)."""
    return (length - min(context, length - context)) // context


@lru_cache(maxsize=2)
def epoch_starts(length: int, seed: int, epoch: int, context: int) -> np.ndarray:
    """Return where the windows of an epoch begin, in its random order: (windows,) int64.

    The windows lie side by side. The first one begins at a random phase, so that each epoch cuts the text differently.
    """
    random = np.random.default_rng([seed, epoch])
    phase = random.integers(min(context, length - context))
    return phase + context * random.permutation(windows_per_epoch(length, context))


def window_starts(length: int, seed: int, step: int, batch: int, context: int) -> np.ndarray:
    """Return where the windows of batch `step` begin in a text of `length` tokens: (batch,) int64.

    Batches are consecutive slices of an endless sequence of epochs.
    """
    if length <= context:
        raise ValueError(f"{length} tokens hold no window of {context} and its targets")
    epochs, index = np.divmod(step * batch + np.arange(batch), windows_per_epoch(length, context))
    starts = np.empty(batch, np.int64)
    for epoch in range(int(epochs[0]), int(epochs[-1]) + 1):
        mine = epochs == epoch
        starts[mine] = epoch_starts(length, seed, epoch, context)[index[mine]]
    return starts


def train_batch(
    tokens: np.ndarray, seed: int, step: int, batch: int, context: int, rows: slice = slice(None)
) -> torch.Tensor:
    """Return rows of batch `step`: windows of context + 1 tokens, which hold inputs and, shifted by one, targets.

    `tokens` is one-dimensional, of any integer type and longer than `context`. `batch` is the number of windows of a
    step over all micro-batches and ranks. The result is (rows, context + 1) int64.
    """
    starts = window_starts(len(tokens), seed, step, batch, context)[rows]
    windows = np.asarray(tokens)[starts[:, None] + np.arange(context + 1)]  # (rows, context + 1)
    return torch.from_numpy(windows.astype(np.int64))


def on_device(tokens: np.ndarray, device: torch.device, max_bytes: int) -> "np.ndarray | torch.Tensor":
    """Copy a text to a GPU with 1 or 4 bytes per token. Return `tokens` if the copy would exceed `max_bytes`."""
    # CUDA has no gather for uint16.
    dtype, size = (np.uint8, 1) if tokens.dtype == np.uint8 else (np.int32, 4)
    if len(tokens) * size > max_bytes:
        return tokens
    resident = torch.empty(len(tokens), dtype=torch.uint8 if size == 1 else torch.int32, device=device)
    for start in range(0, len(tokens), COPIED):
        resident[start : start + COPIED] = torch.from_numpy(np.array(tokens[start : start + COPIED], dtype))
    return resident


def batches_on_device(
    tokens: torch.Tensor, seed: int, step: int, batch: int, context: int, rows: slice = slice(None)
) -> Iterator[torch.Tensor]:
    """Yield the batches of `train_batch` for `step`, `step` + 1 and so on, from a text on a GPU.

    The windows are gathered on the GPU: only their starts are copied there, for `STEPS` steps at once.
    """
    window = torch.arange(context + 1, device=tokens.device)  # (context + 1,)
    while True:
        starts = window_starts(len(tokens), seed, step // STEPS, STEPS * batch, context).reshape(STEPS, batch)
        mine = torch.tensor(starts[:, rows])  # (STEPS, rows)
        for first in mine.to(tokens.device, non_blocking=True)[step % STEPS :]:
            yield tokens[first[:, None] + window].long()  # (rows, context + 1)
            step += 1


def num_validated(split: int, trained: int, last: bool, most: int | None = None) -> int:
    """Return how many of the `split` tokens of a validation split to evaluate, at most `most`.

    Validations during training evaluate at most `VALIDATION_CHARACTERS`. The last one evaluates the whole split if the
    run has trained on at least as many tokens.
    """
    split = min(split, most or split)
    return split if last and trained >= split else min(split, VALIDATION_CHARACTERS)


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

    Disjoint windows (stride = context) are the cheapest. With a smaller stride, windows overlap. Every window but the
    first then counts its last `stride` targets only: each of these sees at least context - stride earlier tokens.

    Args:
        tokens: the text, one-dimensional, of any integer type.
        context: window length in tokens, T.
        batch: windows per batch on this rank, B.
        stride: tokens from one window to the next, at least 1; None, like the maximum, is `context`.
        rank: rank of this process; together the ranks count every target once.
        ranks: number of processes that share the work.
        most: maximum number of counted targets; the windows are then evenly spaced. The first one is always included,
            with all its targets.

    Yields:
        inputs (B, T) int64, targets (B, T) int64, counted (B, T) bool. Every batch has B rows and every rank yields the
        same number of batches. Padding holds any tokens of the text and is not counted.
    """
    stride = context if stride is None else stride
    if not 1 <= stride <= context:
        raise ValueError(f"stride={stride}: must be at least 1 and at most context={context}")
    # The first window counts `context` targets, each further one `stride`; the last may count fewer.
    windows = 0 if len(tokens) < 2 else 1 + max(0, math.ceil((len(tokens) - 1 - context) / stride))
    wanted = windows if most is None or most >= len(tokens) - 1 else max(1, 1 + (most - context) // stride)
    wanted = min(wanted, windows)
    chosen = np.arange(wanted) * windows // max(wanted, 1)  # (wanted,)
    text, column = np.asarray(tokens), np.arange(context)
    for first in range(0, wanted, batch * ranks):
        row = first + rank * batch + np.arange(batch)
        window = chosen[np.minimum(row, wanted - 1)][:, None]  # (B, 1)
        position = window * stride + np.arange(context + 1)  # (B, T + 1)
        gathered = torch.from_numpy(text[np.minimum(position, len(text) - 1)].astype(np.int64))  # (B, T + 1)
        new = (window == 0) | (column >= context - stride)
        counted = new & (position[:, 1:] < len(tokens)) & (row < wanted)[:, None]  # (B, T)
        yield gathered[:, :-1], gathered[:, 1:], torch.from_numpy(counted)
