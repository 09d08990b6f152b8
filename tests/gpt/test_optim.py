import itertools
from dataclasses import replace

import pytest
import torch

from gpt.config import OptimConfig
from gpt.model import GPT
from gpt.optim import lr_at, make_optimizer, normalise_rows, orthogonalise
from tests.reference.models import fill, tiny
from tests.reference.optim import adamw, learning_rate, rows_normalised


def with_gradients(model: GPT, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    for value in model.parameters():
        value.grad = torch.randn(value.shape, generator=generator, dtype=torch.float64).to(value.dtype)


def test_schedule_equals_its_parts() -> None:
    schedules = (("cosine", 0.5), ("trapezoid", 0.5), ("trapezoid", 0.3), ("trapezoid", 1.0), ("trapezoid", 0.0))
    for min_lr, warmup, (schedule, cooldown) in itertools.product((0.0, 0.002), (0, 1, 7, 8, 500), schedules):
        config = OptimConfig(lr=0.02, min_lr=min_lr, warmup=warmup, schedule=schedule, cooldown=cooldown)
        for steps in (1, 8, 40, 41):
            for step in range(steps):
                expected = learning_rate(
                    step, steps, lr=0.02, min_lr=min_lr, warmup=warmup, schedule=schedule, cooldown=cooldown
                )
                found = lr_at(step, config, steps)
                assert found == pytest.approx(expected, rel=1e-12, abs=1e-15), (config, step, steps)
                assert found > 0
            assert warmup > steps or lr_at(steps + 50, config, steps) == pytest.approx(min_lr), "the last rate stays"


def test_optimizer_equals_adamw_number_by_number() -> None:
    config = OptimConfig(name="adamw", lr=0.01, betas=[0.8, 0.95], weight_decay=0.3)
    model = fill(GPT(tiny(layers=1, dim=4, context=3, bias=True, positions="learned", token_shift=True), 5).double())
    start = {key: value.detach().clone() for key, value in model.named_parameters()}
    optimizer = make_optimizer(model, config)
    assert all(group["eps"] <= 1e-8 for group in optimizer.param_groups)
    gradients: dict[str, list[torch.Tensor]] = {key: [] for key in start}
    for step in range(3):
        with_gradients(model, step)
        for key, value in model.named_parameters():
            gradients[key].append(value.grad.clone())
        optimizer.step()
    for key, value in model.named_parameters():
        steps = torch.stack(gradients[key]).flatten(1).T.tolist()
        expected = [
            adamw(
                number, each, lr=0.01, betas=(0.8, 0.95), eps=optimizer.param_groups[0]["eps"],
                decay=0.3 if value.ndim == 2 else 0.0,
            )
            for number, each in zip(start[key].flatten().tolist(), steps, strict=True)
        ]  # fmt: skip
        assert value.flatten().tolist() == pytest.approx(expected, rel=1e-9, abs=1e-12), key


def test_orthogonalised_matrices_have_singular_values_near_one() -> None:
    """The quintic's coefficients trade exactness for speed: the values end between 0.68 and 1.14 (Jordan et al.)."""
    matrices = torch.randn(5, 24, 64, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    u, values, vh = torch.linalg.svd(matrices, full_matrices=False)
    got = torch.linalg.svdvals(result := orthogonalise(matrices))
    assert values.max() / values.min() > 3 and got.min() > 0.66 and got.max() < 1.16
    # The singular vectors stay: u' result v is diagonal.
    inside = u.mT @ result @ vh.mT
    assert (inside - torch.diag_embed(inside.diagonal(dim1=1, dim2=2))).abs().max() < 1e-9


def test_muon_equals_torchs_muon_on_every_matrix_of_the_blocks() -> None:
    """torch.optim.Muon treats a packed q|k|v as one matrix, so there it is given the three apart."""
    config = OptimConfig(name="muon", lr=0.01, muon_lr=0.05, weight_decay=0.3, muon_beta2=0)
    model = fill(GPT(tiny(layers=2, heads=2, dim=8, context=6, bias=True), 7))
    ours = make_optimizer(model, config, bf16_on_cpu=True)
    names = [name for name, value in model.blocks.named_parameters() if value.ndim == 2]
    parts = {
        (name, index): torch.nn.Parameter(part.detach().clone())
        for name in names
        for index, part in enumerate(model.blocks.get_parameter(name).chunk(3 if "qkv" in name else 1))
    }
    theirs = torch.optim.Muon(list(parts.values()), lr=0.05, weight_decay=0.3, momentum=0.95, nesterov=True)
    for step in range(4):
        with_gradients(model, step)
        for (name, index), value in parts.items():
            gradient = model.blocks.get_parameter(name).grad
            assert gradient is not None
            value.grad = gradient.chunk(3 if "qkv" in name else 1)[index].clone()
        before = {key: value.detach().clone() for key, value in parts.items()}
        ours.step()
        theirs.step()
        for (name, index), value in parts.items():
            got = model.blocks.get_parameter(name).chunk(3 if "qkv" in name else 1)[index]
            moved = (value - before[name, index]).norm()
            # Both iterate in bf16; stacking changes the order of its roundings.
            assert (got - value).norm() < 0.03 * moved * (step + 1), name
            assert moved > 0.01


def test_rows_of_an_update_are_normalised_by_the_formula() -> None:
    generator = torch.Generator().manual_seed(0)
    updates = torch.randn(4, 6, 9, generator=generator, dtype=torch.float64) * torch.logspace(-2, 2, 6)[:, None]
    updates[1:, 2] = 0
    expected = rows_normalised(updates.tolist(), 0.9)
    moment = torch.zeros(6, 1, dtype=torch.float64)
    for update, wanted in zip(updates, expected, strict=True):
        normalise_rows(update, moment, 0.9)
        torch.testing.assert_close(update, torch.tensor(wanted, dtype=torch.float64), rtol=1e-9, atol=1e-12)
    zeros = torch.zeros(6, 9)
    normalise_rows(zeros, torch.zeros(6, 1), 0.9)
    assert zeros.eq(0).all(), "a matrix without a gradient does not become NaN"


def test_muon_normalises_the_rows_of_its_updates() -> None:
    """Two models that differ in `muon_beta2` alone: the second step is the first one's, normalised."""
    moved = []
    for beta2 in (0.0, 0.9):
        model = fill(GPT(tiny(layers=1, dim=8, context=6), 7))
        matrix = model.blocks.get_parameter("0.mlp.up.weight")
        optimizer = make_optimizer(model, OptimConfig(name="muon", weight_decay=0, muon_beta2=beta2))
        moved.append([])
        for step in range(2):
            with_gradients(model, step)
            before = matrix.detach().clone()
            optimizer.step()
            moved[-1].append((before - matrix.detach()).double())
    for found, expected in zip(moved[1], rows_normalised([each.tolist() for each in moved[0]], 0.9), strict=True):
        torch.testing.assert_close(found, torch.tensor(expected, dtype=torch.float64), rtol=1e-2, atol=1e-5)


def test_muon_leaves_all_else_to_adamw() -> None:
    config = OptimConfig(name="muon", lr=0.01, betas=[0.8, 0.95], weight_decay=0.3)
    first, second = (fill(GPT(tiny(layers=1, dim=8, context=6, bias=True, norm="layernorm"), 7)) for _ in range(2))
    ours, theirs = make_optimizer(first, config), make_optimizer(second, replace(config, name="adamw"))
    for step in range(3):
        for model, optimizer in ((first, ours), (second, theirs)):
            with_gradients(model, step)
            optimizer.step()
    for (name, value), other in zip(first.named_parameters(), second.parameters(), strict=True):
        matrix_of_a_block = name.startswith("blocks.") and value.ndim == 2
        assert torch.allclose(value, other, atol=1e-6) != matrix_of_a_block, name
