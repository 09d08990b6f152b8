"""Check that an exported model computes the same logits."""

from collections.abc import Callable
from math import isqrt

import torch
from torch import Tensor

from base.errors import InputError
from gpt.model import GPT

TOLERANCE = 1e-5  # of the largest logit
MAX_SCORES = 2**23  # attention scores of a text that is compared
MAX_TABLES = 2**24  # bytes of a position table in a file whose weights are fewer


def check_tables(model: GPT, channels: int) -> None:
    """Raise `InputError` for a context whose position table would be far larger than the weights."""
    most = max(MAX_TABLES, 4 * model.num_parameters()) // (4 * channels)
    if model.config.context > most:
        raise InputError(f"model.context={model.config.context}: its position table may have at most {most} rows")


@torch.no_grad()
def largest_difference(model: GPT, exported: Callable[[Tensor], Tensor]) -> float:
    """Compare the logits of two models on random tokens; lengths are 1 and up to the context, or what fits into memory.

    Returns:
        The largest difference, relative to the largest logit.

    Raises:
        InputError: it is more than `TOLERANCE`.
    """
    generator = torch.Generator().manual_seed(0)
    context = max(1, min(model.config.context, isqrt(MAX_SCORES // model.config.heads)))
    differences = []
    for batch, length in ((1, 1), (1, context), (2, (context + 1) // 2)):
        tokens = torch.randint(model.vocabulary, (batch, length), generator=generator)
        expected = model(tokens)
        differences.append((exported(tokens) - expected).abs().max() / expected.abs().max())
    worst = float(torch.stack(differences).max())  # NaN if any is
    if not worst <= TOLERANCE:
        raise InputError(
            f"logits differ by {worst:.1e} of the largest, must be at most {TOLERANCE:g}; nothing was written"
        )
    return worst
