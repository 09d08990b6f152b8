"""Compute training batch k from the text, the seed and k alone, so that a run can be resumed at any step.

- An epoch cuts the text into adjacent windows, from a random position on, and visits them in random order. Batches are
  consecutive slices of an endless sequence of epochs, and each rank computes its own rows of a batch.
- If the text is divided into documents, a window that would begin inside a document is moved back to the document's
  beginning, unless that is too far away (`at_documents`).
- A validation during training evaluates only part of the validation split (`num_validated`).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch

COPIED = 2**28  # tokens copied to a GPU at once
STEPS = 64  # training steps whose window starts are copied to a GPU at once
VALIDATION_CHARACTERS = 2**15  # maximum tokens of a validation before the last step


def windows_per_epoch(length: int, context: int) -> int:
    """Return how many windows of `context` tokens an epoch cuts a text of `length` tokens into.

    The number is the same in all epochs, although each begins at another position (see `epoch_starts`).
    """
    return (length - min(context, length - context)) // context


@lru_cache(maxsize=2)
def epoch_starts(length: int, seed: int, epoch: int, context: int) -> np.ndarray:
    """Return the positions in the text at which an epoch's windows begin, in the order of training: (windows,) int64.

    The windows are adjacent, but their order is random. The first window in the text begins at a random position below
    `context`, the phase, so that each epoch cuts the text differently.
    """
    random = np.random.default_rng([seed, epoch])
    phase = random.integers(min(context, length - context))
    return phase + context * random.permutation(windows_per_epoch(length, context))


def window_starts(length: int, seed: int, step: int, batch: int, context: int) -> np.ndarray:
    """Return the positions at which the `batch` windows of training step `step` begin: (batch,) int64.

    The text has `length` tokens. Batches are consecutive slices of an endless sequence of epochs (see `epoch_starts`).
    """
    if length <= context:
        raise ValueError(f"{length} tokens are too few for a window of {context} tokens and its targets")
    epochs, index = np.divmod(step * batch + np.arange(batch), windows_per_epoch(length, context))
    starts = np.empty(batch, np.int64)
    for epoch in range(int(epochs[0]), int(epochs[-1]) + 1):
        mine = epochs == epoch
        starts[mine] = epoch_starts(length, seed, epoch, context)[index[mine]]
    return starts


def at_documents(tokens: np.ndarray, starts: np.ndarray, context: int, end: np.ndarray) -> np.ndarray:
    """Move window starts back to the beginning of the document they are in: (windows,) -> (windows,) int64.

    In `tokens`, each document is followed by the end mark `end`, (M,) tokens. A moved window begins with the end mark
    before its document, as the texts of sample.py do. A start stays where it is if no end mark begins in the last
    `context` tokens up to it, as in the middle of a long document.
    """
    places = starts[:, None] - np.arange(context)  # (windows, context)
    found = places >= 0
    for offset, token in enumerate(end):
        found &= tokens.take(places + offset, mode="clip") == token
    return starts - found.argmax(1) * found.any(1)


@dataclass(frozen=True)
class Windows:
    """What a run trains on: windows of `context` + 1 tokens of the text, chosen by the seed and the step."""

    tokens: np.ndarray  # one-dimensional, of any integer type and longer than `context`
    seed: int
    batch: int  # windows per step, over all micro-batches and ranks
    context: int
    end: np.ndarray | None = None  # tokens of the documents' end mark, see `at_documents`; None without documents

    def starts(self, step: int, steps: int = 1) -> np.ndarray:
        """Return the positions in `tokens` where the windows of `steps` steps in a row begin: (steps * batch,) int64.

        The first of these steps is number `steps * step`; by default, there is only the step `step`.
        """
        starts = window_starts(len(self.tokens), self.seed, step, steps * self.batch, self.context)
        return starts if self.end is None else at_documents(self.tokens, starts, self.context, self.end)


def train_batch(windows: Windows, step: int, rows: slice = slice(None)) -> torch.Tensor:
    """Return the training batch of step `step`, or only its `rows`: (rows, context + 1) int64.

    Each row is a window: all but its last token are the inputs, and all but its first token are the targets.
    """
    places = windows.starts(step)[rows, None] + np.arange(windows.context + 1)  # (rows, context + 1)
    return torch.from_numpy(np.asarray(windows.tokens)[places].astype(np.int64))


def on_device(tokens: np.ndarray, device: torch.device, max_bytes: int) -> "np.ndarray | torch.Tensor":
    """Copy a text's tokens (N,) to a GPU and return the copy, or return `tokens` if it would need over `max_bytes`.

    The copy has 1 byte per token if `tokens` are uint8, else 4.
    """
    # torch cannot gather uint16 on CUDA, so such tokens become int32.
    dtype, size = (np.uint8, 1) if tokens.dtype == np.uint8 else (np.int32, 4)
    if len(tokens) * size > max_bytes:
        return tokens
    resident = torch.empty(len(tokens), dtype=torch.uint8 if size == 1 else torch.int32, device=device)
    for start in range(0, len(tokens), COPIED):
        resident[start : start + COPIED] = torch.from_numpy(np.array(tokens[start : start + COPIED], dtype))
    return resident


def batches_on_device(
    tokens: torch.Tensor, windows: Windows, step: int, rows: slice = slice(None)
) -> Iterator[torch.Tensor]:
    """Yield the batches that `train_batch` returns for `step`, `step` + 1, ...: (rows, context + 1) int64 on a GPU.

    `tokens` is the whole text on that GPU, which gathers the windows itself. So the CPU copies only the windows' starts
    to it, for `STEPS` steps at once.
    """
    window = torch.arange(windows.context + 1, device=tokens.device)  # (context + 1,)
    while True:
        starts = windows.starts(step // STEPS, STEPS).reshape(STEPS, windows.batch)
        mine = torch.tensor(starts[:, rows])  # (STEPS, rows)
        for first in mine.to(tokens.device, non_blocking=True)[step % STEPS :]:
            yield tokens[first[:, None] + window].long()  # (rows, context + 1)
            step += 1


def num_validated(split: int, trained: int, last: bool, most: int | None = None) -> int:
    """Return how many tokens of the validation split one validation evaluates.

    Validations during training evaluate at most `VALIDATION_CHARACTERS` tokens. The last one evaluates the whole split,
    unless the run has trained on fewer tokens than the split has.

    Args:
        split: number of tokens in the validation split.
        trained: number of tokens that the run has trained on.
        last: whether this is the validation at the last step.
        most: upper limit for every validation; None for no limit.
    """
    split = min(split, most or split)
    return split if last and trained >= split else min(split, VALIDATION_CHARACTERS)
