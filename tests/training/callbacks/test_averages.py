import math

import pytest
import torch
from torch.optim.swa_utils import AveragedModel

from training.callbacks.averages import MovingAverage

LAST_TWENTIETH = 20  # 1 / share


def averaged(share, trajectory):
    """The average of a model of one weight that has these values after its steps, (steps,) float64."""
    model = torch.nn.Linear(1, 1, bias=False).double()
    callback = MovingAverage(share)
    average = AveragedModel(model, avg_fn=callback.averaged)
    for value in trajectory:
        with torch.no_grad():
            model.weight.fill_(value)
        average.update_parameters(model)
    return average.module.weight.item()


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
    assert averaged(0.05, trajectory) == pytest.approx(float(shares @ trajectory), abs=1e-9)
