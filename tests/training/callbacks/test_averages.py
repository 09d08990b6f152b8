import math

import numpy as np
import pytest

from training.callbacks.averages import MovingAverage


@pytest.mark.parametrize("steps", [1, 2, 30, 230, 1500])
def test_the_average_is_over_a_share_of_the_steps_so_far(steps):
    trajectory = np.random.default_rng(0).normal(size=steps)  # of a weight
    # A power law: the value of step t counts as t (t + 1) ... (t + 18), since 20 is 1 / share.
    powers = [float(math.comb(step + 18, 19)) for step in range(1, steps + 1)]
    average, *later = trajectory
    for updates, value in enumerate(later, start=1):
        average = MovingAverage(0.05).averaged(average, value, updates)
    assert average == pytest.approx(np.average(trajectory, weights=powers), abs=1e-9)
