"""Exact losses: every character of a text predicted once, summed in float64.

A text is cut into windows `(inputs, targets, counted)` elsewhere; here their losses are reduced to nats
per token, bits per character and bits per byte. Sums of windows are (4,) float64 tensors
`[nats, tokens, characters, bytes]`, which add up over batches and devices in any order.
"""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from gpt.model import GPT


@dataclass(frozen=True)
class Score:
    """How well a model predicts a text: `loss` in nats per token, `bpc` and `bpb` in bits."""

    loss: float
    bpc: float
    bpb: float
    tokens: int
    characters: int
    bytes: int


def measured(score: Score, context: int) -> dict[str, Any]:
    """How a loss was measured, as model files and summary.json say it: in disjoint windows of `context` characters."""
    return {"mode": "disjoint", "context": context, "stride": context, "characters": score.characters}


def surprisals(logits: Tensor, targets: Tensor) -> Tensor:
    """What each target costs, -ln of its probability.

    Args:
        logits: (N, V).
        targets: (N,) int64.

    Returns:
        (N,) float64 on the CPU, in nats.
    """
    logits = logits if logits.dtype == torch.float64 else logits.float()
    return F.cross_entropy(logits, targets, reduction="none").cpu().double()  # (N,)


def totals(nats: Tensor, tokens: Tensor, sizes: np.ndarray) -> Tensor:
    """Sum what tokens cost.

    Args:
        nats: (N,) float64, see `surprisals`.
        tokens: (N,) int64.
        sizes: (V, 2) int64, how many characters and UTF-8 bytes each token stands for: a tokenizer's `token_sizes`.

    Returns:
        (4,) float64 on the CPU: nats, tokens, characters, bytes.
    """
    return torch.tensor([nats.sum(), len(tokens), *sizes[tokens.cpu().numpy()].sum(0)], dtype=torch.float64)


def window_totals(logits: Tensor, targets: Tensor, counted: Tensor, sizes: np.ndarray) -> Tensor:
    """Sum the losses of a batch of windows.

    Args:
        logits: (B, T, V).
        targets: (B, T) int64.
        counted: (B, T) bool; False for padding and for characters that another window counts.
        sizes: (V, 2) int64, how many characters and UTF-8 bytes each token stands for: a tokenizer's `token_sizes`.

    Returns:
        (4,) float64 on the CPU: nats, tokens, characters, bytes.
    """
    return totals(surprisals(logits[counted], targets[counted]), targets[counted], sizes)


def first_totals(token: int, vocabulary: int, sizes: np.ndarray) -> Tensor:
    """What the first token of a text costs: nothing comes before it, so ln V."""
    return torch.tensor([math.log(vocabulary), 1, *sizes[token]], dtype=torch.float64)


def score(totals: Tensor) -> Score:
    """Turn (4,) totals into a `Score`; `bpc` is nan for bytes of which none begins a character."""
    nats, tokens, characters, octets = totals.tolist()
    bits = nats / math.log(2)
    bpc = bits / characters if characters else math.nan
    return Score(nats / tokens, bpc, bits / octets, int(tokens), int(characters), int(octets))


@torch.no_grad()
def predictions(model: GPT, windows: Iterable[tuple[Tensor, Tensor, Tensor]]) -> Iterator[tuple[Tensor, Tensor]]:
    """Run a model over windows, one batch at a time: in fp32, without dropout.

    Args:
        model: the model; left in the mode it came in.
        windows: `(inputs, targets, counted)`, each (B, T).

    Yields:
        logits (N, V) and targets (N,) of what each batch counts, row by row, on the model's device.
    """
    device = model.embedding.weight.device
    for inputs, targets, counted in windows:
        training = model.training
        model.eval()
        try:
            with torch.autocast(device.type, enabled=False):
                logits = model(inputs.to(device))
        finally:
            model.train(training)
        counted = counted.to(device)
        yield logits[counted], targets.to(device)[counted]


def reduce(predicted: Iterable[tuple[Tensor, Tensor]], first: int, vocabulary: int, sizes: np.ndarray) -> Score:
    """Sum what a text costs.

    Args:
        predicted: logits (N, V) and targets (N,) of every token but the first; see `predictions`.
        first: the text's first token.
        vocabulary: V.
        sizes: (V, 2) int64, how many characters and UTF-8 bytes each token stands for: a tokenizer's `token_sizes`.
    """
    total = first_totals(first, vocabulary, sizes)
    for logits, targets in predicted:
        total += totals(surprisals(logits, targets), targets, sizes)
    return score(total)


def evaluate(model: GPT, windows: Iterable[tuple[Tensor, Tensor, Tensor]], first: int, sizes: np.ndarray) -> Score:
    """Score a model on a text: forward in fp32, sums in float64.

    Args:
        model: the model; left in the mode it came in.
        windows: `(inputs, targets, counted)`, each (B, T), that count every token but the first once.
        first: the text's first token.
        sizes: (V, 2) int64, how many characters and UTF-8 bytes each token stands for: a tokenizer's `token_sizes`.
    """
    return reduce(predictions(model, windows), first, model.vocabulary, sizes)
