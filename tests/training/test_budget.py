import re
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from conf.merge import overrides, read_config
from gpt.config import ModelConfig
from gpt.model import GPT
from tests.conftest import Call, assert_same_weights, summary
from training import budget
from training.budget import OVERHEAD_SECONDS, VALIDATIONS, Cost, Schedule, choose_model
from training.callbacks.watch import FINAL_SAMPLE_LENGTH, SAMPLE_LENGTH
from training.module import LitGPT

SMALL = ModelConfig(layers=2, heads=2, dim=32, context=32)
LARGE = ModelConfig(layers=2, heads=2, dim=64, context=32)
COST = Cost(SMALL, 0.1, 0.001, 0.0)
NOTHING = Schedule(split=0)
LONG = 10**9  # characters of text


def test_steps_evaluations_and_samples_fill_the_time_that_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("data.batches.VALIDATION_CHARACTERS", 200)
    filled = NOTHING.fill(10.05 + OVERHEAD_SECONDS, COST)
    assert (filled.steps, filled.interval) == (100, 17), "six validations"
    assert NOTHING.fill(0.5, COST).steps == NOTHING.fill(-3.0, COST).steps == 0
    work, seconds = Schedule(split=1200, samples=2, sample_length=10), Cost(SMALL, 0.1, 0.001, 0.003)
    besides = OVERHEAD_SECONDS + VALIDATIONS * (200 * 0.001 + 20 * 0.003) + 1000 * 0.001 + 10 * 0.003
    assert work.seconds(seconds, VALIDATIONS) == pytest.approx(besides)
    assert replace(work, steps=50).seconds(seconds, VALIDATIONS) == pytest.approx(besides + 5)
    more = replace(work, before=1, sample_length=None)
    besides += 200 * 0.001 + (VALIDATIONS * 2 * (SAMPLE_LENGTH - 10) + FINAL_SAMPLE_LENGTH - 10) * 0.003
    assert more.seconds(seconds, VALIDATIONS) == pytest.approx(besides)
    # Fewer validations where time is short. At 0.2 s each and a quarter of the time, four of them need 3.2 s, five 4 s.
    work = Schedule(split=200)
    for seconds_left, validations in ((100.05, VALIDATIONS), (3.99, 4), (3.19, 3), (1.8, 2), (1.5, 1)):
        filled = work.fill(seconds_left, COST)
        steps = max(0, int((seconds_left - OVERHEAD_SECONDS - 0.2 * validations) / 0.1))
        assert (filled.steps, filled.interval) == (steps, max(1, -(-steps // validations)))
    # Typed, one after every 10 steps: 100 ms for each step, 20 ms for its share of a validation of 200 characters.
    filled = replace(work, interval=10).fill(OVERHEAD_SECONDS + 12.0 + 0.2 + 0.05, COST)
    assert (filled.steps, filled.interval) == (100, 10)


def test_fewer_characters_evaluated_and_shorter_samples_where_time_is_short() -> None:
    work = Schedule(split=2**16 + 300_000, samples=2)
    seconds = Cost(SMALL, 0.01, 2**-17, 2**-10)  # 2.8 s for the whole split, 1.7 s for all samples
    shape = lambda left, work=work: (lambda f: (f.val_tokens, f.sample_length))(work.fill(left, seconds))  # noqa: E731
    assert shape(20.0) == (None, None)
    assert shape(10.0) == (2.5 * 2**17, 78)
    assert shape(-3.0) == (budget.MIN_EVALUATED, budget.MIN_SAMPLED)
    slow = replace(seconds, step=0.1)
    assert work.fill(14.0, slow).val_tokens == budget.MIN_EVALUATED, "before there are too few steps"
    assert work.fill(14.0, slow).steps >= budget.MIN_STEPS
    typed = replace(work, val_tokens=365_536, sample_length=500)
    assert shape(-3.0, typed) == (365_536, 500), "what was typed stays"


def chosen(seconds: float, text: int = LONG, models: tuple[ModelConfig, ...] = (SMALL, LARGE)) -> ModelConfig:
    return choose_model(list(models), COST, seconds, NOTHING, 256, 50, text)


def test_a_larger_model_when_it_would_see_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    small, large = GPT(SMALL, 50), GPT(LARGE, 50)
    speed = 256 * small.flops_per_token() / 0.1
    border = budget.CHARACTERS_PER_WEIGHT * large.num_parameters() * large.flops_per_token() / speed
    state = torch.random.get_rng_state()
    assert chosen(border * 0.99) == SMALL and chosen(border * 1.01) == LARGE
    assert torch.equal(state, torch.random.get_rng_state()), "nothing is drawn at random"
    half = large.num_parameters() // 2
    for text, expected in ((half - 1, SMALL), (half + 1, LARGE)):
        model = chosen(1e6, text)
        assert model.dim == expected.dim, "only for a text with a character for two weights"
    # Smaller ones than what was timed need 100 steps only; the smallest is taken if none has them.
    tiny, enough = ModelConfig(layers=1, heads=1, dim=8, context=32), OVERHEAD_SECONDS + 10.05
    assert chosen(enough, models=(tiny, SMALL)) == SMALL
    assert chosen(enough - 0.1, models=(tiny, SMALL)) == chosen(-1.0, models=(tiny, SMALL)) == tiny


SLOW = ["data.path=book.txt", "trainer.accelerator=cpu", "watch.pictures=false", "data.batch=4", "compile=false"]


@pytest.mark.parametrize("left", [1000.0, 0.0])
def test_what_is_measured(train: Call, monkeypatch: pytest.MonkeyPatch, left: float) -> None:
    """By a clock on which a step takes 1 s, each of the first three 5 s. With no time left, one step is timed."""
    found, now, steps = [], [0.0], [0]
    measure, training_step = budget.measure, LitGPT.training_step

    def step(*given: object) -> object:
        steps[0] += 1
        now[0] += 1 if steps[0] > budget.UNTIMED_STEPS else 5
        return training_step(*given)  # type: ignore[arg-type]

    def spy(plan: object, _: object) -> object:
        monkeypatch.setattr(budget, "time", SimpleNamespace(perf_counter=lambda: now[0]))
        found.append(measure(plan, lambda: left)[1])  # type: ignore[arg-type]
        raise KeyboardInterrupt

    monkeypatch.setattr(LitGPT, "training_step", step)
    monkeypatch.setattr(GPT, "forward", after(GPT.forward, lambda: now.append(now.pop() + 0.25)))
    monkeypatch.setattr(budget, "generate", lambda *_, **__: now.append(now.pop() + 1))  # 10 characters
    monkeypatch.setattr(budget, "measure", spy)
    train("name=a", "minutes=1", *SLOW, "model.dim=32", "model.context=32", defaults=False)
    assert (steps[0], found[0].step) == ((5, 1.25) if left else (1, 5.25))
    assert (found[0].per_evaluated, found[0].per_sampled) == (0.25 / (2048 if left else 32), 0.1)


def after(method, first):  # noqa: ANN001, ANN201
    return lambda self, *given: (first(), method(self, *given))[1]


def test_a_time_that_is_over_still_trains_a_smaller_model(train: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    measured: list[int] = []

    def instead(plan, _):  # noqa: ANN001, ANN202
        measured.append(plan.config.model.dim)
        return plan, Cost(plan.config.model, step=1.0, per_evaluated=0.0, per_sampled=0.0)

    monkeypatch.setattr(budget, "measure", instead)
    ended = train("name=short", "minutes=0.01", *SLOW, defaults=False)
    assert ended.status == 0, ended
    assert measured == [128, 32] and summary("short")["steps"] == 1, "what cannot be enough is not timed"
    (line,) = re.findall("^minutes .*", ended.out, re.M)
    assert line.endswith("1e+03 ms a step; to fit, a model smaller than every preset")
    (line,) = re.findall(r"^minutes=0.01: 1 step is too few .*; minutes=(.*) would be enough here$", ended.out, re.M)
    assert 101.5 / 60 < float(line) < 5, "100 steps of a second and what is besides"
    ended = train("name=steps", "trainer.max_steps=3")
    assert ended.out.count("trainer.max_steps=3: 3 steps are too few to learn much; 100 would be") == 1


@pytest.mark.slow
@pytest.mark.parametrize("timed", [1e-4, 0.3])
def test_steps_are_settled_again(train: Call, monkeypatch: pytest.MonkeyPatch, timed: float) -> None:
    """The run ends in its time, with the weights of a run of as many steps that were typed."""
    monkeypatch.setattr(budget, "measure", lambda plan, _: (plan, Cost(plan.config.model, timed, 0.0, 0.0)))
    monkeypatch.setattr(budget, "WHOLE", 0)  # the text is not short: any number of steps
    small = [
        "model.layers=1",
        "model.dim=32",
        "model.context=32",
        "callbacks=[]",
        "trainer.val_check_interval=500",
        "model.dropout=0",
    ]
    started = time.monotonic()
    ended = train("name=again", "minutes=0.25", *small, *SLOW, defaults=False)
    assert ended.status == 0 and time.monotonic() - started < 22, ended
    config = read_config(Path("runs/again"))
    steps = config.trainer.max_steps
    said = "^minutes=0.25: steps take (.*) times as long as timed: (.*) steps instead of"
    times, now = re.findall(said, ended.out, re.M)[-1]
    assert summary("again")["steps"] == steps == int(now.replace(",", ""))
    assert (float(times) > 1) == (timed < 0.01)
    assert train("name=typed", "callbacks=[]", "model.dropout=0", *overrides(config), defaults=False).status == 0
    assert_same_weights("again", "typed")
