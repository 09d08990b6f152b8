import math
import re
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from base import processes
from base.errors import InputError
from conf.compose import read_config
from data.text import Text
from gpt.config import ModelConfig, OptimConfig
from gpt.model import untrained
from gpt.tokenizer import CharTokenizer
from tests.conf.test_defaults import compose
from tests.conftest import summary
from training.choosing import hardware, time_budget
from training.choosing.choose import choose, steps_for
from training.choosing.scaling_law import tokens_needed
from training.choosing.time_budget import SHORT_TEXT
from training.machine import Gpu, Machine
from training.module import conditions

SMALL = "model.layers=1 model.dim=32 model.context=32 trainer.accelerator=cpu watch.pictures=false".split()
UNCOMPILED = ("compile=false", "trainer.precision=32-true")
# which the model in docs/demo does not know
LETTERS = CharTokenizer("".join(map(chr, range(0x4E00, 0x4E00 + 96))))


def a_text(tokens):
    nothing = np.broadcast_to(np.uint8(0), tokens)
    sizes = dict.fromkeys(("train", "validation", "test"), tokens)
    return Text(nothing, nothing, nothing, LETTERS, "a.txt", "", sizes, "", "", ())


def chosen(tokens, *arguments, seconds=60.0):
    config = compose(["threads=1", *arguments])
    with pytest.MonkeyPatch.context() as patch:
        began = time.perf_counter() + seconds - 60 * (config.minutes or 0)
        patch.setattr(processes, "BEGAN", began)
        return choose(config, a_text(tokens), Machine("cpu"))


def time_steps(monkeypatch, seconds):
    """Have a step of the default model take so long, and steps of others in proportion."""
    default = untrained(ModelConfig(), LETTERS.size).flops_per_token()

    def time_step(config, *_):
        return seconds * untrained(config.model, LETTERS.size).flops_per_token() / default

    monkeypatch.setattr(time_budget, "time_step", time_step)


def test_what_a_long_text_gets():
    found = chosen(SHORT_TEXT)
    config = found.config
    assert (config.model, config.data.batch, config.callbacks) == (
        ModelConfig(),
        8,
        {},
    ) and found.notes == ()
    assert (
        config.trainer.max_steps,
        config.trainer.val_check_interval,
        config.trainer.devices,
    ) == (1500, 300, "auto")
    assert "auto" not in (config.trainer.precision, config.compile, config.threads)
    assert "as configured" not in found.machine
    again = choose(config, a_text(SHORT_TEXT), Machine("cpu"))
    assert (again.config, again.notes) == (config, ()), "what is chosen stays"
    assert again.machine.count("(as configured)") == 2


def test_what_a_short_text_gets():
    """Fewer steps, dropout where a model can memorise it, early stopping; what is set stays."""

    def fitted(*arguments, tokens=16_282):
        config = chosen(tokens, *arguments).config
        trainer = config.trainer
        return (
            trainer.max_steps,
            config.model.dropout,
            trainer.val_check_interval,
            [*config.callbacks],
        )

    stopping = ["early_stopping"]
    assert fitted() == fitted("model.heads=4") == (230, 0.2, 20, stopping)
    set_by_hand = (
        "trainer.max_steps=900 model.dropout=0 trainer.val_check_interval=30 callbacks=[]"
    )
    assert fitted(*set_by_hand.split()) == (900, 0, 30, [])
    assert fitted("trainer.max_steps=900") == (900, 0.2, 22, [])
    assert fitted("callbacks=ema")[-1] == ["ema"]
    assert fitted("model.dim=16", "model.layers=1")[1] == 0, "too small to memorise"
    assert fitted("init_from=runs/a", "model.dropout=0.1")[0] < 230
    assert fitted("data.overfit=300", tokens=300) == (1500, 0, 300, [])
    # docs/tasks.md: dropout below 137,000 characters
    assert [fitted(tokens=tokens)[1] for tokens in (136_900, 137_300)] == [0.2, 0]


def test_a_short_text_and_minutes(monkeypatch):
    """The run ends when the text is learned, or by the clock."""
    monkeypatch.setattr(time_budget, "time_step", lambda *_: 0.1)
    learned = chosen(54_000, "minutes=60", seconds=3600.0)
    model, trainer = learned.config.model, learned.config.trainer
    assert (trainer.max_steps, trainer.val_check_interval) == ("auto", "auto")
    weights = untrained(model, LETTERS.size).num_parameters()
    needed = tokens_needed(weights, model.dropout, 54_000)
    assert learned.steps_needed == pytest.approx(needed / 8 / 256)
    assert learned.config.optim.lr == OptimConfig.lr
    assert learned.config.callbacks == {}, "it ends when the text is learned"
    (note, _) = learned.notes
    assert re.fullmatch(
        r"minutes    60: this text is learned in about \d+ (minute|second)s? \(more text .*\)",
        note,
    )
    by_clock = chosen(16_282, "minutes=1", seconds=3.0)
    assert "a step takes about" in by_clock.notes[0]
    assert by_clock.config.optim.lr > OptimConfig.lr
    overfitted = chosen(300, "data.overfit=300", "minutes=1", seconds=60.0)
    assert overfitted.steps_needed == math.inf, "it should memorise the text"


