"""Exact losses: every token of a text is predicted once, and the losses are summed in float64.

`gpt.windows` says where the windows of a text are. A batch of windows is `(inputs, targets,
counted)`, three (B, T) tensors. *Totals* are (4,) float64 tensors `[nats, tokens, characters,
bytes]`, which add up over batches and devices. `sizes`, (V, 2), is a tokenizer's `token_sizes`.
"""

import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from gpt.model import GPT
from gpt.windows import EvaluationText, EvaluationWindows

# tokens per batch of evaluation windows: keeps two cores busy and fits into their caches
EVALUATION_BATCH = 2**11


@dataclass(frozen=True)
class Score:
    """How well a model predicts a text, and the length of the text."""

    loss: float  # mean, in nats per token
    bpc: float  # bits per character; NaN for bytes that only continue a character
    bpb: float  # bits per byte
    tokens: int
    characters: int
    bytes: int  # in UTF-8


def measured(score: Score, context: int, mode: str) -> dict[str, Any]:
    """Return the `evaluation` of model files and summary.json for a score on windows of `context` tokens."""
    # Windows of a validation do not overlap, so the stride is the context.
    return {"mode": mode, "context": context, "stride": context, "characters": score.characters}


def surprisals(logits: Tensor, targets: Tensor) -> Tensor:
    """Return -ln of the probability of each target, in nats: (N, V), (N,) int64 -> (N,) float64 on the CPU."""
    if logits.dtype != torch.float64:
        logits = logits.float()
    return F.cross_entropy(logits, targets, reduction="none").cpu().double()  # (N,)


def totals(nats: Tensor, tokens: Tensor, sizes: np.ndarray) -> Tensor:
    """Return the totals of N tokens with the surprisals `nats`: 2 x (N,) -> (4,) on the CPU."""
    characters, octets = sizes[tokens.cpu().numpy()].sum(0)  # (N, 2) -> (2,)
    return torch.tensor([nats.sum(), len(tokens), characters, octets], dtype=torch.float64)


def first_totals(text: EvaluationText) -> Tensor:
    """Return the totals of the first token of a text, whose loss is ln V because no text precedes it: (4,).

    They are zero for a list of documents, because its first document follows an end mark.
    """
    token = text.first_token
    if token is None:
        return torch.zeros(4, dtype=torch.float64)
    vocabulary = len(text.token_sizes)
    return torch.tensor([math.log(vocabulary), 1, *text.token_sizes[token]], dtype=torch.float64)


def make_score(totals: Tensor) -> Score:
    """Return the `Score` of a text from its totals, (4,)."""
    nats, tokens, characters, octets = totals.tolist()
    bits = nats / math.log(2)
    bpc = bits / characters if characters else math.nan
    return Score(nats / tokens, bpc, bits / octets, int(tokens), int(characters), int(octets))


@contextmanager
def in_fp32_without_dropout(model: GPT) -> Iterator[None]:
    """Run the model in fp32 and without dropout, then restore its training mode."""
    training = model.training
    model.eval()
    try:
        with torch.autocast(model.embedding.weight.device.type, enabled=False):
            yield
    finally:
        model.train(training)


class Predictions(NamedTuple):
    """What a model predicts for N tokens of a text."""

    logits: Tensor  # (N, V), on the model's device
    targets: Tensor  # (N,) int64, the tokens, on the model's device
    nats: Tensor  # (N,) float64 on the CPU, their surprisals


@torch.no_grad()
def predictions(
    model: GPT, windows: Iterable[tuple[Tensor, Tensor, Tensor]]
) -> Iterator[Predictions]:
    """Yield what a model predicts for the counted tokens of each batch of windows."""
    device = model.embedding.weight.device
    for inputs, targets, counted in windows:
        # not around the loop, because the caller runs between two batches
        with in_fp32_without_dropout(model):
            logits = model(inputs.to(device))  # (B, T, V)
        counted = counted.to(device)  # (B, T)
        logits = logits[counted]  # (N, V)
        targets = targets.to(device)[counted]  # (N,)
        yield Predictions(logits, targets, surprisals(logits, targets))


def evaluate(
    model: GPT,
    text: EvaluationText,
    batches: Iterable[tuple[Tensor, Tensor, Tensor]] | None = None,
) -> Score:
    """Return a model's score on a text.

    Args:
        model: the model, which runs in fp32 and without dropout.
        text: the text.
        batches: the windows to score, from `window_batches`; None: all windows of the text, of the
            model's context.
    """
    if batches is None:
        batches = window_batches(text, text.windows(model.config.context))
    total = first_totals(text)  # (4,)
    for _, targets, nats in predictions(model, batches):
        total += totals(nats, targets, text.token_sizes)
    return make_score(total)


def window_batches(
    text: EvaluationText,
    windows: EvaluationWindows,
    size: int = EVALUATION_BATCH,
    *,
    rank: int = 0,
    ranks: int = 1,
    in_order: bool = False,
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Yield windows of a text in batches.

    Args:
        text: the text. If windows begin before it, they begin in its end mark.
        windows: where they are, from `text.windows`.
        size: tokens per batch on this rank, at least one window.
        rank: rank of this process. Together, the `ranks` processes count every target once.
        in_order: whether the windows keep their order. Otherwise the longest come first, so that
            batches need little padding.

    Yields:
        (inputs, targets, counted), each (rows, longest window): int64, int64 and bool. Padding, on
        the right, does not count. Every rank yields the same number of batches.
    """
    tokens = np.asarray(text.tokens)  # (N,)
    begins, lengths, first_counted = windows  # 3 x (W,)
    order = np.arange(len(begins))  # (W,)
    if not in_order:
        order = np.argsort(-lengths, kind="stable")  # (W,)
    done = 0  # windows of earlier batches, of all ranks
    while done < len(order):
        # length of the longest window left or, in order, of all windows
        longest = lengths.max() if in_order else lengths[order[done]]
        rows_left = -(-(len(order) - done) // ranks)  # of this rank, rounded up
        rows = min(max(1, size // int(longest)), rows_left)  # windows in this batch
        row = done + rank * rows + np.arange(rows)  # (rows,)
        # (rows, 1), false where only other ranks have a window left
        is_window = (row < len(order))[:, None]
        window = order[np.minimum(row, len(order) - 1)][:, None]  # (rows, 1)

        column = np.arange(lengths[window].max())  # (T,), up to the longest window of this batch
        # (rows, T)
        counts = (column >= first_counted[window]) & (column < lengths[window]) & is_window
        position = begins[window] + np.arange(len(column) + 1)  # (rows, T + 1)
        # Padding may reach beyond the text: it gets the last token.
        gathered = tokens[position.clip(0, len(tokens) - 1)].astype(np.int64)  # (rows, T + 1)
        if text.end is not None:
            # Position -1 is the last token of the end mark.
            # (rows, T + 1)
            gathered = np.where(position < 0, text.end[np.minimum(position, -1)], gathered)
        tokens_of_rows = torch.from_numpy(gathered)  # (rows, T + 1)
        yield tokens_of_rows[:, :-1], tokens_of_rows[:, 1:], torch.from_numpy(counts)
        done += rows * ranks
