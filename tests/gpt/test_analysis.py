import numpy as np
import torch

from gpt.analysis import attention_maps
from gpt.model import GPT
from tests.reference import model as reference
from tests.reference.models import ALL, fill, name

VOCABULARY = 11


def test_attention_maps_equal_loops() -> None:
    for config in ALL:
        model = fill(GPT(config, VOCABULARY).double(), std=1.0)  # with less, they look everywhere alike
        tokens = torch.randint(VOCABULARY, (config.context,), generator=torch.Generator().manual_seed(5))
        seen: list[np.ndarray] = []
        reference.gpt(model.state_dict(), config, tokens[None].numpy(), seen=seen)
        expected = np.reshape(seen, (config.layers, config.heads, config.context, config.context))
        found = attention_maps(model, tokens)
        assert found.dtype == torch.float32
        np.testing.assert_allclose(found, expected, rtol=0, atol=2e-5, err_msg=name(config))  # scores in fp32
