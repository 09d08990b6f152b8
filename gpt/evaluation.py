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
    """How well a model predicts a text, and the length of the text.

    Attributes:
        loss: mean loss in nats per token.
        bpc: bits per character; NaN if `characters` is 0.
        bpb: bits per byte.
        tokens: number of tokens in the text.
        characters: number of characters in the text.
        bytes: number of UTF-8 bytes in the text.
    """

    loss: float
    bpc: float
    bpb: float
    tokens: int
    characters: int
    bytes: int


def measured(score: Score, context: int) -> dict[str, Any]:
    """Return a dict that describes how a score was measured, with the keys `mode`, `context`, `stride`, `characters`.

    The score must come from disjoint windows of `context` tokens, as in validation. Model files and summary.json store
    the dict as `evaluation`.
    """
    return {"mode": "disjoint", "context": context, "stride": context, "characters": score.characters}


def surprisals(logits: Tensor, targets: Tensor) -> Tensor:
    """Return -ln of the probability of each target, in nats: (N, V), (N,) int64 -> (N,) float64 on the CPU."""
    logits = logits if logits.dtype == torch.float64 else logits.float()
    return F.cross_entropy(logits, targets, reduction="none").cpu().double()  # (N,)


def totals(nats: Tensor, tokens: Tensor, sizes: np.ndarray) -> Tensor:
    """Return the sums `[nats, tokens, characters, bytes]` over N tokens: (4,) float64 on the CPU.

    `nats`, (N,), are the surprisals of the tokens, and `tokens`, (N,), the tokens themselves. `sizes`, (V, 2), is the
    tokenizer's `token_sizes`, the number of characters and bytes of each token.
    """
    return torch.tensor([nats.sum(), len(tokens), *sizes[tokens.cpu().numpy()].sum(0)], dtype=torch.float64)


def window_totals(logits: Tensor, targets: Tensor, counted: Tensor, sizes: np.ndarray) -> Tensor:
    """Return the sums `[nats, tokens, characters, bytes]` over the counted targets of a batch: (4,) float64 on the CPU.

    `logits` are (B, T, V) and `targets` (B, T). `counted`, (B, T) bool, is True for each target to include. `sizes`,
    (V, 2), is the tokenizer's `token_sizes`.
    """
    return totals(surprisals(logits[counted], targets[counted]), targets[counted], sizes)


def first_totals(token: int, vocabulary: int, sizes: np.ndarray) -> Tensor:
    """Return the sums `[nats, tokens, characters, bytes]` for the first token of a text alone: (4,) float64.

    Its loss is ln V, with V = `vocabulary`, because no text precedes it. `sizes`, (V, 2), is the tokenizer's
    `token_sizes`.
    """
    return torch.tensor([math.log(vocabulary), 1, *sizes[token]], dtype=torch.float64)


def make_score(totals: Tensor) -> Score:
    """Return the `Score` of a text from its sums `[nats, tokens, characters, bytes]`, (4,).

    `bpc` is NaN if the number of characters is 0, as for bytes that only continue a character.
    """
    nats, tokens, characters, octets = totals.tolist()
    bits = nats / math.log(2)
    bpc = bits / characters if characters else math.nan
    return Score(nats / tokens, bpc, bits / octets, int(tokens), int(characters), int(octets))


@contextmanager
def exact(model: GPT) -> Iterator[None]:
    """Run the model in fp32 and without dropout inside a `with` block, then restore its training mode."""
    training = model.training
    model.eval()
    try:
        with torch.autocast(model.embedding.weight.device.type, enabled=False):
            yield
    finally:
        model.train(training)


@torch.no_grad()
def predictions(model: GPT, windows: Iterable[tuple[Tensor, Tensor, Tensor]]) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the logits (N, V) and the targets (N,) of the N counted tokens in each batch of windows.

    `windows` are the tuples (inputs, targets, counted) that `evaluation_windows` yields. The model runs in fp32 and
    without dropout, and the yielded tensors are on its device.
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
        predicted: batches of logits (N, V) and targets (N,), which together cover all tokens but the first, as
            `predictions` yields them.
        first: the first token of the text, whose loss is ln V.
        vocabulary: the number of tokens in the vocabulary, V.
        sizes: the tokenizer's `token_sizes`, (V, 2).
    """
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

    Disjoint windows (stride = context) are the cheapest. With a smaller stride, windows overlap, and every window after
    the first counts only its last `stride` targets. Each of these targets is predicted from more than context - stride
    tokens.

    Args:
        tokens: the text, one-dimensional, of any integer type.
        context: window length in tokens, T.
        batch: windows per batch on this rank, B.
        stride: tokens from the start of one window to the start of the next, at least 1. The maximum and the default
            are `context`.
        rank: rank of this process. Together the ranks count every target once.
        ranks: number of processes that share the work.
        most: maximum number of counted targets; None: all. If `most` is less than the number of all targets, the
            windows are evenly spaced in the text. The first window is always included, with all its targets.

    Yields:
        A tuple (inputs, targets, counted) of tensors (B, T): int64, int64 and bool. `counted` is True for targets whose
        loss counts. Every batch has B rows and every rank yields the same number of batches. Padding repeats tokens of
        the text and is not counted.

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
