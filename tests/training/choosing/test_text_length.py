import re
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from conf.compose import read_config
from conf.schema import Config
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
    def said(*arguments: str, tokens: int = 16_282) -> tuple[Config, str]:
        found = chosen(tokens, *arguments)
        lines = [line for line in found.notes if line.startswith("short text")]
        return found.config, re.sub("^.*characters: ", "", lines[0]) if lines else ""

    fitted, line = said()
    assert line == "230 steps, dropout 0.2, validation every 20"
    assert (fitted.trainer.max_steps, fitted.model.dropout, fitted.trainer.val_check_interval) == (230, 0.2, 20)
    assert fitted.callbacks["early_stopping"]["patience"] == VALIDATIONS // 3
    given = ["trainer.max_steps=900", "model.dropout=0", "trainer.val_check_interval=30", "callbacks=[]"]
    fitted, line = said(*given)
    assert line == "" and (fitted.trainer.max_steps, fitted.trainer.val_check_interval) == (900, 30)
    assert fitted.model.dropout == 0 and fitted.callbacks == {}
    assert said("callbacks=ema")[0].callbacks.keys() == {"ema"}
    assert said("callbacks=early_stopping")[0].callbacks["early_stopping"]["patience"] == 5
    assert said("model.dim=16", "model.layers=1")[0].model.dropout == 0, "too small to memorise"
    assert said("model.heads=4")[0].model.dropout == 0.2, "another size changes nothing else"
    for tokens, dropout in ((136_000, 0.2), (138_000, 0.0)):  # read 10 times
        assert said(tokens=tokens)[0].model.dropout == dropout
    longer, line = said("trainer.max_steps=900")
    assert line == "dropout 0.2, validation every 22" and "early_stopping" not in longer.callbacks
    started, line = said("init_from=runs/a", "model.dropout=0.1")
    assert line == "60 steps, validation every 5" and started.model.dropout == 0.1
    overfit, line = said("data.overfit=300", tokens=300)
    assert line == "" and (overfit.trainer.max_steps, overfit.model.dropout, overfit.callbacks) == (1500, 0, {})


@pytest.mark.parametrize("seconds", [1000.0, 3.0])
def test_a_short_text_and_minutes(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """It ends when it has learned enough, or by the clock."""
    monkeypatch.setattr(time_budget, "time_step", lambda *_: 0.1)
    config = chosen(16_282, "minutes=1", seconds=seconds).config
    enough = seconds == 1000.0
    assert (config.trainer.max_steps, config.trainer.val_check_interval) == ((230, 20) if enough else ("auto", "auto"))
    assert config.callbacks["early_stopping"]["patience"] == VALIDATIONS // 3


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
