import itertools
import math

import numpy as np
import pytest
import torch

from gpt.attention import rotate
from gpt.inference.weights import Weights
from gpt.model import GPT
from gpt.position_tables import position_tables
from gpt.positions import rotary_tables
from tests.reference.models import normal, tiny
from tests.reference.positions import rotary


def test_rotation_is_the_paper_s() -> None:
    for turned, base in itertools.product((2, 4, 6, 16), (10000.0, 50.0)):
        x = normal(2, 3, 9, 16)
        places = np.arange(9)
        tables = rotary_tables(places, turned) if base == 10000.0 else rotary_tables(places, turned, base)
        cos, sin = map(torch.from_numpy, tables)
        expected = np.array([[rotary(head.numpy(), base, turned) for head in row] for row in x])
        np.testing.assert_allclose(rotate(x, cos, sin).numpy(), expected, rtol=0, atol=3e-6)


CPU = torch.device("cpu")
FAR = (0, 1, 17, 299, 4095, 65_537, 2**20 - 1)  # angles in single precision would be off by 0.03 at the last


def test_tables_hold_the_angles() -> None:
    config = tiny(context=2**20, dim=16, heads=2, key_offset=False)
    found = position_tables(config, 2**20, CPU)
    for cos, sin in (found, [torch.from_numpy(table).float() for table in rotary_tables(np.arange(2**20), 8)]):
        assert cos.shape == sin.shape == (2**20, 4) and cos.dtype == sin.dtype == torch.float32
        for t, i in itertools.product(FAR, range(4)):
            angle = t * 10000 ** (-2 * i / 8)
            assert cos[t, i].item() == pytest.approx(math.cos(angle), rel=0, abs=2**-25 + 1e-9)
            assert sin[t, i].item() == pytest.approx(math.sin(angle), rel=0, abs=2**-25 + 1e-9)


@pytest.mark.parametrize("positions", ["rotary", "sinusoidal"])
def test_the_decoder_holds_the_angles_and_longer_texts_share_the_tables(positions: str) -> None:
    config = tiny(positions=positions, context=2**20, dim=8, norm="rmsnorm")
    weights = Weights(config, {key: value.numpy() for key, value in GPT(config, 3).state_dict().items()})
    size = config.rotary_dims or config.dim
    found = weights.encoding(np.array(FAR)).reshape(len(FAR), -1)
    angles = np.array(FAR)[:, None] * 10000 ** (-2 * np.arange(size // 2) / size)
    if positions == "rotary":
        wanted = np.exp(1j * angles)
    else:
        wanted = np.stack((np.sin(angles), np.cos(angles)), -1).reshape(len(FAR), -1) / config.dim**0.5
    assert found.itemsize == wanted.itemsize / 2 and np.abs(found - wanted).max() < 6e-8
    # A longer text leaves the tables as they were, and layers share them.
    first = [table.clone() for table in position_tables(config, 100, CPU)]
    longer, again = (position_tables(config, n, CPU) for n in (5000, 120))
    assert all(torch.equal(one, other[:100]) for one, other in zip(first, longer, strict=True))
    assert again[0].data_ptr() == position_tables(config, 65, CPU)[0].data_ptr()


def test_a_long_context_takes_no_memory_before_there_is_text() -> None:
    for positions in ("rotary", "sinusoidal", "alibi", "none"):
        model = GPT(tiny(positions=positions, context=2**20), 11)
        assert not list(model.buffers()), positions
        with torch.inference_mode():
            model(torch.zeros(1, 300, dtype=torch.int64))
        model(torch.zeros(1, 300, dtype=torch.int64)).sum().backward()
