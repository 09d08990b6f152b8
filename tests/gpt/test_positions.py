import numpy as np
import pytest
import torch

from gpt.inference.decoder import Decoder
from gpt.inference.weights import weights_of
from gpt.positions import position_tables
from tests.model_files import filled
from tests.reference.models import tiny

# angles in single precision would be off by 0.03 at the last
FAR = np.array([[0, 1, 17, 299, 4095, 65_537, 2**20 - 1]])


@pytest.mark.parametrize("positions", ["rotary", "sinusoidal"])
def test_tables_and_the_decoder_hold_the_angles(positions):
    config = tiny(positions=positions, context=2**20, dim=8)
    size = config.rotary_dims or config.dim
    angles = FAR[0, :, None] * 10000 ** (-2 * np.arange(size // 2) / size)  # (7, size / 2)
    tables = [
        table[FAR[0]].numpy() for table in position_tables(config, 2**20, torch.device("cpu"))
    ]
    model = filled(config)
    model.embedding.weight.data.zero_()  # what is left are the positions
    decoder = Decoder(weights_of(model))
    if positions == "rotary":
        encoded = decoder.rotation(FAR)[0, 0]
        pairs = zip(
            [*tables, encoded.real, encoded.imag],
            [np.cos(angles), np.sin(angles)] * 2,
            strict=True,
        )
    else:
        waves = np.stack((np.sin(angles), np.cos(angles)), -1).reshape(len(angles), -1)
        encoded = decoder.embed(np.zeros_like(FAR), FAR) * config.dim**0.5
        pairs = ((found, waves) for found in (*tables, encoded))
    for found, expected in pairs:
        assert found.dtype == np.float32
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-7)
