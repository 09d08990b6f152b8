"""Check that an exported model computes the same logits as the original."""

from collections.abc import Callable
from math import isqrt

import torch
from torch import Tensor

from base.errors import InputError
from gpt.model import GPT

TOLERANCE = 1e-5  # largest allowed difference, relative to the largest logit
MAX_SCORES = 2**23  # attention scores per layer: limits the memory of the comparison
MAX_TABLE = 2**24  # bytes of a position table; a model with more bytes of weights may have a table of that size


def check_table(model: GPT, channels: int) -> None:
    """Raise `InputError` if the position table (context, channels) would be far larger than the weights."""
    rows = max(MAX_TABLE, 4 * model.num_parameters()) // (4 * channels)
    if model.config.context > rows:
        raise InputError(f"model.context={model.config.context}: its position table may have at most {rows} rows")


@torch.no_grad()
def largest_difference(model: GPT, exported: Callable[[Tensor], Tensor]) -> float:
    """Compare the logits of two models on random tokens, for several batch sizes and lengths.

    The longest text has the length of the context, or less if its attention would have more than `MAX_SCORES` scores.
    Return the largest difference of two logits, divided by the largest logit. If it is NaN or above `TOLERANCE`, raise
    `InputError`.
    """
    generator = torch.Generator().manual_seed(0)
    context = max(1, min(model.config.context, isqrt(MAX_SCORES // model.config.heads)))
    differences = []
    for shape in ((1, 1), (1, context), (2, (context + 1) // 2)):
        tokens = torch.randint(model.vocabulary, shape, generator=generator)  # (batch, length)
        expected = model(tokens)
        differences.append((exported(tokens) - expected).abs().max() / expected.abs().max())
    worst = float(torch.stack(differences).max())  # Tensor.max returns NaN if any value is NaN; Python's max does not
    if not worst <= TOLERANCE:
        allowed = f"must be at most {TOLERANCE:g}; nothing was written"
        raise InputError(f"logits differ by {worst:.1e} of the largest, {allowed}")
    return worst
