import pytest

from base.errors import InputError
from gpt.config import ModelConfig
from gpt.model import GPT
from tests.conftest import refusal
from training import memory


def test_a_model_is_refused_if_its_weights_gradients_and_optimizer_cannot_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    assert 2**28 < memory.available("cpu") < 2**50
    model = ModelConfig(layers=2, heads=2, dim=32, context=16)
    need = 16 * GPT(model, 11).num_parameters()
    monkeypatch.setattr(memory, "available", lambda device: need)
    memory.check_memory(model, 11, "cpu")
    monkeypatch.setattr(memory, "available", lambda device: need - 1)
    assert refusal(InputError, memory.check_memory, model, 11, "cpu").endswith("; lower model.dim=32 or model.layers=2")
