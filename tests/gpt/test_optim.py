from dataclasses import replace

import numpy as np
import pytest
import torch

from gpt.config import OptimConfig
from gpt.model import GPT
from gpt.optim import lr_at, make_optimizer, set_rates
from tests.reference.models import fill, tiny
from tests.reference.optim import learning_rate, rows_normalised


def with_gradients(model, seed):
    generator = torch.Generator().manual_seed(seed)
    for value in model.parameters():
        value.grad = torch.randn(value.shape, generator=generator, dtype=torch.float64).to(
            value.dtype
        )


SCHEDULES = [
    ("cosine", 0.5),
    ("trapezoid", 0.5),
    ("trapezoid", 0.3),
    ("trapezoid", 1.0),
    ("trapezoid", 0.0),
]


@pytest.mark.parametrize("steps", [1, 8, 40, 41])
@pytest.mark.parametrize(("schedule", "cooldown"), SCHEDULES)
@pytest.mark.parametrize("warmup", [0, 1, 7, 8, 500])
@pytest.mark.parametrize("min_lr", [0.0, 0.002])
def test_schedule_equals_its_parts(steps, schedule, cooldown, warmup, min_lr):
    config = OptimConfig(
        lr=0.02, min_lr=min_lr, warmup=warmup, schedule=schedule, cooldown=cooldown
    )
    found = [lr_at(step, config, steps) for step in range(steps)]
    expected = [learning_rate(step, steps, config) for step in range(steps)]
    assert found == pytest.approx(expected, rel=1e-12, abs=1e-15)
    assert min(found) > 0
    if warmup <= steps:
        later = lr_at(steps + 50, config, steps)
        assert later == pytest.approx(min_lr), "the last rate stays"


def test_adamw_is_torchs_and_decays_no_vector():
    model = GPT(tiny(bias=True, positions="learned", token_shift=True), 5)
    config = OptimConfig(name="adamw", lr=0.01, betas=[0.8, 0.95], weight_decay=0.3)
    optimizer = make_optimizer(model, config)
    assert type(optimizer) is torch.optim.AdamW
    decays = {}
    for group in optimizer.param_groups:
        assert (group["lr"], group["betas"], group["eps"]) == (0.01, (0.8, 0.95), 1e-8)
        decays |= dict.fromkeys(group["params"], group["weight_decay"])
    assert decays == {value: 0.3 if value.ndim > 1 else 0.0 for value in model.parameters()}


@pytest.mark.parametrize("every", [1, 2])
def test_muon_equals_torchs_muon_on_every_matrix_of_the_blocks(every):
    """torch.optim.Muon treats a packed q|k|v as one matrix, so there it is given the three apart.

    With `muon_every=2` its rate is 0 at every second step, and twice as high at the others.
    """
    config = OptimConfig(
        lr=0.01,
        muon_lr=0.05,
        weight_decay=0.3,
        muon_beta2=0,
        muon_every=every,
        warmup=0,
        cooldown=0,
    )
    model = fill(GPT(tiny(layers=2, heads=2, dim=8, context=6, bias=True), 7))
    ours = make_optimizer(model, config, bf16=True)
    matrices = [
        [value for value in block.parameters() if value.ndim == 2] for block in model.blocks
    ]

    def apart(packed):
        return [
            part.clone() for each in packed for part in each.chunk(3 if len(each) == 24 else 1)
        ]

    parts = [
        [torch.nn.Parameter(part) for part in apart([each.detach() for each in block])]
        for block in matrices
    ]
    theirs = [
        torch.optim.Muon(block, lr=0.05, weight_decay=0.3, momentum=0.95, nesterov=True)
        for block in parts
    ]
    for step in range(4):
        with_gradients(model, step)
        before = [[part.detach().clone() for part in block] for block in parts]
        for i, block in enumerate(parts):
            for part, gradient in zip(
                block, apart([each.grad for each in matrices[i]]), strict=True
            ):
                part.grad = gradient
            theirs[i].param_groups[0]["lr"] = 0.05 * every if step % every == i % every else 0
            theirs[i].step()
        set_rates(ours.param_groups, step, config, 10)
        ours.step()
        for i, block in enumerate(parts):
            for was, got, part in zip(before[i], apart(matrices[i]), block, strict=True):
                moved, turn = (part - was).norm(), step % every == i % every
                assert (moved > 0.01) == turn, (step, i)
                # Both iterate in bf16; stacking changes the order of its roundings.
                assert not turn or (got - part).norm() < 0.03 * moved * (step + 1), got.shape


def test_muon_normalises_the_rows_of_its_updates():
    """Two models that differ in `muon_beta2` alone: the updates of one are those of the other, normalised."""
    moved = []
    for beta2 in (0.0, 0.9):
        model = fill(GPT(tiny(layers=1, dim=8, context=6), 7).double())
        matrix = model.blocks.get_parameter("0.mlp.up.weight")
        unused = model.blocks.get_parameter("0.mlp.down.weight")
        optimizer = make_optimizer(
            model, OptimConfig(name="muon", weight_decay=0, muon_beta2=beta2)
        )
        moved.append([])
        for step in range(3):
            with_gradients(model, step)
            matrix.grad *= torch.logspace(-2, 2, len(matrix))[:, None]
            matrix.grad[2] *= step == 0  # a row that stops to move
            unused.grad.zero_()
            before = matrix.detach().clone()
            optimizer.step()
            moved[-1].append((before - matrix.detach()).tolist())
        assert unused.isfinite().all(), "a matrix without a gradient does not become NaN"
    expected = rows_normalised(moved[0], 0.9)
    np.testing.assert_allclose(moved[1], expected, rtol=1e-7, atol=1e-12)


def test_muon_leaves_all_else_to_adamw():
    config = OptimConfig(lr=0.01, betas=[0.8, 0.95], weight_decay=0.3)
    shape = tiny(layers=1, dim=8, context=6, bias=True, norm="layernorm")

    def trained(optimizer_name):
        model = fill(GPT(shape, 7))
        optimizer = make_optimizer(model, replace(config, name=optimizer_name))
        for step in range(3):
            with_gradients(model, step)
            optimizer.step()
        return model

    muon = trained("muon")
    adamw_weights = dict(trained("adamw").named_parameters())
    differing = [
        name
        for name, value in muon.named_parameters()
        if not torch.allclose(value, adamw_weights[name], atol=1e-6)
    ]
    matrices = [name for name, value in muon.blocks.named_parameters() if value.ndim == 2]
    assert differing == [f"blocks.{name}" for name in matrices]
