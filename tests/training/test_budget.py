import re
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from conf.schema import Config
from data.config import DataConfig
from data.datamodule import TextDataModule
from data.open_text import open_text
from data.tokenizer import Tokenizer
from gpt.config import ModelConfig
from gpt.model import GPT
from tests.conftest import Call, summary
from tests.faults import faults
from training import budget
from training.budget import DROPOUT, OVERHEAD_SECONDS, VALIDATIONS, Budget, Cost, Work, choose_budget, measure
from training.callbacks.samples import FINAL_SAMPLE_LENGTH, SAMPLE_LENGTH
from training.module import LitGPT
from training.quiet_lightning import quiet_lightning

SMALL = ModelConfig(layers=2, heads=2, dim=32, context=32)
LARGE = ModelConfig(layers=2, heads=2, dim=64, context=32)
NOTHING = Work(split=0)
LONG = 10**9  # characters of text


def costs(config: ModelConfig) -> Cost:
    """The cost of a step grows with the square of the width; a character costs 1 ms to score and nothing to write."""
    return Cost(0.1 * (config.dim / 32) ** 2, 0.001, 0.0)


def planned(seconds: float, presets=(SMALL,), measure=costs, work: Work = NOTHING, text: int = LONG) -> Budget:
    return choose_budget(lambda: seconds, list(presets), measure, work, 8, 50, text)


def test_steps_evaluations_and_samples_fill_the_time_that_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("data.batches.VALIDATION_CHARACTERS", 200)
    made = planned(10.05 + OVERHEAD_SECONDS)
    assert (made.model, made.steps, made.validations, made.cost.step) == (SMALL, 100, VALIDATIONS, 0.1)
    for made in (planned(0.5, [SMALL, LARGE]), planned(-3.0, [SMALL, LARGE])):
        assert (made.model, made.steps) == (SMALL, 0)
    work, cost = Work(split=1200, samples=2, sample_length=10), Cost(0.1, 0.001, 0.003)
    besides = OVERHEAD_SECONDS + VALIDATIONS * (200 * 0.001 + 20 * 0.003) + 1000 * 0.001 + 10 * 0.003
    assert work.seconds(cost, VALIDATIONS) == pytest.approx(besides)
    more = replace(work, before=1, sample_length=None)
    besides += 200 * 0.001 + (VALIDATIONS * 2 * (SAMPLE_LENGTH - 10) + FINAL_SAMPLE_LENGTH - 10) * 0.003
    assert more.seconds(cost, VALIDATIONS) == pytest.approx(besides)
    made = planned(work.seconds(cost, VALIDATIONS) + 5.05, work=work, measure=lambda _: cost)
    assert (made.steps, made.validations) == (50, VALIDATIONS)
    # Fewer validations where time is short. At 0.2 s each and a quarter of the time, four of them need 3.2 s, five 4 s.
    work = Work(split=200)
    for seconds, validations in ((100.05, VALIDATIONS), (3.99, 4), (3.19, 3), (1.8, 2), (1.71, 2), (1.5, 1)):
        made = planned(seconds, work=work)
        assert made.validations == validations
        assert made.steps == max(0, int((seconds - OVERHEAD_SECONDS - 0.2 * validations) / 0.1))
    # Typed, one after every 10 steps: 100 ms for each step, 20 ms for its share of a validation of 200 characters.
    made = planned(OVERHEAD_SECONDS + 12.0 + 0.2 + 0.05, work=replace(work, interval=10))
    assert (made.steps, made.validations) == (100, 10)


def test_a_larger_model_when_it_would_see_enough() -> None:
    small, large = GPT(SMALL, 50), GPT(LARGE, 50)
    speed = 256 * small.flops_per_token() / 0.1
    border = budget.CHARACTERS_PER_WEIGHT * large.num_parameters() * large.flops_per_token() / speed
    state = torch.random.get_rng_state()
    for share, expected, models in ((0.99, SMALL, [SMALL]), (1.01, LARGE, [SMALL, LARGE])):
        measured: list[ModelConfig] = []
        made = planned(border * share, [SMALL, LARGE], lambda config, m=measured: (m.append(config), costs(config))[1])
        assert made.model == expected and measured == models
        assert made.steps == int((border * share - OVERHEAD_SECONDS) / costs(expected).step)
    assert torch.equal(state, torch.random.get_rng_state()), "nothing is drawn at random"
    for text, expected in ((large.num_parameters() - 1, SMALL), (large.num_parameters(), LARGE)):
        model = planned(1e6, [SMALL, LARGE], text=text).model
        assert model.dim == expected.dim and model.dropout == 0, "only for a text as long as it has weights"


def test_dropout_for_a_short_text_that_is_read_often() -> None:
    short = int(GPT(SMALL, 50).num_parameters() / budget.WEIGHTS_PER_CHARACTER) - 1
    often = budget.EPOCHS * short * 0.1 / 256  # seconds

    def chosen(seconds: float, text: int, presets: list[ModelConfig]) -> tuple[float, list[float]]:
        measured: list[float] = []

        def measure(config: ModelConfig) -> Cost:
            measured.append(config.dropout)
            return Cost(0.2 if config.dropout else 0.1, 0.001, 0.0)

        made = planned(seconds, presets, measure, text=text)
        assert made.steps == int((seconds - OVERHEAD_SECONDS) / made.cost.step)
        return made.model.dropout, measured

    assert chosen(often * 1.01, short, [SMALL, LARGE]) == (DROPOUT, [0, DROPOUT])
    assert chosen(often * 0.99, short, [SMALL, LARGE]) == (0, [0])
    assert chosen(often * 3, short + 2, [SMALL, LARGE]) == (0, [0])
    assert chosen(often * 3, short, [SMALL]) == (0, [0]), "what was typed stays"


