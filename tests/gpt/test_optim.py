"""The schedule and AdamW against their formulas; which parameters decay."""

import itertools
import math

import pytest
import torch

from gpt.config import ModelConfig, OptimConfig
from gpt.model import GPT
from gpt.optim import lr_at, make_optimizer, parameter_groups
from tests.reference.models import SOME, fill, name, tiny
from tests.reference.optim import adamw, learning_rate

SCHEDULES = [
    OptimConfig(lr=0.02, min_lr=min_lr, warmup=warmup, schedule=schedule, cooldown=cooldown)
    for min_lr, warmup, (schedule, cooldown) in itertools.product(
        (0.0, 0.002),
        (0, 1, 7),
        (("cosine", 0.5), ("trapezoid", 0.5), ("trapezoid", 0.3), ("trapezoid", 1.0), ("trapezoid", 0.0)),
    )
]


@pytest.mark.parametrize("config", SCHEDULES, ids=lambda c: f"{c.schedule}-{c.cooldown}-{c.warmup}-{c.min_lr}")
@pytest.mark.parametrize("steps", [8, 40, 41])
def test_schedule_equals_its_parts(config: OptimConfig, steps: int) -> None:
    for step in range(steps):
        expected = learning_rate(
            step, steps, lr=config.lr, min_lr=config.min_lr, warmup=config.warmup,
            schedule=config.schedule, cooldown=config.cooldown,
        )  # fmt: skip
        assert lr_at(step, config, steps) == pytest.approx(expected, rel=1e-12, abs=1e-15), step


@pytest.mark.parametrize(
    ("schedule", "values"),
    [
        # Steps 0 to 3 rise by fifths; then the cosine's turning points and quarter.
        ("cosine", {0: 0.2, 1: 0.4, 3: 0.8, 4: 1.0, 54: 0.55, 104: 0.1, 29: 0.1 + 0.45 * (1 + math.sqrt(0.5))}),
        # The last half of 104 steps falls straight.
        ("trapezoid", {0: 0.2, 3: 0.8, 4: 1.0, 30: 1.0, 52: 1.0, 78: 0.55, 91: 0.325, 104: 0.1}),
    ],
)
def test_schedule_by_hand(schedule: str, values: dict[int, float]) -> None:
    config = OptimConfig(lr=1.0, min_lr=0.1, warmup=4, schedule=schedule, cooldown=0.5)
    for step, value in values.items():
        assert lr_at(step, config, 104) == pytest.approx(value, rel=1e-12), step


@pytest.mark.parametrize("schedule", ["cosine", "trapezoid"])
def test_schedule_rises_then_falls_and_stays(schedule: str) -> None:
    config = OptimConfig(lr=1.0, min_lr=0.01, warmup=10, schedule=schedule, cooldown=0.4)
    rates = [lr_at(step, config, 100) for step in range(101)]
    assert all(a < b for a, b in itertools.pairwise(rates[:11])) and max(rates) == rates[10] == 1.0
    assert all(a >= b for a, b in itertools.pairwise(rates[10:]))
    assert rates[100] == pytest.approx(0.01)
    assert lr_at(100 + 50, config, 100) == pytest.approx(0.01), "steps past the end keep the last rate"


def test_warm_up_and_fall_overlap() -> None:
    """A run of 10 steps that rises over 8 and falls over all 10: the smaller wins, and no step jumps."""
    config = OptimConfig(lr=1.0, min_lr=0.0, warmup=8, schedule="trapezoid", cooldown=1.0)
    assert [lr_at(step, config, 10) for step in range(10)] == pytest.approx(
        [1 / 9, 2 / 9, 3 / 9, 4 / 9, 5 / 9, 0.5, 0.4, 0.3, 0.2, 0.1]
    )


@pytest.mark.parametrize("schedule", ["cosine", "trapezoid"])
@pytest.mark.parametrize("warmup", [9, 10, 11, 500])
@pytest.mark.parametrize("cooldown", [0.0, 0.5, 1.0])
def test_warm_up_as_long_as_the_run(schedule: str, warmup: int, cooldown: float) -> None:
    config = OptimConfig(lr=1.0, warmup=warmup, schedule=schedule, cooldown=cooldown)
    for step in range(10):
        rate = lr_at(step, config, 10)
        assert math.isfinite(rate) and 0 < rate <= (step + 1) / (warmup + 1) + 1e-12


def test_a_run_of_one_step_learns() -> None:
    for schedule in ("cosine", "trapezoid"):
        assert lr_at(0, OptimConfig(lr=1.0, warmup=0, schedule=schedule), 1) == 1.0


@pytest.mark.parametrize("config", SOME, ids=name)
def test_matrices_decay_and_nothing_else(config: ModelConfig) -> None:
    model = GPT(config, 11)
    groups = parameter_groups(model, 0.25)
    decay_of = {id(value): group["weight_decay"] for group in groups for value in group["params"]}
    listed = [id(value) for group in groups for value in group["params"]]
    assert len(listed) == len(set(listed)) and set(listed) == {id(value) for value in model.parameters()}
    for key, value in model.named_parameters():
        matrix = key.split(".")[-2] in ("embedding", "position_embedding", "qkv", "proj", "up", "down", "head")
        assert decay_of[id(value)] == (0.25 if matrix and key.endswith("weight") else 0.0), key


def test_optimizer_is_configured() -> None:
    optimizer = make_optimizer(GPT(tiny(tied=True), 11), OptimConfig(lr=0.01, betas=[0.8, 0.95], weight_decay=0.3))
    assert type(optimizer) is torch.optim.AdamW
    assert sorted(group["weight_decay"] for group in optimizer.param_groups) == [0.0, 0.3]
    for group in optimizer.param_groups:
        assert group["lr"] == 0.01 and tuple(group["betas"]) == (0.8, 0.95) and not group["amsgrad"]
        assert group["eps"] <= 1e-8


def test_optimizer_equals_adamw_number_by_number() -> None:
    """Three steps of known gradients, on matrices, which decay, and on scales and biases, which do not."""
    config = OptimConfig(lr=0.01, betas=[0.8, 0.95], weight_decay=0.3)
    model = fill(GPT(tiny(layers=1, dim=4, context=3, bias=True, norm="layernorm", tied=True), 5).double())
    start = {key: value.detach().clone() for key, value in model.named_parameters()}
    optimizer = make_optimizer(model, config)
    generator = torch.Generator().manual_seed(1)
    gradients: dict[str, list[torch.Tensor]] = {key: [] for key in start}
    for _ in range(3):
        for key, value in model.named_parameters():
            value.grad = torch.randn(value.shape, generator=generator, dtype=torch.float64)
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
