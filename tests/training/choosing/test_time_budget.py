from collections.abc import Callable

import pytest
import torch

from base.errors import InputError
from conf.schema import Config
from gpt.config import ModelConfig
from gpt.model import untrained
from tests.conftest import Call, summary
from tests.training.choosing.test_text_length import chosen
from training.choosing import time_budget

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
    given = ["model.layers=3", "data.batch=4", "model.dropout=0", "model.context=64"]
    for text, arguments, expected in (
        (LONG, [], (4, 192, 16, 0)), (10**6, [], (4, 192, 8, 0.1)), (10**6, given, (3, 128, 4, 0)),
    ):  # fmt: skip
        found = chosen(text, "minutes=10", "compile=false", *arguments, seconds=600.0)
        config = found.config
        assert (config.model.layers, config.model.dim, config.data.batch, config.model.dropout) == expected
        assert (config.trainer.max_steps, config.trainer.val_check_interval) == ("auto", "auto")
        assert found.notes[0].startswith("minutes    10: a step takes about")
    with pytest.raises(InputError, match="^minutes=5: needs optim.schedule=trapezoid"):
        chosen(LONG, "minutes=5", "optim=nanogpt")


def test_a_time_that_is_over_still_trains_a_smaller_model(train: Call) -> None:
    ended = train("name=short", "minutes=0.01", *SLOW, defaults=False)
    assert ended.status == 0, ended
    assert summary("short")["steps"] == 1 and "too few to learn much; minutes=" in ended.out
    assert "\nminutes    1 step in all: the learning rate falls from step 1 on\n" in ended.out
