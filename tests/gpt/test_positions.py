import numpy as np
import pytest
import torch

from gpt.positions import position_tables
from tests.reference.models import tiny

# angles in single precision would be off by 0.03 at the last
FAR = np.array([0, 1, 17, 299, 4095, 65_537, 2**20 - 1])


@pytest.mark.parametrize("positions", ["rotary", "sinusoidal"])
def test_tables_hold_the_angles_of_a_long_context(positions):
    """The decoder computes them in the precision of its weights: its tests have 1e-10."""
    config = tiny(positions=positions, context=2**20, dim=8)
    size = config.rotary_dims or config.dim
    angles = FAR[:, None] * 10000 ** (-2 * np.arange(size // 2) / size)  # (7, size / 2)
    tables = position_tables(config, 2**20, torch.device("cpu"))
    if positions == "sinusoidal":
        tables = tables[0][:, 1::2], tables[0][:, ::2]
    for table, expected in zip(tables, (np.cos(angles), np.sin(angles)), strict=True):
        assert table.dtype == torch.float32
        np.testing.assert_allclose(table[FAR], expected, rtol=0, atol=1e-7)
