"""Exact losses: every token of a text is predicted once, and the losses are summed in float64.

`evaluation_windows` cuts a text into batches of windows `(inputs, targets, counted)`, three (B, T) tensors. `counted`
is False for padding and for tokens that another window counts. Losses are summed into *totals*, (4,) float64 tensors
`[nats, tokens, characters, bytes]`, which add up over batches and devices in any order. `sizes` is a tokenizer's
`token_sizes`: (V, 2) int64, the number of characters and UTF-8 bytes of each token.
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
    """How well a model predicts a text: `loss` in nats per token, `bpc` in bits per character, `bpb` per byte."""

    loss: float
    bpc: float
    bpb: float
    tokens: int
    characters: int
    bytes: int


def measured(score: Score, context: int) -> dict[str, Any]:
    """Return a dict that says how a score was measured, for model files and summary.json.

    The score must come from disjoint windows of `context` tokens, as in validation.
    """
    return {"mode": "disjoint", "context": context, "stride": context, "characters": score.characters}


def surprisals(logits: Tensor, targets: Tensor) -> Tensor:
    """Return -ln of the probability of each target: (N, V), (N,) int64 -> (N,) float64 on the CPU, in nats."""
    logits = logits if logits.dtype == torch.float64 else logits.float()
    return F.cross_entropy(logits, targets, reduction="none").cpu().double()  # (N,)


def totals(nats: Tensor, tokens: Tensor, sizes: np.ndarray) -> Tensor:
    """Return the sums `[nats, tokens, characters, bytes]` of N tokens (N,) with the surprisals `nats`, (N,).

    The result is (4,) float64 on the CPU. `sizes` is the tokenizer's `token_sizes`.
    """
    return torch.tensor([nats.sum(), len(tokens), *sizes[tokens.cpu().numpy()].sum(0)], dtype=torch.float64)


def window_totals(logits: Tensor, targets: Tensor, counted: Tensor, sizes: np.ndarray) -> Tensor:
    """Return the sums `[nats, tokens, characters, bytes]` of the counted targets in a batch of windows.

    The result is (4,) float64 on the CPU. `logits` are (B, T, V), `targets` and `counted` (B, T).
    """
    return totals(surprisals(logits[counted], targets[counted]), targets[counted], sizes)


def first_totals(token: int, vocabulary: int, sizes: np.ndarray) -> Tensor:
    """Return `[nats, tokens, characters, bytes]` of the first token of a text, (4,) float64.

    Its loss is ln V, because nothing comes before it.
    """
    return torch.tensor([math.log(vocabulary), 1, *sizes[token]], dtype=torch.float64)


def make_score(totals: Tensor) -> Score:
    """Return the `Score` of a text from its sums `[nats, tokens, characters, bytes]`, (4,).

    `bpc` is NaN if the text contains no character, only bytes that continue one.
    """
    nats, tokens, characters, octets = totals.tolist()
    bits = nats / math.log(2)
    bpc = bits / characters if characters else math.nan
    return Score(nats / tokens, bpc, bits / octets, int(tokens), int(characters), int(octets))


@contextmanager
def exact(model: GPT) -> Iterator[None]:
    """Run the model in fp32 and without dropout inside this context, then restore its training mode."""
    training = model.training
    model.eval()
    try:
        with torch.autocast(model.embedding.weight.device.type, enabled=False):
            yield
    finally:
        model.train(training)


@torch.no_grad()
def predictions(model: GPT, windows: Iterable[tuple[Tensor, Tensor, Tensor]]) -> Iterator[tuple[Tensor, Tensor]]:
    """For each batch of windows, yield the logits (N, V) and the targets (N,) of its N counted tokens.

    The model runs in fp32 and without dropout. Both tensors are on its device.
    """
    device = model.embedding.weight.device
    for inputs, targets, counted in windows:
        with exact(model):
            logits = model(inputs.to(device))
        counted = counted.to(device)
        yield logits[counted], targets.to(device)[counted]


def reduce(predicted: Iterable[tuple[Tensor, Tensor]], first: int, vocabulary: int, sizes: np.ndarray) -> Score:
    """Return the score of a text of which a model has predicted every token but the first.

    Args:
        predicted: the `predictions` of all tokens but the first.
        first: the first token of the text, whose loss is ln V.
        vocabulary: the number of tokens in the vocabulary, V.
        sizes: the tokenizer's `token_sizes`.
    """
    total = first_totals(first, vocabulary, sizes)
    for logits, targets in predicted:
        total += totals(surprisals(logits, targets), targets, sizes)
    return make_score(total)


def evaluate(model: GPT, windows: Iterable[tuple[Tensor, Tensor, Tensor]], first: int, sizes: np.ndarray) -> Score:
    """Return a model's score on a text.

    `windows` come from `evaluation_windows`, so they count every token except the first exactly once. `first` is the
    first token, and `sizes` is the tokenizer's `token_sizes`.
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

    Disjoint windows (stride = context) are the cheapest. With a smaller stride, windows overlap. Then every
    window after the first counts only its last `stride` targets, each of which sees at least context - stride earlier
    tokens.

    Args:
        tokens: the text, one-dimensional, of any integer type.
        context: window length in tokens, T.
        batch: windows per batch on this rank, B.
        stride: tokens from one window to the next, at least 1; the maximum and the default are `context`.
        rank: rank of this process; together the ranks count every target once.
        ranks: number of processes that share the work.
        most: maximum number of counted targets; the windows are then evenly spaced. The first one is always included,
            with all its targets.

    Yields:
        inputs (B, T) int64, targets (B, T) int64, counted (B, T) bool. Every batch has B rows and every rank yields the
        same number of batches. Padding repeats tokens of the text and is not counted.
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
