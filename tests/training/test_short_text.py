from dataclasses import replace
from pathlib import Path

import pytest

from conf.merge import merge, read_config
from conf.schema import Config
from gpt.config import ModelConfig
from gpt.model import GPT
from tests.conftest import Call, summary
from training.short_text import VALIDATIONS, WHOLE, dropout_for, fit_to_text, steps_for

SMALL = "model.layers=1 model.dim=32 model.context=32 trainer.accelerator=cpu watch.pictures=false".split()


def test_steps_grow_with_the_text_up_to_those_of_the_default() -> None:
    lengths = [300, 16_282, 54_000, 180_000, WHOLE - 1]
    found = [steps_for(length, False) for length in lengths]
    assert found == sorted(found) and found[-1] == Config().trainer.max_steps
    for length, steps, best in zip(lengths[1:4], found[1:4], (240, 480, 720), strict=True):
        assert 0.8 < steps / best < 1.25, length
    assert all(steps_for(length, True) < steps for length, steps in zip(lengths, found, strict=True))


def test_what_is_typed_and_what_is_long_stays() -> None:
    config = merge()
    assert fit_to_text(config, [], WHOLE, 96, False) == (config, "")
    fitted, said = fit_to_text(config, [], 16_282, 96, False)
    assert said == "230 steps, dropout 0.2, validation every 20"
    assert (fitted.trainer.max_steps, fitted.model.dropout, fitted.trainer.val_check_interval) == (230, 0.2, 20)
    assert fitted.callbacks["early_stopping"]["patience"] == VALIDATIONS // 3
    typed = {"trainer.max_steps": 900, "model.dropout": 0.0, "trainer.val_check_interval": 30, "callbacks": {}}
    given = merge(typed)
    assert fit_to_text(given, typed, 16_282, 96, False) == (given, "")
    small = merge({"model.dim": 16, "model.layers": 1})
    fitted, _ = fit_to_text(small, ["model.dim", "model.layers"], 16_282, 96, False)
    assert fitted.model == small.model, "too small to memorise"
    for tokens, dropout in ((136_000, 0.2), (138_000, 0.0)):  # read 10 times
        assert fit_to_text(config, [], tokens, 96, False)[0].model.dropout == dropout
    longer, said = fit_to_text(merge({"trainer.max_steps": 900}), ["trainer.max_steps"], 16_282, 96, False)
    assert said == "dropout 0.2, validation every 22" and "early_stopping" not in longer.callbacks
    assert fit_to_text(replace(config, minutes=1.0), ["minutes"], 16_282, 96, False)[1] == "at most 230 steps"
    started, said = fit_to_text(config, [], 16_282, 96, True)
    assert said == "60 steps, validation every 5" and started.model == config.model
    overfit = replace(config, data=replace(config.data, overfit=300))
    assert fit_to_text(overfit, [], 300, 96, False) == (overfit, "")


def test_dropout_follows_the_weights_for_each_character_of_a_text_that_is_read_often() -> None:
    model = ModelConfig(layers=1, heads=1, dim=32)
    weights = GPT(model, 50).num_parameters()
    for tokens, dropout in ((weights // 4, 0.2), (weights // 2, 0.1), (weights, 0.1), (3 * weights, 0.0)):
        assert dropout_for(model, 50, tokens, 11 * tokens) == dropout
        assert dropout_for(model, 50, tokens, 10 * tokens) == 0


@pytest.mark.slow
def test_a_short_text_of_one_s_own(train: Call, workplace: Path) -> None:
    """It ends before it memorises, says how often it was read, and names a model that knows its characters."""
    Path("short.txt").write_text(Path("book.txt").read_text()[:2000])
    first = train("data.path=short.txt", "name=short", *SMALL, defaults=False)
    assert first.status == 0, first
    steps = steps_for(1800, False)
    assert f"short text 1,800 training characters: {steps} steps, dropout 0.2, validation every 7" in first.out
    assert "docs/demo/python.safetensors would start from what that model knows" in first.out
    assert "yardsticks guessing " in first.out and ", counting " in first.out
    stored = read_config(Path("runs/short"))
    assert stored.trainer.max_steps == steps and "early_stopping" in stored.callbacks
    assert summary("short")["epochs"] == pytest.approx(summary("short")["steps"] * 8 * 32 / 1800)
    again = train("resume=runs/short", defaults=False)
    assert again.status == 0 and "is finished" in again.out, "nothing is chosen anew"
