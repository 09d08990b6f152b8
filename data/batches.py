"""Compute training batch k from the text, the seed and k alone, so that a run can be resumed at any step.

- An epoch cuts the text into adjacent windows, from a random phase on, and visits them in random order. Batches are
  consecutive slices of an endless sequence of epochs, and each rank computes its own rows of a batch.
- In a text of documents, a window begins where a document begins, if one begins shortly before (`at_documents`).
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
    """Return the number of windows in an epoch of `length` tokens, the same at every phase (see `epoch_starts`)."""
    return (length - min(context, length - context)) // context


@lru_cache(maxsize=2)
def epoch_starts(length: int, seed: int, epoch: int, context: int) -> np.ndarray:
    """Return where the windows of an epoch begin, in its random order: (windows,) int64.

    The windows are adjacent, and the first one begins at a random phase, so that each epoch cuts the text differently.
    """
    random = np.random.default_rng([seed, epoch])
    phase = random.integers(min(context, length - context))
    return phase + context * random.permutation(windows_per_epoch(length, context))


def window_starts(length: int, seed: int, step: int, batch: int, context: int) -> np.ndarray:
    """Return where the windows of batch `step` begin in a text of `length` tokens: (batch,) int64.

    Batches are consecutive slices of an endless sequence of epochs.
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
    """Move window starts back to the nearest end mark: (windows,) -> (windows,) int64.

    A window that is moved begins like a text of sample.py: with the end mark `end`, (M,) tokens, and the beginning of a
    document. A start stays where it is if no end mark begins in the last `context` tokens up to it, as in the middle of
    a long document.
    """
    places = starts[:, None] - np.arange(context)  # (windows, context)
    found = places >= 0
    for offset, token in enumerate(end):
        found &= tokens.take(places + offset, mode="clip") == token
    return starts - found.argmax(1) * found.any(1)


@dataclass(frozen=True)
class Windows:
    """The windows of a training text; `starts` returns those of a step."""

    tokens: np.ndarray  # one-dimensional, of any integer type and longer than `context`
    seed: int
    batch: int  # windows per step, over all micro-batches and ranks
    context: int
    end: np.ndarray | None = None  # tokens of the documents' end mark, see `at_documents`; None without documents

    def starts(self, step: int, steps: int = 1) -> np.ndarray:
        """Return where the windows of the `steps` steps from step `steps * step` on begin: (steps * batch,) int64."""
        starts = window_starts(len(self.tokens), self.seed, step, steps * self.batch, self.context)
        return starts if self.end is None else at_documents(self.tokens, starts, self.context, self.end)


def train_batch(windows: Windows, step: int, rows: slice = slice(None)) -> torch.Tensor:
    """Return the `rows` of batch `step`: (rows, context + 1) int64.

    Each row is a window: all but its last token are the inputs, and all but its first token are the targets.
    """
    places = windows.starts(step)[rows, None] + np.arange(windows.context + 1)  # (rows, context + 1)
    return torch.from_numpy(np.asarray(windows.tokens)[places].astype(np.int64))


def on_device(tokens: np.ndarray, device: torch.device, max_bytes: int) -> "np.ndarray | torch.Tensor":
    """Return a copy of a text on a GPU, at 1 or 4 bytes per token, or `tokens` if the copy would exceed `max_bytes`."""
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

    `tokens` is the whole text on that GPU, where the windows are gathered. So only their starts are copied to it, for
    `STEPS` steps at once.
    """
    window = torch.arange(windows.context + 1, device=tokens.device)  # (context + 1,)
    while True:
        starts = windows.starts(step // STEPS, STEPS).reshape(STEPS, windows.batch)
        mine = torch.tensor(starts[:, rows])  # (STEPS, rows)
        for first in mine.to(tokens.device, non_blocking=True)[step % STEPS :]:
            yield tokens[first[:, None] + window].long()  # (rows, context + 1)
            step += 1


def num_validated(split: int, trained: int, last: bool, most: int | None = None) -> int:
    """Return how many of the `split` tokens of the validation split a validation evaluates, at most `most`.

    Validations during training evaluate at most `VALIDATION_CHARACTERS` tokens. The `last` one evaluates the whole
    split, unless the run has `trained` on fewer tokens than that.
    """
    split = min(split, most or split)
    return split if last and trained >= split else min(split, VALIDATION_CHARACTERS)
