import numpy as np
import pytest
import torch

from gpt.config import OptimConfig
from gpt.model import GPT
from gpt.optim import lr_at, make_optimizer, set_rates
from tests.reference.models import fill, tiny
from tests.reference.optim import learning_rate, momentum, rows_normalised


def with_gradients(model, seed):
    generator = torch.Generator().manual_seed(seed)
    for value in model.parameters():
        random = torch.randn(value.shape, generator=generator, dtype=torch.float64)
        value.grad = random.to(value.dtype)


@pytest.mark.parametrize("steps", [1, 8, 40, 41])
@pytest.mark.parametrize("schedule", ["cosine", "trapezoid"])
@pytest.mark.parametrize("cooldown", [0.5, 0.3, 1.0, 0.0])
@pytest.mark.parametrize("warmup", [0, 1, 7, 8, 500])
@pytest.mark.parametrize("min_lr", [0.0, 0.002])
def test_schedule_equals_its_parts(steps, schedule, cooldown, warmup, min_lr):
    options = {"warmup": warmup, "schedule": schedule, "cooldown": cooldown}
    config = OptimConfig(lr=0.02, min_lr=min_lr, **options)
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

    It is given the mixed momentum as a gradient, and has none of its own. With `muon_every=2` its
    rate is 0 at every second step, and twice as high at the others.
    """
    options = {"muon_beta2": 0, "muon_every": every, "warmup": 0, "cooldown": 0}
    config = OptimConfig(muon_lr=0.05, weight_decay=0.3, **options)
    model = fill(GPT(tiny(layers=2, heads=2, dim=8, context=6, bias=True), 7))
    ours = make_optimizer(model, config, bf16=True)
    matrices = [
        [value for value in block.parameters() if value.ndim == 2] for block in model.blocks
    ]

    def apart(packed):
        for matrix in packed:
            yield from matrix.detach().clone().chunk(3 if len(matrix) == 24 else 1)

    parts = [[torch.nn.Parameter(part) for part in apart(block)] for block in matrices]
    own = {"momentum": 0, "nesterov": False}
    theirs = [torch.optim.Muon(block, weight_decay=0.3, **own) for block in parts]
    history = []
    for step in range(4):
        with_gradients(model, step)
        history.append([list(apart(value.grad for value in block)) for block in matrices])
        gradients = [
            [momentum(seen) for seen in zip(*of_block, strict=True)]
            for of_block in zip(*history, strict=True)
        ]
        set_rates(ours.param_groups, step, config, 10)
        ours.step()
        for i, optimizer in enumerate(theirs):
            due = step % every == i % every
            before = list(apart(parts[i]))
            for part, gradient in zip(parts[i], gradients[i], strict=True):
                part.grad = gradient
            optimizer.param_groups[0]["lr"] = 0.05 * every * due
            optimizer.step()
            for was, got, part in zip(before, apart(matrices[i]), parts[i], strict=True):
                moved = (part - was).norm()
                assert (moved > 0.01) == due, (step, i)
                # Both iterate in bf16; stacking changes the order of its roundings.
                assert not due or (got - part).norm() < 0.03 * moved * (step + 1), got.shape


def test_muon_normalises_the_rows_of_its_updates():
    """Two models that differ in `muon_beta2` alone: the updates of one are those of the other, normalised."""
    moved = []
    for beta2 in (0.0, 0.9):
        model = fill(GPT(tiny(layers=1, dim=8, context=6), 7).double())
        matrix = model.blocks.get_parameter("0.mlp.up.weight")
        unused = model.blocks.get_parameter("0.mlp.down.weight")
        optimizer = make_optimizer(model, OptimConfig(weight_decay=0, muon_beta2=beta2))
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
    models = []
    for name in ("muon", "adamw"):
        config = OptimConfig(name, lr=0.01, betas=[0.8, 0.95], weight_decay=0.3)
        model = fill(GPT(tiny(layers=1, dim=8, context=6, bias=True, norm="layernorm"), 7))
        optimizer = make_optimizer(model, config)
        for step in range(3):
            with_gradients(model, step)
            optimizer.step()
        models.append(model)
    by_adamw = dict(model.named_parameters())
    for name, value in models[0].named_parameters():
        is_matrix = name.startswith("blocks.") and value.ndim == 2
        assert torch.allclose(value, by_adamw[name], atol=1e-6) != is_matrix, name
