"""The check that an export must pass fails for each way of being wrong that it is for."""

import pytest
import torch
from torch import Tensor

from base.errors import InputError
from gpt.export.parity import TOLERANCE, largest_difference
from tests.model_files import filled
from tests.reference.models import tiny

MODEL = filled(tiny())
CONTEXT = MODEL.config.context


@torch.no_grad()
def test_the_difference_is_a_share_of_the_largest_logit() -> None:
    def near(share: float) -> float:
        def exported(tokens: Tensor) -> Tensor:
            logits = MODEL(tokens).clone()
            logits[-1, -1, 3] += share * TOLERANCE * logits.abs().max()
            return logits

        return largest_difference(MODEL, exported)

    assert largest_difference(MODEL, MODEL) == 0.0
    assert near(0.5) == pytest.approx(0.5 * TOLERANCE, rel=0.05)
    with pytest.raises(InputError, match="logits differ by 2.0e-05 of the largest, must be at most 1e-05"):
        near(2.0)


def test_every_shape_is_looked_at() -> None:
    for wrong in (
        lambda tokens: 1.1 if tokens.shape[1] == 1 else 1,
        lambda tokens: 1.1 if tokens.shape[1] == CONTEXT else 1,
        lambda tokens: 1.1 if tokens.shape[0] > 1 else 1,
        lambda tokens: torch.nan,
    ):
        with pytest.raises(InputError):
            largest_difference(MODEL, lambda tokens, wrong=wrong: MODEL(tokens) * wrong(tokens))
