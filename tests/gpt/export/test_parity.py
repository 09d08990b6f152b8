import pytest
import torch
from torch import Tensor

from conf.fields import InputError
from gpt.export.parity import TOLERANCE, largest_difference
from tests.model_files import filled
from tests.reference.models import tiny

MODEL = filled(tiny())
CONTEXT = MODEL.config.context


@torch.no_grad()
def test_the_difference_is_a_share_of_the_largest_logit_in_every_shape() -> None:
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
    for wrong in (
        lambda batch, length: 1 + 0.1 * (length == 1), lambda batch, length: 1 + 0.1 * (length == CONTEXT),
        lambda batch, length: 1 + 0.1 * (batch > 1), lambda batch, length: torch.nan,
    ):  # fmt: skip
        with pytest.raises(InputError):
            largest_difference(MODEL, lambda tokens, wrong=wrong: MODEL(tokens) * wrong(*tokens.shape))
