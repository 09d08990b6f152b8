from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from data.config import DataConfig
from data.text import open_text
from gpt.checkpoint import load_checkpoint
from gpt.model_file import read
from tests.conftest import summary
from tests.model_files import nats_of
from training.callbacks import checkpoints
from training.callbacks.checkpoints import Checkpoints
from training.module import LitGPT

FILES = Path("runs/a/checkpoints")


def test_the_best_model_stays_that_of_the_lowest_loss(trained, train):
    best = trained.read_bytes()
    rates = (
        "optim.lr=1 optim.muon_lr=1 optim.cooldown=0 allow=[optim.lr,optim.muon_lr,optim.cooldown]"
    )
    ended = train("resume=first", "trainer.max_steps=50", *rates.split(), defaults=False)
    assert ended.status == 0, ended
    found = summary("first")
    losses = {int(step): loss for step, loss in found["validations"].items()}
    lowest = losses.pop(30)
    assert min(losses[40], losses[50]) > lowest + 0.1
    assert trained.read_bytes() == best
    assert (found["best_step"], found["val_loss"]) == (30, pytest.approx(lowest))
    assert found["last_val_loss"] == pytest.approx(losses[50])


def test_a_run_saves_after_a_minute_and_then_every_five(train, monkeypatch):
    """By a clock on which a step takes ten seconds."""
    clock = SimpleNamespace(now=0.0, monotonic=lambda: clock.now)
    step, save = LitGPT.training_step, Checkpoints.save
    saved = []

    def slow_step(module, *given):
        clock.now += 10
        return step(module, *given)

    def noted_save(callback, trainer):
        saved.append(trainer.global_step)
        save(callback, trainer)

    monkeypatch.setattr(checkpoints, "time", clock)
    monkeypatch.setattr(LitGPT, "training_step", slow_step)
    monkeypatch.setattr(Checkpoints, "save", noted_save)
    assert train("trainer.max_steps=100", "trainer.val_check_interval=45").status == 0
    assert saved == [6, 36, 45, 75, 90, 100]


def test_each_validation_leaves_what_it_evaluated(trained, train, sample):
    averaged = "callbacks=[snapshots,ema] callbacks.ema.share=0.1 trainer.max_steps=20".split()
    # so that there is a validation before the first step, too, which leaves nothing
    assert train("name=a", "init_from=first", *averaged).status == 0
    assert sorted(path.stem for path in FILES.glob("step-*")) == ["step-10", "step-20"]
    validations = summary("a")["validations"]
    tokens = open_text(DataConfig(path="book.txt"), 32).validation
    for step in (10, 20):
        model, meta = load_checkpoint(FILES / f"step-{step}.safetensors")
        assert (meta["step"], meta["val_loss"]) == (step, validations[str(step)])
        assert np.mean(nats_of(model, tokens)) == pytest.approx(meta["val_loss"], abs=1e-5)
    newest, end = read(FILES / "step-20.safetensors"), read(FILES / "last.safetensors")
    np.testing.assert_equal(newest.state, end.state)
    assert sample(str(FILES / "step-10.safetensors"), "--num-chars", "5").status == 0
