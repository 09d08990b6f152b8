"""Compute training batch k from the text, the seed and k alone, so that a run can be resumed at any step.

- An epoch cuts the text into adjacent windows, beginning at a random position, and visits the windows in random order.
  Batches are consecutive slices of an endless sequence of epochs. Each rank computes only its share of the windows in a
  batch.
- If the text is divided into documents, a window that would begin shortly after the beginning of a document is moved
  back to it, so windows begin at documents and also continue long ones (`at_documents`). The text is then a circle:
  its last document is followed by its first.
- Each validation during training evaluates the same sample of the validation split (`num_validated`), and the
  evaluation after training a larger one (`num_evaluated`).
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch

COPIED = 2**28  # tokens copied to a GPU at once
STEPS = 64  # training steps whose window starts are copied to a GPU at once
VALIDATION_TOKENS = 2**15  # maximum tokens of a validation during training
# maximum tokens of the evaluation after training per token trained on, so that it is a small part
# of the run
EVALUATED_SHARE = 0.25
# A window is moved back to the beginning of a document over at most this fraction of the context. A
# token that a moved window no longer reads is read in the other epochs, at least 0.7 of them.
MOVED_BACK = 0.25
GOLDEN_RATIO = (1 + math.sqrt(5)) / 2


def windows_per_epoch(length: int, context: int) -> int:
    """Return the number of windows in each epoch of a text of `length` tokens, whatever its random phase."""
    return (length - min(context, length - context)) // context


@lru_cache(maxsize=2)
def epoch_starts(length: int, seed: int, epoch: int, context: int) -> np.ndarray:
    """Return where an epoch's windows begin in the text, in the order of training: (windows,) int64."""
    random = np.random.default_rng([seed, epoch])
    # so that each epoch cuts the text differently
    phase = random.integers(min(context, length - context))
    return phase + context * random.permutation(windows_per_epoch(length, context))


@lru_cache(maxsize=2)
def epoch_starts_in_circle(length: int, seed: int, epoch: int, context: int) -> np.ndarray:
    """Like `epoch_starts`, but the windows are spread evenly over a text whose end is followed by its beginning.

    Each phase follows the one before by the golden ratio of the distance between windows, because
    successive phases are then spread evenly, too: independent ones would leave some tokens unread
    for many epochs.
    """
    windows = math.ceil(length / context)
    first_phase = np.random.default_rng(seed).random()
    phase = (first_phase + epoch * GOLDEN_RATIO) % 1
    order = np.random.default_rng([seed, epoch]).permutation(windows)
    return ((phase + order) * length / windows).astype(np.int64)


def at_documents(
    tokens: np.ndarray, starts: np.ndarray, context: int, end: np.ndarray
) -> np.ndarray:
    """Return window starts, each moved back to the beginning of a document if one is close before: (windows,) int64.

    `starts` are positions in `tokens`, (N,), a circle, where the end mark `end`, (M,) tokens, follows
    each document. A moved window begins with the end mark before its document, because sample.py also
    gives the model an end mark first.
    """
    furthest = max(1, int(MOVED_BACK * context))
    places = starts[:, None] - np.arange(furthest)  # (windows, furthest), the nearest first
    is_end_mark = np.ones(places.shape, bool)
    for offset, token in enumerate(end):
        is_end_mark &= tokens.take(places + offset, mode="wrap") == token
    distance = is_end_mark.argmax(1)  # (windows,), to the nearest; 0 if there is none
    return (starts - distance) % len(tokens)


