"""Whether an exported model still says what the checkpoint says."""

from collections.abc import Callable

import torch
from torch import Tensor

from conf.fields import InputError
from gpt.model import GPT

TOLERANCE = 1e-5  # of the largest logit


@torch.no_grad()
def largest_difference(model: GPT, exported: Callable[[Tensor], Tensor]) -> float:
    """Compare the logits of two models on random tokens of several batch sizes and lengths, 1 and context among them.

    Args:
        model: what the checkpoint holds.
        exported: tokens (B, T) -> logits (B, T, V).

    Returns:
        The largest difference, as a share of the largest logit.

    Raises:
        InputError: it is more than `TOLERANCE`.
    """
    generator = torch.Generator().manual_seed(0)
    context, shares = model.config.context, []
    for batch, length in ((1, 1), (1, context), (2, (context + 1) // 2)):
        tokens = torch.randint(model.vocabulary, (batch, length), generator=generator)
        expected = model(tokens)
        shares.append((exported(tokens) - expected).abs().max() / expected.abs().max())
    worst = float(torch.stack(shares).max())  # not a number where any is none
    if not worst <= TOLERANCE:
        raise InputError(f"logits differ by {worst:.1e} of the largest, must be at most {TOLERANCE:g}; nothing is kept")
    return worst