def test_fewer_characters_evaluated_and_shorter_samples_where_time_is_short() -> None:
    work = Work(split=2**16 + 300_000, samples=2)
    cost = Cost(0.1, 2**-17, 2**-10)  # 2.8 s for the whole split, 1.7 s for all samples
    assert work.within(20.0, cost) == work
    less = work.within(10.0, cost)
    assert (less.val_tokens, less.sample_length) == (2.5 * 2**17, 78)
    besides = (
        OVERHEAD_SECONDS + (2**15 * (VALIDATIONS - 1) + 2.5 * 2**17) * 2**-17 + 78 * (2 * VALIDATIONS + 1) * 2**-10
    )
    assert less.seconds(cost, VALIDATIONS) == pytest.approx(besides)
    least = work.within(-3.0, cost)
    assert (least.val_tokens, least.sample_length) == (budget.MIN_EVALUATED, 20)
    typed = replace(work, val_tokens=365_536, sample_length=500)
    assert typed.within(-3.0, cost) == typed, "what was typed stays"
    # The least of both before there are too few steps.
    planner = lambda seconds: planned(seconds, measure=lambda _: cost, work=work)  # noqa: E731
    assert planner(40.0).work == work and planner(14.0).work.val_tokens == budget.MIN_EVALUATED
    assert planner(14.0).steps >= budget.MIN_STEPS


def test_timing_ends_in_time_on_a_slow_machine(workplace: Path) -> None:
    config = DataConfig(path="book.txt", batch=2)
    text = open_text(config, SMALL.context)
    module, tokens = Slow(text.tokenizer), torch.from_numpy(text.train[: SMALL.context].astype("int64"))
    with quiet_lightning():
        cost = measure(module, TextDataModule(text, config, SMALL.context, 0), tokens, 0.0, accelerator="cpu")
    assert module.steps == 1 and 0.5 <= cost.step < 2


class Slow(LitGPT):
    """Every forward pass takes 10 ms and a step 30, the first three 0.5 s."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        super().__init__(Config(model=SMALL, compile="false"), tokenizer, data={}, conditions={})
        self.net.register_forward_hook(lambda *_: time.sleep(0.01))
        # Sampling begins with its weights.
        faults.before(self.net, "state_dict", lambda: time.sleep(0.01 * budget.NUM_SAMPLED))
        self.steps = 0

    def training_step(self, batch: torch.Tensor, _: int) -> dict[str, torch.Tensor]:
        self.steps += 1
        time.sleep(0.03 if self.steps > budget.UNTIMED_STEPS else 0.5)
        torch.rand(3)  # as dropout would
        return {"loss": torch.zeros(())}


def test_what_is_measured(workplace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("training.budget.TIMED_SECONDS", 0.3)
    config = DataConfig(path="book.txt", batch=2)
    text = open_text(config, SMALL.context)
    module = Slow(text.tokenizer)
    tokens = torch.from_numpy(text.train[: 5 * SMALL.context + 7].astype("int64"))
    state = torch.random.get_rng_state()
    data = TextDataModule(text, config, SMALL.context, 0)
    with quiet_lightning():
        cost = measure(module, data, tokens, 60.0, accelerator="cpu", devices=1, precision="32-true")
    assert 0.03 <= cost.step < 0.3
    assert 0.01 <= cost.per_evaluated * 5 * SMALL.context < 0.1, "of whole windows"
    assert 0.01 <= cost.per_sampled < 0.1
    assert torch.equal(state, torch.random.get_rng_state())
    assert {path.name for path in Path().iterdir()} == {"book.txt", "cache"}


def test_a_time_that_is_over_still_trains_a_smaller_model(train: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    measured: list[int] = []

    def instead(module: LitGPT, *_: object, **__: object) -> Cost:
        measured.append(module.net.config.dim)
        return Cost(step=1.0, per_evaluated=0.0, per_sampled=0.0)

    monkeypatch.setattr(budget, "measure", instead)
    given = ["data.path=book.txt", "trainer.accelerator=cpu", "watch.pictures=false", "data.batch=4"]
    monkeypatch.setattr(budget, "BUSY_SHARE", 0.0)
    ended = train("name=busy", "minutes=0.01", *given, defaults=False)
    assert ended.status == 0 and measured == [32], "little time is left: no preset is timed"
    monkeypatch.setattr(budget, "BUSY_SHARE", 1e9)
    measured.clear()
    ended = train("name=short", "minutes=0.01", *given, defaults=False)
    assert ended.status == 0, ended
    assert measured == [128, 32] and summary("short")["steps"] == 1, "what cannot be enough is not timed"
    (line,) = re.findall("^minutes .*", ended.out, re.M)
    assert line.endswith("1e+03 ms a step; to fit, a model smaller than every preset")
    (line,) = re.findall(r"^minutes=0.01: 1 step is too few .*; minutes=(.*) would be enough here$", ended.out, re.M)
    assert 101.5 / 60 < float(line) < 3, "100 steps of a second and what is besides"
    ended = train("name=steps", "trainer.max_steps=3")
    assert ended.out.count("trainer.max_steps=3: 3 steps are too few to learn much; 100 would be") == 1
