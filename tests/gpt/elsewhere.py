"""Tests of what goes where on a device that is no CPU, which test_elsewhere.py runs in a process of its own.

The device is pretended: torch's fake tensors know shapes, types and devices, and no numbers. Tensors of two devices in
one operation and a look at a number are errors there, as they are errors or a wait on a GPU.
"""

from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._guards import active_fake_mode
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, unset_fake_temporarily
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.utils import backend_registration

from data.batches import batches_on_device
from gpt.analysis import attention_maps
from gpt.config import ModelConfig, OptimConfig
from gpt.evaluation import predictions, surprisals
from gpt.model import GPT
from gpt.optim import make_optimizer
from gpt.transfer import copy_weights
from tests.reference.models import MIXED, PLACES, name, tiny

V = 11
CONFIGS = [MIXED[0], MIXED[-1], *PLACES[1::12], tiny(heads=3, dropout=0.1)]
backend = SimpleNamespace(
    is_available=lambda: True, device_count=lambda: 1, current_device=lambda: 0, is_initialized=lambda: True,
    get_amp_supported_dtype=lambda: [torch.bfloat16],
)  # fmt: skip
backend_registration._setup_privateuseone_for_python_backend("elsewhere", backend)
DEVICE = torch.device("elsewhere", 0)
aten = torch.library.Library("aten", "IMPL")  # torch has a fake of this one for rates that are numbers only
aten.impl("_fused_adamw_.tensor_lr", lambda *_, **__: None, "Meta")


@pytest.fixture(autouse=True)
def fake() -> None:
    with FakeTensorMode(allow_non_fake_inputs=True, shape_env=ShapeEnv(allow_dynamic_output_shape_ops=True)):
        yield


def build(config: ModelConfig) -> GPT:
    with unset_fake_temporarily():
        model = GPT(config, V)
        tables = [table for module in model.modules() for table in (module._parameters, module._buffers)]
        kept = [(table, *item) for table in tables for item in table.items() if item[1] is not None]
        kept = [(*each, each[2].detach().to("meta")) for each in kept]
    mode, moved = active_fake_mode(), {}
    for table, key, tensor, shape in kept:
        if tensor not in moved:  # tied weights stay one
            there = FakeTensor(mode, shape, DEVICE)
            moved[tensor] = nn.Parameter(there) if tensor.requires_grad else there
        table[key] = moved[tensor]
    return model


def tokens(config: ModelConfig, rows: int = 3) -> Tensor:
    return torch.zeros(rows, config.context + 1, dtype=torch.int64, device=DEVICE)


@pytest.mark.parametrize("config", CONFIGS, ids=name)
def test_a_step_stays_there_and_nobody_looks(config: ModelConfig) -> None:
    model = build(config)
    adam = make_optimizer(model, OptimConfig(name="adamw" if config in CONFIGS[:2] else "muon"))
    for group in adam.param_groups:
        group["lr"] = torch.zeros((), device=DEVICE)
    for _ in range(2):
        batch = tokens(config)
        logits = model(batch[:, :-1]).float()  # (B, T, V)
        loss = F.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        adam.step()
        adam.zero_grad()
        assert torch.stack((loss.detach(), norm)).device == DEVICE
    assert {value.device for state in adam.state.values() for value in state.values()} == {DEVICE}


@pytest.mark.parametrize("config", CONFIGS[::3], ids=name)
def test_evaluation_brings_its_sums_home(config: ModelConfig) -> None:
    model, batch = build(config), tokens(config)
    inputs, targets = batch[:, :-1], batch[:, 1:]
    counted = torch.ones_like(inputs, dtype=torch.bool)
    logits = model(inputs)
    assert surprisals(logits[counted], targets[counted]).device.type == "cpu"
    assert attention_maps(model, inputs[0]).device.type == "cpu"
    window = inputs.cpu(), targets.cpu(), counted.cpu()
    assert [each.device for each in next(predictions(model, [window]))] == [DEVICE, DEVICE]


def test_a_trained_model_is_taken_over_and_batches_are_made_there() -> None:
    model = build(tiny())
    copy_weights(model, build(tiny(context=5)), torch.arange(V, device=DEVICE))
    assert model.head.weight.device == DEVICE
    for dtype in (torch.uint8, torch.int32):
        text = torch.empty(500, dtype=dtype, device=DEVICE)
        batch = next(batches_on_device(text, 0, 3, 8, 20, slice(2, 5)))
        assert batch.device == DEVICE and batch.shape == (3, 21) and batch.dtype == torch.int64
