"""What `minutes` chooses, with a pretended clock."""

import math
import re

import numpy as np
import pytest

from base import processes
from base.errors import InputError
from data.text import Text
from gpt.config import ModelConfig
from gpt.tokenizer import CharTokenizer
from tests.conf.test_defaults import compose
from tests.conftest import ROOT
from training.choosing import hardware, time_budget
from training.choosing.choose import choose
from training.choosing.rules import block_weights
from training.machine import Machine

TINY = 1_003_854  # training characters of tiny Shakespeare, split 90/10
CORPUS = 6_500_000  # of the built-in text
UNCOMPILED = ("compile=false", "trainer.precision=32-true")
DEMO = ROOT / "docs/demo/shakespeare.safetensors"  # 128 wide, dropout 0.1


def a_text(tokens):
    nothing = np.broadcast_to(np.uint8(0), tokens)
    sizes = dict.fromkeys(("train", "validation", "test"), tokens)
    tokenizer = CharTokenizer("".join(map(chr, range(0x4E00, 0x4E00 + 65))))
    return Text(nothing, nothing, nothing, tokenizer, "a.txt", "", sizes, "", "", ())


@pytest.fixture
def chosen(monkeypatch):
    """Chooses at second 0 of a run on a text of so many tokens, where a step of the default model takes so long."""
    timed = []

    def chosen(tokens, milliseconds, *arguments):
        def time_step(config, *_):
            timed.append(config)
            return milliseconds / 1000

        monkeypatch.setattr(time_budget, "time_step", time_step)
        return choose(compose(["threads=1", *arguments]), a_text(tokens), Machine("cpu"))

    monkeypatch.setattr(processes, "elapsed", lambda: 0.0)
    monkeypatch.setattr(hardware, "available", lambda _: 2**40)
    chosen.timed = timed
    return chosen


LONGER_TEXT, MORE_TIME = "a larger model needs a longer text", "a larger model needs more time"


# The text, milliseconds per step, minutes; then width, dropout, weight decay, batch, rates and
# warm-up, why it is not wider, and the epochs in which the text is learned.
@pytest.mark.parametrize("row", [
    (CORPUS, 300, 0.2, 64, 0.0, 0.1, 8, 0.03, 0.01, 20, MORE_TIME, 20),
    (TINY, 222, 2, 96, 0.0, 0.1, 8, 0.012, 0.01, 50, MORE_TIME, 20),
    (TINY, 45, 60, 192, 0.1, 0.3, 8, 0.0042, 0.007, 50, LONGER_TEXT, 14),
    (CORPUS, 45, 480, 256, 0.0, 0.1, 8, 0.006, 0.01, 50, LONGER_TEXT, 20),
    (10**11, 1, 10**5, 768, 0.0, 0.1, 16, 0.006, 0.01, 50, "no preset is larger", 20),
    (18_000, 45, 0.2, 64, 0.2, 0.2, 8, 0.006, 0.01, 50, MORE_TIME, 28),
])  # fmt: skip
def test_what_minutes_choose(chosen, row):
    tokens, milliseconds, minutes, *expected, limit, epochs = row
    choice = chosen(tokens, milliseconds, f"minutes={minutes}", *UNCOMPILED)
    config = choice.config
    model, optim = config.model, config.optim
    batch = config.data.batch
    chosen_rates = [optim.lr, optim.muon_lr, optim.warmup]
    assert [model.dim, model.dropout, optim.weight_decay, batch, *chosen_rates] == expected
    assert choice.steps_needed == pytest.approx(epochs * tokens / batch / model.context)
    assert config.callbacks == {}, "it ends when the text is learned"
    assert choice.notes[1] == f"size       {model.dim} wide: {limit}"
    (timed,) = chosen.timed
    assert timed.model == ModelConfig() and timed.compile == "false"


