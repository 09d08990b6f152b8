"""What a model has learned, as plain arrays to draw."""

from typing import NamedTuple

import torch
from torch import Tensor

from gpt.model import GPT, Block

BINS = 10  # of confidence


class Calibration(NamedTuple):
    """How often the most likely token came, by how likely the model thought it.

    Source: Guo et al., On Calibration of Modern Neural Networks, arXiv:1706.04599, equations 1 to 3.

    Attributes:
        counts: (BINS,) int64, predictions in each bin: bin m holds confidences above m / BINS, up to (m + 1) / BINS.
        confidence: (BINS,) float64, their mean; 0 where there is none.
        accuracy: (BINS,) float64, the share of them that were right; 0 where there is none.
        error: the expected calibration error: the mean distance of the two, weighted by the counts.
    """

    counts: Tensor
    confidence: Tensor
    accuracy: Tensor
    error: float


def calibration_totals(logits: Tensor, targets: Tensor) -> Tensor:
    """Sum, in each bin of confidence, the predictions, their confidence and those that were right.

    Args:
        logits: (N, V).
        targets: (N,) int64.

    Returns:
        (3, BINS) float64 on the CPU, which add up over batches.
    """
    confidence, guess = logits.float().softmax(-1).max(-1)  # (N,)
    values = torch.stack((torch.ones_like(confidence), confidence, guess == targets)).cpu().double()  # (3, N)
    bins = ((confidence * BINS).ceil().long() - 1).clamp(min=0).cpu()  # (N,)
    return torch.zeros(3, BINS, dtype=torch.float64).index_add(1, bins, values)


def calibration(totals: Tensor) -> Calibration:
    """Turn (3, BINS) totals into a `Calibration`."""
    counts, confidence, right = totals  # (BINS,)
    least = counts.clamp(min=1)
    error = float((right - confidence).abs().sum() / counts.sum().clamp(min=1))
    return Calibration(counts.long(), confidence / least, right / least, error)


@torch.no_grad()
def attention_maps(model: GPT, tokens: Tensor) -> Tensor:
    """What each place of a passage looks at, in every head.

    Args:
        model: the model; its mode does not matter, nothing is dropped.
        tokens: (T,) int64, at most a context of them.

    Returns:
        (layers, heads, T, T) float32 on the CPU: row t adds up to 1 over the columns 0 to t.
    """
    training = model.training
    model.eval()
    try:
        with torch.autocast(tokens.device.type, enabled=False):
            x = model.embed(tokens[None])  # (1, T, C)
            maps = []
            for block in model.blocks:
                assert isinstance(block, Block)
                q, k, _ = block.attention.queries_keys_values(block.norm1(x))  # (1, H, T, D)
                scores = (q @ k.mT * q.shape[-1] ** -0.5).float()  # (1, H, T, T)
                hidden = torch.full_like(scores[0, 0], -torch.inf).triu(1)  # (T, T)
                bias = block.attention.bias(len(tokens))  # (1 or H, T, T), hidden ones included
                maps.append((scores + (hidden if bias is None else bias.float())).softmax(-1)[0])  # (H, T, T)
                x = block(x)  # (1, T, C)
    finally:
        model.train(training)
    return torch.stack(maps).cpu()  # (layers, H, T, T)
