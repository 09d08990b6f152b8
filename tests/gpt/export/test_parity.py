"""The check that an export must pass fails for each way of being wrong that it is for."""

import pytest
import torch
from torch import Tensor

from conf.fields import InputError
from gpt.export.parity import TOLERANCE, largest_difference
from gpt.model import GPT
from tests.reference.models import fill, tiny

MODEL = fill(GPT(tiny(), 11)).eval()


def test_the_same_model_has_no_difference() -> None:
    assert largest_difference(MODEL, MODEL) == 0.0


@torch.no_grad()
@pytest.mark.parametrize("share", [0.5, 2.0])
def test_the_difference_is_a_share_of_the_largest_logit(share: float) -> None:
    def near(tokens: Tensor) -> Tensor:
        logits = MODEL(tokens).clone()
        logits[-1, -1, 3] += share * TOLERANCE * logits.abs().max()
        return logits

    if share < 1:
        assert largest_difference(MODEL, near) == pytest.approx(share * TOLERANCE, rel=0.05)
    else:
        with pytest.raises(InputError, match="logits differ by 2.0e-05 of the largest, must be at most 1e-05"):
            largest_difference(MODEL, near)


@pytest.mark.parametrize("wrong", ["one", "context", "batch", "nan"])
def test_every_shape_is_looked_at(wrong: str) -> None:
    def exported(tokens: Tensor) -> Tensor:
        hit = {
            "one": tokens.shape[1] == 1,
            "context": tokens.shape[1] == MODEL.config.context,
            "batch": tokens.shape[0] > 1,
            "nan": True,
        }[wrong]
        return MODEL(tokens) * (torch.nan if wrong == "nan" else 1.1) if hit else MODEL(tokens)

    with pytest.raises(InputError):
        largest_difference(MODEL, exported)
