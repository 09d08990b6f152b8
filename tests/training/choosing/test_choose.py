from pathlib import Path

import pytest

from conf.compose import read_config
from gpt.config import ModelConfig
from tests.conf.test_defaults import compose
from tests.conftest import summary
from tests.training.choosing.test_time_budget import DEMO, a_text
from training.choosing.choose import choose
from training.choosing.rules import SHORT_TEXT, steps_for
from training.machine import Machine

SMALL = "model.layers=1 model.dim=32 model.context=32 trainer.accelerator=cpu watch.pictures=false".split()
CPU = Machine("cpu")


def chosen(tokens, *arguments, machine=CPU):
    return choose(compose(["threads=1", *arguments]), a_text(tokens), machine)


def test_what_a_long_text_gets():
    choice = chosen(SHORT_TEXT)
    config = choice.config
    assert (config.model, config.data.batch) == (ModelConfig(), 8)
    assert config.callbacks == {} and choice.notes == []
    trainer = config.trainer
    assert (trainer.max_steps, trainer.val_check_interval, trainer.devices) == (1500, 300, "auto")
    assert "auto" not in (trainer.precision, config.compile, config.threads)
    assert choose(config, a_text(SHORT_TEXT), CPU).config == config, "what is chosen stays"


STOPPING = ["early_stopping"]
SET = "trainer.max_steps=900 model.dropout=0 trainer.val_check_interval=30 callbacks=[]"


# Training characters and arguments; steps, dropout, weight decay, steps between validations, callbacks.
@pytest.mark.parametrize("row", [
    (16_282, "", 230, 0.2, 0.2, 20, STOPPING),
    (16_282, SET, 900, 0, 0.1, 30, []), (16_282, "trainer.max_steps=900", 900, 0.2, 0.2, 22, []),
    (16_282, "callbacks=ema", 230, 0.2, 0.2, 20, ["ema"]),
    (16_282, "model.dim=16 model.layers=1", 230, 0, 0.1, 20, STOPPING),  # too small to memorise
    (16_282, "model.dropout=0.3", 230, 0.3, 0.1, 20, STOPPING),
    (16_282, "optim.weight_decay=0.3", 230, 0.2, 0.3, 20, STOPPING),
    (16_282, f"init_from={DEMO}", 60, 0.1, 0.1, 5, STOPPING),
    (300, "data.overfit=300", 1500, 0, 0.1, 300, []),
    (68_000, "", 470, 0.2, 0.2, 40, STOPPING),
    (136_000, "", 670, 0.1, 0.2, 56, STOPPING), (138_000, "", 670, 0, 0.1, 56, STOPPING),  # fewer than ten epochs
])  # fmt: skip
def test_what_a_short_text_gets(row):
    tokens, arguments, *expected = row
    config = chosen(tokens, *arguments.split()).config
    trainer = config.trainer
    assert [
        trainer.max_steps, config.model.dropout, config.optim.weight_decay, trainer.val_check_interval,
        [*config.callbacks],
    ] == expected  # fmt: skip
    for stopping in config.callbacks.keys() & STOPPING:
        assert config.callbacks[stopping]["patience"] == 4


def test_all_ranks_choose_alike():
    """However slow their machines are."""
    machines = [Machine("cpu", 2, import_seconds=seconds) for seconds in (1.0, 40.0)]
    given = ("trainer.devices=2", "trainer.max_steps=4000", "trainer.precision=32-true")
    first, second = (chosen(10**9, *given, machine=machine) for machine in machines)
    assert first == second


@pytest.mark.promise
@pytest.mark.slow
def test_a_short_text_of_one_s_own(train, workplace):
    """It says how many steps that is, how often it was read, and is finished afterwards."""
    Path("short.txt").write_text(Path("book.txt").read_text()[:2000])
    first = train("data.path=short.txt", "name=short", *SMALL, defaults=False)
    assert first.status == 0, first
    steps = steps_for(1800, 1.0)
    assert f"short text 1,800 training characters: {steps} steps" in first.out
    assert "baselines  uniform " in first.out
    stored = read_config(Path("runs/short"))
    assert stored.trainer.max_steps == steps and "early_stopping" in stored.callbacks
    assert summary("short")["epochs"] == pytest.approx(summary("short")["steps"] * 8 * 32 / 1800)
    again = train("resume=runs/short", defaults=False)
    assert again.status == 0 and "is finished" in again.out, "nothing is chosen anew"
