import numpy as np
import pytest
import torch

from gpt.inference.decoder import Decoder
from gpt.inference.weights import Weights
from gpt.model import GPT
from gpt.positions import position_tables
from tests.reference.models import tiny

CPU = torch.device("cpu")
# angles in single precision would be off by 0.03 at the last
FAR = (0, 1, 17, 299, 4095, 65_537, 2**20 - 1)


@pytest.mark.parametrize("positions", ["rotary", "sinusoidal"])
def test_tables_and_the_decoder_hold_the_angles(positions):
    config = tiny(positions=positions, context=2**20, dim=8, norm="rmsnorm")
    size = config.rotary_dims or config.dim
    angles = np.array(FAR)[:, None] * 10000 ** (-2 * np.arange(size // 2) / size)  # (8, size / 2)
    tables = [table[list(FAR)] for table in position_tables(config, 2**20, CPU)]
    weights = Weights(
        config, {key: value.numpy() for key, value in GPT(config, 3).state_dict().items()}
    )
    decoder, places = Decoder(weights), np.array([FAR])  # (1, 8)
    if positions == "rotary":
        encoded = decoder.rotation(places)[0, 0]
        found, wanted = [*tables, encoded.real, encoded.imag], [np.cos(angles), np.sin(angles)] * 2
    else:
        waves = np.stack((np.sin(angles), np.cos(angles)), -1).reshape(len(FAR), -1)
        weights.embedding[:] = 0  # what is left are the positions
        encoded = decoder.embed(np.zeros_like(places), places)
        found, wanted = [*tables, encoded], [waves, waves / config.dim**0.5]
    for one, other in zip(found, wanted, strict=True):
        assert (
            one.shape == other.shape
            and one.itemsize == 4
            and np.abs(np.asarray(one) - other).max() < 2**-25 + 1e-9
        )
