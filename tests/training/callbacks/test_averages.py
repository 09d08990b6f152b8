import math

import pytest
import torch

from training.callbacks.averages import MovingAverage

LAST_TWENTIETH = 20  # 1 / share


@pytest.mark.parametrize("steps", [1, 2, 30, 230, 1500])
def test_the_average_is_over_a_share_of_the_steps_so_far(steps):
    trajectory = torch.randn(steps, generator=torch.Generator().manual_seed(0)).double()
    # A power law: the value of step t counts as t (t + 1) ... (t + 18).
    powers = [
        math.comb(step + LAST_TWENTIETH - 2, LAST_TWENTIETH - 1) for step in range(1, steps + 1)
    ]
    shares = torch.tensor(
        [power / sum(powers) for power in powers], dtype=torch.float64
    )  # (steps,)
    average, *later = trajectory
    for updates, value in enumerate(later, start=1):
        average = MovingAverage(0.05).averaged(average, value, updates)
    assert float(average) == pytest.approx(float(shares @ trajectory), abs=1e-9)