def test_the_examples_of_the_docs_are_what_is_chosen(chosen):
    page = (ROOT / "docs/tasks.md").read_text()
    row = r"^\| ([\d.]+ [MK]B) \| (\d+) ms \| (\d+) \| (\d+) wide, dropout ([\d.]+) \|$"
    rows = re.findall(row, page, re.MULTILINE)
    assert len(rows) >= 4
    sizes = {"1.1 MB": TINY, "7.2 MB": CORPUS, "200 KB": 180_000}
    for text, milliseconds, minutes, width, dropout in rows:
        config = chosen(sizes[text], int(milliseconds), f"minutes={minutes}", *UNCOMPILED).config
        assert (config.model.dim, config.model.dropout) == (int(width), float(dropout))


@pytest.mark.parametrize("tokens", [18_000, TINY, 10**9])
@pytest.mark.parametrize("milliseconds", [1, 45, 300])
def test_more_time_never_chooses_a_smaller_model(chosen, tokens, milliseconds):
    weights = []
    for minutes in (0.1, 0.5, 2, 10, 60, 480):
        config = chosen(tokens, milliseconds, f"minutes={minutes}").config
        weights.append(block_weights(config.model))
    assert weights == sorted(weights)


def test_no_model_is_larger_than_the_memory(chosen, monkeypatch):
    monkeypatch.setattr(hardware, "available", lambda _: 2**30)
    choice = chosen(10**9, 1, "minutes=600", *UNCOMPILED)
    assert "a larger model needs more memory" in choice.notes[1]
    assert 128 < choice.config.model.dim < 768
    with pytest.raises(InputError, match="GiB of memory"):
        chosen(10**9, 1, "minutes=1", "model.dim=16384", "model.layers=64", *UNCOMPILED)


def test_a_text_to_memorise_has_the_model_of_the_time_without_dropout(chosen):
    choice = chosen(300, 45, "data.overfit=300", "minutes=60", *UNCOMPILED)
    assert choice.config.model.dim > 128 and choice.config.model.dropout == 0
    assert choice.steps_needed == math.inf


def test_a_size_that_is_set_stays(chosen):
    choice = chosen(TINY, 45, "minutes=60", "model.layers=3", "model.dropout=0.3", *UNCOMPILED)
    model = choice.config.model
    assert (model.layers, model.dim, model.dropout) == (3, 128, 0.3) and len(choice.notes) == 1


def test_a_trained_model_keeps_its_shape_and_needs_a_quarter_of_the_steps(chosen):
    from_start = chosen(18_000, 45, "minutes=1", "model.dim=128", "model.dropout=0.1")
    tuned = chosen(18_000, 45, "minutes=1", f"init_from={DEMO}")
    assert tuned.config.model == from_start.config.model
    assert tuned.steps_needed == from_start.steps_needed / 4


@pytest.mark.parametrize("row", [
    (TINY, 20, "this model learns the text in about 6:03 minutes",
     "dropout    0.1, because the run reads 14 epochs",
     "rate       0.0042 instead of 0.006, because the steps are many"),
    (TINY, 0.001, "a step takes about 45 ms here",
     "rate       0.03 instead of 0.006, because the steps are few",
     "minutes    0.001: 1 step will learn next to nothing; allow more time"),
])  # fmt: skip
def test_each_choice_has_its_reason(chosen, row):
    tokens, minutes, time, *notes = row
    choice = chosen(tokens, 45, f"minutes={minutes}", "model.dim=128", *UNCOMPILED)
    assert choice.notes == [f"minutes    {minutes}: {time}", *notes]


@pytest.mark.parametrize(("arguments", "compiled", "milliseconds"), [
    ("minutes=10", "true", 82), ("minutes=1", "false", 100), ("minutes=10 compile=false", "false", 100),
    ("minutes=1 compile=true", "true", 82),
])  # fmt: skip
def test_the_announced_step_is_the_one_that_is_trained(
    chosen, monkeypatch, arguments, compiled, milliseconds
):
    monkeypatch.setattr(hardware.sys, "platform", "linux")
    given = "model.dim=128 data.batch=8 trainer.precision=32-true " + arguments
    choice = chosen(10**9, 100, *given.split())
    assert choice.config.compile == compiled
    assert choice.notes[0].endswith(f": a step takes about {milliseconds} ms here")
