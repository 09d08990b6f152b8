import numpy as np
import pytest

from training.choosing.scaling_law import LEARNED, predicted_loss, tokens_needed


@pytest.mark.parametrize(
    ("weights", "dropout", "text"), [(805_376, 0.0, 180_000), (1_797_888, 0.1, 1_003_854)]
)
def test_a_text_is_learned_before_its_loss_rises(weights, dropout, text):
    needed = tokens_needed(weights, dropout, text)
    losses = predicted_loss(weights, dropout, text, needed * np.geomspace(0.5, 50, 500))
    at_end = float(predicted_loss(weights, dropout, text, needed))
    assert losses.min() <= at_end <= losses.min() + LEARNED + 1e-6
    assert losses[0] > at_end and losses[-1] > at_end + 0.1