def test_a_very_short_text_that_fits_into_minutes_is_trained_on_as_without_them(monkeypatch):
    monkeypatch.setattr(time_budget, "time_step", lambda *_: 0.1)
    usual = chosen(16_282)
    enough = chosen(16_282, "minutes=1", seconds=60.0)
    assert enough.config.model == usual.config.model and enough.config.model.dropout == 0.2
    assert enough.config.optim == usual.config.optim
    assert enough.steps_needed == usual.config.trainer.max_steps == 230
    assert "this text is learned in about" in enough.notes[0]
    too_little = chosen(16_282, "minutes=0.3", seconds=18.0)
    assert too_little.config.model.dim < usual.config.model.dim
    assert too_little.steps_needed >= 230


def test_a_run_says_whether_more_time_or_more_text_would_help(monkeypatch):
    time_steps(monkeypatch, 0.045)
    hasty = chosen(1_003_854, "minutes=6", "compile=false", seconds=360)
    assert hasty.config.model.dim == 128
    assert hasty.notes[0].startswith("minutes    6: this model learns the text in about ")
    assert hasty.notes[0].endswith(" minutes (a larger one needs more time)")
    patient = chosen(1_003_854, "minutes=60", "compile=false", seconds=3600)
    assert patient.config.model.dim == 192
    assert patient.notes[0].startswith("minutes    60: this text is learned in about ")
    assert patient.notes[0].endswith(" minutes (more text would help)")


def test_more_time_chooses_larger_models(monkeypatch):
    def width(seconds, text=10**9):
        return chosen(
            text, f"minutes={seconds / 60}", *UNCOMPILED, seconds=seconds
        ).config.model.dim

    time_steps(monkeypatch, 0.2)
    state = torch.random.get_rng_state()
    widths = [width(seconds) for seconds in (10, 60, 600, 6000, 60_000)]
    assert widths == sorted(widths) and widths[0] < ModelConfig.dim < widths[-1]
    assert width(60_000, text=800_000) < widths[-1], "a larger one would memorise the text"
    with monkeypatch.context() as patched:
        patched.setattr(hardware, "available", lambda device: 2**30)
        assert ModelConfig.dim < width(60_000) < widths[-1], (
            "the largest that fits into the memory"
        )
    assert torch.equal(state, torch.random.get_rng_state()), "nothing is drawn at random"
    monkeypatch.setattr(hardware, "missing_to_compile", lambda: "")
    compiled = chosen(10**9, "minutes=100", "compile=true", seconds=6000).config
    assert compiled.compile == "true" and compiled.model.dim >= width(6000), "a step is faster"
    with pytest.raises(InputError, match="GiB of memory"):
        chosen(
            10**9, *"minutes=1 compile=false model.dim=16384 model.layers=64 model.heads=2".split()
        )


@pytest.mark.parametrize(("machine", "named"), [
    (Machine("cuda", gpu=Gpu("NVIDIA A10", (8, 6))), "cuda NVIDIA A10"), (Machine("mps"), "mps"),
    (Machine("cpu"), "cpu with "),
])  # fmt: skip
def test_the_device_is_a_condition_of_a_run(machine, named):
    config = chosen(SHORT_TEXT).config
    assert conditions(config, a_text(SHORT_TEXT), machine)["device"].startswith(named)


def test_a_time_that_is_over_still_trains_a_smaller_model(train):
    given = "name=short minutes=0.01 data.path=book.txt data.batch=4 compile=false trainer.accelerator=cpu"
    ended = train(*given.split(), "watch.pictures=false", defaults=False)
    assert ended.status == 0, ended
    assert summary("short")["steps"] == 1 and "learn next to nothing; allow more time" in ended.out


@pytest.mark.promise
@pytest.mark.slow
def test_a_short_text_of_one_s_own(train, workplace):
    """It ends before it memorises, and says how often it was read."""
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


def test_a_short_text_ends_after_four_validations_without_a_new_lowest_loss(train, workplace):
    Path("short.txt").write_text(Path("book.txt").read_text()[:2000])
    never_lower = "callbacks.early_stopping.min_delta=100"  # than the first
    ended = train("data.path=short.txt", "name=short", never_lower, *SMALL, defaults=False)
    assert ended.status == 0, ended
    assert [*summary("short")["validations"]] == ["7", "14", "21", "28", "35"]
