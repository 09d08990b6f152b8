"""Exact losses: every character of a text predicted once, summed in float64.

A text is cut into windows `(inputs, targets, counted)` elsewhere; here their losses are reduced to nats
per token, bits per character and bits per byte. Sums of windows are (4,) float64 tensors
`[nats, tokens, characters, bytes]`, which add up over batches and devices in any order.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass

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


def window_totals(logits: Tensor, targets: Tensor, counted: Tensor, characters: Tensor, bytes: Tensor) -> Tensor:
    """Sum the losses of a batch of windows.

    Args:
        logits: (B, T, V).
        targets: (B, T) int64.
        counted: (B, T) bool; False for padding and for characters that another window counts.
        characters: (V,) how many characters each token stands for.
        bytes: (V,) how many UTF-8 bytes each token stands for.

    Returns:
        (4,) float64 on the CPU: nats, tokens, characters, bytes.
    """
    logits = logits if logits.dtype == torch.float64 else logits.float()
    nats = F.cross_entropy(logits[counted], targets[counted], reduction="none")  # (counted,)
    hit = targets[counted].cpu()
    return torch.stack(
        [
            nats.cpu().double().sum(),
            torch.tensor(hit.numel(), dtype=torch.float64),
            characters[hit].double().sum(),
            bytes[hit].double().sum(),
        ]
    )


def first_totals(token: int, vocabulary: int, characters: Tensor, bytes: Tensor) -> Tensor:
    """What the first token of a text costs: nothing comes before it, so ln V."""
    return torch.tensor([math.log(vocabulary), 1.0, float(characters[token]), float(bytes[token])], dtype=torch.float64)


def score(totals: Tensor) -> Score:
    """Turn (4,) totals into a `Score`."""
    nats, tokens, characters, bytes = totals.tolist()
    bits = nats / math.log(2)
    return Score(nats / tokens, bits / characters, bits / bytes, int(tokens), int(characters), int(bytes))


@torch.no_grad()
def evaluate(
    model: GPT, windows: Iterable[tuple[Tensor, Tensor, Tensor]], first: int, characters: Tensor, bytes: Tensor
) -> Score:
    """Score a model on a text: forward in fp32, sums in float64.

    Args:
        model: the model; left in the mode it came in.
        windows: `(inputs, targets, counted)`, each (B, T), that count every token but the first once.
        first: the text's first token.
        characters: (V,) how many characters each token stands for.
        bytes: (V,) how many UTF-8 bytes each token stands for.
    """
    device = model.embedding.weight.device
    training = model.training
    model.eval()
    totals = first_totals(first, model.vocabulary, characters, bytes)
    try:
        with torch.autocast(device.type, enabled=False):
            for inputs, targets, counted in windows:
                logits = model(inputs.to(device))
                totals += window_totals(logits, targets.to(device), counted.to(device), characters, bytes)
    finally:
        model.train(training)
    return score(totals)
