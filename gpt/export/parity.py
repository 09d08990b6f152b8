"""Whether an exported model still says what the checkpoint says."""

from collections.abc import Callable
from math import isqrt

import torch
from torch import Tensor

from base.errors import InputError
from gpt.model import GPT

TOLERANCE = 1e-5  # of the largest logit
MAX_SCORES = 2**23  # numbers of attention that a comparison may take for a text
MAX_TABLES = 2**24  # bytes of a table of positions in a file, where the weights are fewer


def check_tables(model: GPT, channels: int) -> None:
    """Refuse a context whose table of positions would be far larger than the weights.

    Raises:
        InputError: it is longer.
    """
    most = max(MAX_TABLES, 4 * model.num_parameters()) // (4 * channels)
    if model.config.context > most:
        raise InputError(f"model.context={model.config.context}: its table of positions may have at most {most} rows")


@torch.no_grad()
def largest_difference(model: GPT, exported: Callable[[Tensor], Tensor]) -> float:
    """Compare the logits of two models on random tokens of several batch sizes and lengths.

    1 and the context are among them; of a long context, as much as memory for attention allows.

    Args:
        model: what the checkpoint holds.
        exported: tokens (B, T) -> logits (B, T, V).

    Returns:
        The largest difference, as a share of the largest logit.

    Raises:
        InputError: it is more than `TOLERANCE`.
    """
    generator = torch.Generator().manual_seed(0)
    context = max(1, min(model.config.context, isqrt(MAX_SCORES // model.config.heads)))
    shares = []
    for batch, length in ((1, 1), (1, context), (2, (context + 1) // 2)):
        tokens = torch.randint(model.vocabulary, (batch, length), generator=generator)
        expected = model(tokens)
        shares.append((exported(tokens) - expected).abs().max() / expected.abs().max())
    worst = float(torch.stack(shares).max())  # not a number where any is none
    if not worst <= TOLERANCE:
        raise InputError(f"logits differ by {worst:.1e} of the largest, must be at most {TOLERANCE:g}; nothing is kept")
    return worst
