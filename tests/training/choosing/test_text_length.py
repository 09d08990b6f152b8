import re
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from conf.compose import read_config
from data.text import Text
from gpt.config import ModelConfig
from gpt.tokenizer import CharTokenizer
from tests.conf.test_defaults import compose
from tests.conftest import Call, summary
from training.choosing import time_budget
from training.choosing.choose import VALIDATIONS, WHOLE, Choice, choose, steps_for
from training.launch import Machine

SMALL = "model.layers=1 model.dim=32 model.context=32 trainer.accelerator=cpu watch.pictures=false".split()
LETTERS = CharTokenizer("".join(map(chr, range(0x4E00, 0x4E00 + 96))))  # which the model in docs/demo does not know


def a_text(tokens: int) -> Text:
    nothing = np.broadcast_to(np.uint8(0), tokens)
    sizes = dict.fromkeys(("train", "validation", "test"), tokens)
    return Text(nothing, nothing, nothing, LETTERS, "a.txt", "", sizes, "", "", ())


def chosen(tokens: int, *arguments: str, seconds: float = 60.0, **changes: Any) -> Choice:
    config = compose(["threads=1", *arguments])
    started = time.perf_counter() + seconds - 60 * (config.minutes or 0)
    return choose(config, a_text(tokens), Machine("cpu", 1), started)


def test_what_a_long_text_gets() -> None:
    found = chosen(WHOLE)
    config = found.config
    assert (config.model, config.data.batch, config.callbacks) == (ModelConfig(), 8, {}) and found.notes == ()
    assert (config.trainer.max_steps, config.trainer.val_check_interval, config.trainer.num_nodes) == (1500, 300, 1)
    assert "auto" not in (config.trainer.precision, config.compile, config.threads)
    assert set(found.why) == {"precision", "compile"}
    again = choose(config, a_text(WHOLE), Machine("cpu", 1), 0.0)
    assert again == Choice(config), "what is chosen stays"


def test_what_a_short_text_gets() -> None:
    """Fewer steps, dropout where a model can memorise it, early stopping; what is set stays."""

    def fitted(*arguments: str, tokens: int = 16_282) -> tuple[Any, ...]:
        config = chosen(tokens, *arguments).config
        return config.trainer.max_steps, config.model.dropout, config.trainer.val_check_interval, [*config.callbacks]

    stopping = ["early_stopping"]
    assert fitted() == fitted("model.heads=4") == (230, 0.2, 20, stopping)
    given = ["trainer.max_steps=900", "model.dropout=0", "trainer.val_check_interval=30", "callbacks=[]"]
    assert fitted(*given) == (900, 0, 30, [])
    assert fitted("callbacks=ema")[-1] == ["ema"] and fitted("trainer.max_steps=900") == (900, 0.2, 22, [])
    assert fitted("model.dim=16", "model.layers=1")[1] == 0, "too small to memorise"
    assert fitted("init_from=runs/a", "model.dropout=0.1") == (60, 0.1, 5, stopping)
    assert fitted("data.overfit=300", tokens=300) == (1500, 0, 300, [])
    assert chosen(16_282).config.callbacks["early_stopping"]["patience"] < VALIDATIONS


@pytest.mark.parametrize("seconds", [1000.0, 3.0])
def test_a_short_text_and_minutes(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """It ends when it has learned enough, or by the clock."""
    monkeypatch.setattr(time_budget, "time_step", lambda *_: 0.1)
    config = chosen(16_282, "minutes=1", seconds=seconds).config
    enough = seconds == 1000.0
    assert (config.trainer.max_steps, config.trainer.val_check_interval) == ((230, 20) if enough else ("auto", "auto"))


@pytest.mark.promise
@pytest.mark.slow
def test_a_short_text_of_one_s_own(train: Call, workplace: Path) -> None:
    """It ends before it memorises, says how often it was read, and promises nothing of other models."""
    Path("short.txt").write_text(Path("book.txt").read_text()[:2000])
    first = train("data.path=short.txt", "name=short", *SMALL, defaults=False)
    assert first.status == 0, first
    steps = steps_for(1800, False)
    assert f"short text 1,800 training characters: {steps} steps, dropout 0.2, validation every 7" in first.out
    assert not re.search("init_from.*(lower|sooner)", first.out)
    assert "baselines  uniform " in first.out and "-grams " in first.out
    stored = read_config(Path("runs/short"))
    assert stored.trainer.max_steps == steps and "early_stopping" in stored.callbacks
    assert summary("short")["epochs"] == pytest.approx(summary("short")["steps"] * 8 * 32 / 1800)
    again = train("resume=runs/short", defaults=False)
    assert again.status == 0 and "is finished" in again.out, "nothing is chosen anew"
