import math
from collections.abc import Callable
from types import SimpleNamespace

import pytest
import torch

from base.errors import InputError
from conf.schema import Config
from gpt.config import ModelConfig
from gpt.model import GPT, untrained
from tests.conftest import Call, summary
from tests.training.choosing.test_text_length import chosen
from training.choosing import time_budget
from training.choosing.time_budget import MIN_STEPS, TRAINING
from training.module import LitGPT

LONG = 10**9  # characters of text
SLOW = ["data.path=book.txt", "trainer.accelerator=cpu", "watch.pictures=false", "data.batch=4", "compile=false"]


def by_flops(seconds: float) -> Callable[..., float]:
    """A machine on which the default model's step takes `seconds`, and others as much more as they need operations."""

    def step(config: Config, *_: object) -> float:
        ours, default = (untrained(model, 96).flops_per_token() for model in (config.model, ModelConfig()))
        return seconds * ours / default

    return step


def size(monkeypatch: pytest.MonkeyPatch, time_step: Callable[..., float], seconds: float, text: int = LONG) -> int:
    monkeypatch.setattr(time_budget, "time_step", time_step)
    return chosen(text, f"minutes={seconds / 60}", "compile=false", seconds=seconds).config.model.dim


def test_more_time_chooses_larger_models(monkeypatch: pytest.MonkeyPatch) -> None:
    state = torch.random.get_rng_state()
    found = [size(monkeypatch, by_flops(0.2), seconds) for seconds in (10, 60, 600, 6000, 60_000)]
    assert found == sorted(found) and found[0] == 64 and found[2] == 128 and found[-1] > 192
    assert size(monkeypatch, by_flops(0.2), 60_000, text=800_000) == 128, "a larger one would memorise the text"
    assert torch.equal(state, torch.random.get_rng_state()), "nothing is drawn at random"


def test_what_minutes_choose(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time_budget, "time_step", by_flops(0.02))
    found = chosen(LONG, "minutes=10", "compile=false", seconds=600.0)
    config = found.config
    assert (config.model.dim, config.data.batch) == (192, 16), "half as many steps, twice as large"
    assert (config.trainer.max_steps, config.trainer.val_check_interval) == ("auto", "auto")
    (note,) = found.notes
    assert note.startswith("minutes    10: a step takes about")
    often = chosen(10**6, "minutes=10", "compile=false", seconds=600.0).config
    assert (often.model.dim, often.model.dropout, often.data.batch) == (192, 0.1, 8), "read more than ten times"
    given = ["model.layers=3", "data.batch=4", "model.dropout=0", "model.context=64"]
    config = chosen(10**6, "minutes=10", *given, seconds=600.0).config
    assert (config.model.layers, config.model.dim, config.model.context) == (3, 128, 64)
    assert (config.model.dropout, config.data.batch) == (0, 4)
    with pytest.raises(InputError, match="^minutes=5: needs optim.schedule=trapezoid"):
        chosen(LONG, "minutes=5", "optim=nanogpt")


def test_the_word_where_the_time_is_too_short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time_budget, "time_step", by_flops(1.0))
    found = chosen(LONG, "minutes=0.01", "compile=false", seconds=-3.0)
    assert (found.config.model.layers, found.config.model.dim, len(found.notes)) == (2, 64, 2)
    flops = [GPT(model, 96).flops_per_token() for model in (found.config.model, ModelConfig())]
    enough = (3.6 + MIN_STEPS * flops[0] / flops[1] / TRAINING) / 60
    assert 0.1 < enough < 1
    said = f"minutes=0.01: 1 step is too few to learn much; minutes={math.ceil(10 * enough) / 10:g} would be enough"
    assert found.notes[1] == f"{said} here"


@pytest.mark.parametrize("left", [1000.0, 0.0])
def test_what_is_timed(train: Call, monkeypatch: pytest.MonkeyPatch, left: float) -> None:
    """By a clock on which a step takes 1 s, each of the first ones 5 s. With no time left, one step is timed."""
    found, now, steps = [], [0.0], [0]
    time_step, training_step = time_budget.time_step, LitGPT.training_step

    def step(*given: object) -> object:
        steps[0] += 1
        now[0] += 1 if steps[0] > time_budget.UNTIMED_STEPS else 5
        return training_step(*given)  # type: ignore[arg-type]

    def spy(config: object, text: object, _: float) -> None:
        monkeypatch.setattr(time_budget, "time", SimpleNamespace(perf_counter=lambda: now[0]))
        found.append(time_step(config, text, left))  # type: ignore[arg-type]
        raise KeyboardInterrupt

    monkeypatch.setattr(LitGPT, "training_step", step)
    monkeypatch.setattr(time_budget, "time_step", spy)
    train("name=a", "minutes=1", *SLOW, "model.dim=32", "model.context=32", defaults=False)
    assert (steps[0], found) == ((time_budget.UNTIMED_STEPS + 1, [1.0]) if left else (1, [5.0]))


def test_a_time_that_is_over_still_trains_a_smaller_model(train: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time_budget, "time_step", lambda *_: 1.0)
    ended = train("name=short", "minutes=0.01", *SLOW, defaults=False)
    assert ended.status == 0, ended
    assert summary("short")["steps"] == 1 and "too few to learn much; minutes=" in ended.out
    assert "\nminutes    1 step in all: the learning rate falls from step 1 on\n" in ended.out
