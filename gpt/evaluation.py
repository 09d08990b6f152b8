"""Exact losses: every token of a text is predicted once, and the losses are summed in float64.

A batch of windows is `(inputs, targets, counted)`, three (B, T) tensors. *Totals* are (4,) float64 tensors `[nats,
tokens, characters, bytes]`, which add up over batches and devices. `sizes`, (V, 2), is a tokenizer's `token_sizes`.
"""

import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from gpt.model import GPT

EVALUATION_BATCH = 2**11  # tokens per batch of evaluation windows: keeps two cores busy and fits into their caches


@dataclass(frozen=True)
class Score:
    """How well a model predicts a text, and the length of the text."""

    loss: float  # mean, in nats per token
    bpc: float  # bits per character; NaN for bytes that only continue a character
    bpb: float  # bits per byte
    tokens: int
    characters: int
    bytes: int  # in UTF-8


def measured(score: Score, context: int) -> dict[str, Any]:
    """Return the `evaluation` of model files and summary.json for a score on disjoint windows of `context` tokens."""
    return {"mode": "disjoint", "context": context, "stride": context, "characters": score.characters}


def surprisals(logits: Tensor, targets: Tensor) -> Tensor:
    """Return -ln of the probability of each target, in nats: (N, V), (N,) int64 -> (N,) float64 on the CPU."""
    logits = logits if logits.dtype == torch.float64 else logits.float()
    return F.cross_entropy(logits, targets, reduction="none").cpu().double()  # (N,)


def totals(nats: Tensor, tokens: Tensor, sizes: np.ndarray) -> Tensor:
    """Return the totals of N tokens with the surprisals `nats`: 2 x (N,) -> (4,) on the CPU."""
    return torch.tensor([nats.sum(), len(tokens), *sizes[tokens.cpu().numpy()].sum(0)], dtype=torch.float64)


def window_totals(logits: Tensor, targets: Tensor, counted: Tensor, sizes: np.ndarray) -> Tensor:
    """Return the totals of the counted targets of a batch: (B, T, V), 2 x (B, T) -> (4,) on the CPU."""
    return totals(surprisals(logits[counted], targets[counted]), targets[counted], sizes)


def first_totals(token: int, vocabulary: int, sizes: np.ndarray) -> Tensor:
    """Return the totals of the first token of a text, whose loss is ln V because no text precedes it: (4,)."""
    return torch.tensor([math.log(vocabulary), 1, *sizes[token]], dtype=torch.float64)


def make_score(totals: Tensor) -> Score:
    """Return the `Score` of a text from its totals, (4,)."""
    nats, tokens, characters, octets = totals.tolist()
    bits = nats / math.log(2)
    bpc = bits / characters if characters else math.nan
    return Score(nats / tokens, bpc, bits / octets, int(tokens), int(characters), int(octets))


@contextmanager
def exact(model: GPT) -> Iterator[None]:
    """Run the model in fp32 and without dropout, then restore its training mode."""
    training = model.training
    model.eval()
    try:
        with torch.autocast(model.embedding.weight.device.type, enabled=False):
            yield
    finally:
        model.train(training)


@torch.no_grad()
def predictions(model: GPT, windows: Iterable[tuple[Tensor, Tensor, Tensor]]) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the logits (N, V) and targets (N,) of each batch's counted tokens, on the model's device."""
    device = model.embedding.weight.device
    for inputs, targets, counted in windows:
        with exact(model):
            logits = model(inputs.to(device))
        counted = counted.to(device)
        yield logits[counted], targets.to(device)[counted]


def reduce(predicted: Iterable[tuple[Tensor, Tensor]], first: int, vocabulary: int, sizes: np.ndarray) -> Score:
    """Return the score of a text from its `predictions` of every token but the first."""
    total = first_totals(first, vocabulary, sizes)
    for logits, targets in predicted:
        total += totals(surprisals(logits, targets), targets, sizes)
    return make_score(total)


def evaluate(model: GPT, windows: Iterable[tuple[Tensor, Tensor, Tensor]], first: int, sizes: np.ndarray) -> Score:
    """Return a model's score on a text.

    Args:
        model: the model, which runs in fp32 and without dropout.
        windows: the windows of the text, from `evaluation_windows`.
        first: the first token of the text, whose loss is ln V, because no window contains it as a target.
        sizes: the tokenizer's `token_sizes`, (V, 2).
    """
    return reduce(predictions(model, windows), first, model.vocabulary, sizes)


def evaluation_windows(
    tokens: np.ndarray,
    context: int,
    batch: int,
    *,
    stride: int | None = None,
    rank: int = 0,
    ranks: int = 1,
    most: int | None = None,
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Yield batches of windows that cover a text, so that every token except the first is counted exactly once.

    With a stride below `context`, windows overlap, and each but the first counts only its last `stride` targets, which
    are predicted from more than context - stride tokens.

    Args:
        tokens: the text, (N,), of any integer type.
        context: window length in tokens, T.
        batch: windows per batch on this rank, B.
        stride: tokens from the start of one window to the start of the next; None: `context`.
        rank: rank of this process. Together the ranks count every target once.
        ranks: number of processes that share the work.
        most: maximum number of counted targets, in windows evenly spaced in the text, but at least all targets of the
            first window; None: all.

    Yields:
        (inputs, targets, counted), each (B, T): int64, int64 and bool. Every rank yields the same number of batches,
        and every batch has B rows, the last of which may be padding that does not count.

    Raises:
        ValueError: `stride` is less than 1 or greater than `context`.
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