@dataclass(frozen=True)
class TrainingWindows:
    """The training data of a run: windows of `context` + 1 tokens of the text, chosen by the seed and the step."""

    tokens: np.ndarray  # the text, (N,), N > context
    seed: int
    batch: int  # windows per step, over all micro-batches and ranks
    context: int
    end: np.ndarray | None = None  # the end mark that follows each document, (M,)

    def starts(self, step: int, steps: int = 1) -> np.ndarray:
        """Return where the windows of `steps` steps begin: (steps * batch,) int64.

        The first of them is step `steps * step` of the run.
        """
        length = len(self.tokens)
        if self.end is None:
            per_epoch = windows_per_epoch(length, self.context)
            starts_of = epoch_starts
        else:
            per_epoch = math.ceil(length / self.context)
            starts_of = epoch_starts_in_circle
        # Batches are consecutive slices of one sequence, so several are one batch of more windows.
        batch = steps * self.batch
        windows = step * batch + np.arange(batch)  # numbers in the sequence, (steps * batch,)
        # the epoch of each window, and its index in the epoch: (steps * batch,) each
        epochs, index = np.divmod(windows, per_epoch)
        starts = np.empty(batch, np.int64)
        for epoch in range(int(epochs[0]), int(epochs[-1]) + 1):
            in_epoch = epochs == epoch
            in_order = starts_of(length, self.seed, epoch, self.context)
            starts[in_epoch] = in_order[index[in_epoch]]
        if self.end is None:
            return starts
        return at_documents(self.tokens, starts, self.context, self.end)


def train_batch(windows: TrainingWindows, step: int, rows: slice = slice(None)) -> torch.Tensor:
    """Return `rows` of the batch of step `step`, inputs and the targets after them: (rows, context + 1) int64."""
    # (rows, context + 1)
    places = windows.starts(step)[rows, None] + np.arange(windows.context + 1)
    # "wrap" because a window of documents may reach beyond the last one
    batch = np.asarray(windows.tokens).take(places, mode="wrap")  # (rows, context + 1)
    return torch.from_numpy(batch.astype(np.int64))


def on_device(
    tokens: np.ndarray, device: torch.device, max_bytes: int
) -> "np.ndarray | torch.Tensor":
    """Return a copy of the tokens of a text, (N,), on a GPU, or `tokens` itself if it would need over `max_bytes`."""
    # torch cannot gather uint16 on CUDA, so such tokens become int32.
    dtype = np.dtype("uint8" if tokens.dtype == np.uint8 else "int32")
    if len(tokens) * dtype.itemsize > max_bytes:
        return tokens
    resident = torch.empty(len(tokens), dtype=getattr(torch, dtype.name), device=device)
    for start in range(0, len(tokens), COPIED):
        piece = np.array(tokens[start : start + COPIED], dtype)  # a copy: `tokens` is read-only
        resident[start : start + COPIED] = torch.from_numpy(piece)
    return resident


def batches_on_device(
    tokens: torch.Tensor, windows: TrainingWindows, step: int, rows: slice = slice(None)
) -> Iterator[torch.Tensor]:
    """Yield what `train_batch` returns for `step`, `step` + 1, ..., gathered on the GPU: (rows, context + 1) int64."""
    window = torch.arange(windows.context + 1, device=tokens.device)  # (context + 1,)
    while True:
        starts = windows.starts(step // STEPS, STEPS).reshape(STEPS, windows.batch)
        mine = torch.tensor(starts[:, rows])  # (STEPS, rows)
        for begins in mine.to(tokens.device, non_blocking=True)[step % STEPS :]:  # (rows,)
            places = (begins[:, None] + window) % len(tokens)  # (rows, context + 1)
            yield tokens[places].long()  # (rows, context + 1)
            step += 1


def num_validated(split: int, most: int | None = None) -> int:
    """Return how many of the `split` tokens of a split each validation evaluates, at most `most`.

    The number is the same for all validations of a run, so that their losses can be compared.
    """
    return min(split, most or split, VALIDATION_TOKENS)


def num_evaluated(split: int, trained: int, most: int | None = None) -> int:
    """Return how many of the `split` tokens of a split are evaluated after training on `trained` tokens."""
    part = max(VALIDATION_TOKENS, int(EVALUATED_SHARE * trained))
    return min(split, most or split, part)
