import weakref
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch

import gpt.training_checkpoint
from gpt.model_file import read
from tests.conftest import Call, last, summary
from training.module import LitGPT

STEPS = ("trainer.max_steps=12", "trainer.val_check_interval=6", "compile=false")
MODELS = [Path(f"runs/a/checkpoints/{name}.safetensors") for name in ("last", "best")]


def test_the_end_of_a_run_with_averages_reads_nothing_back(train: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        for name in ("gpt.model_file.read", "gpt.training_checkpoint.read", "training.summary_file.read"):
            patched.setattr(name, Mock(side_effect=AssertionError(name)))
        assert train("name=a", "callbacks=ema", "callbacks.ema.decay=0.9", *STEPS).status == 0
    assert summary("a")["best_step"] == 12, "so the best model needs no reading"
    averaged, contents = read(MODELS[0]), last("a")
    for name, weight in averaged.state.items():
        assert torch.from_numpy(weight).equal(contents["state_dict"][f"net.{name}"]), name
    assert not torch.from_numpy(weight).equal(contents["current_model_state"][f"net.{name}"])
    assert MODELS[0].read_bytes() == MODELS[1].read_bytes()


def test_a_resumed_run_frees_its_checkpoint(train: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    assert train("name=a", *STEPS).status == 0
    seen, freed, load, step = list[Any](), list[bool](), gpt.training_checkpoint.read, LitGPT.training_step

    def reading(path: Path) -> Any:
        contents = load(path)
        seen.append(weakref.ref(contents["state_dict"]["net.head.weight"]))
        return contents

    def stepping(*arguments: Any) -> Any:
        freed.append(seen[0]() is None)
        return step(*arguments)

    monkeypatch.setattr(gpt.training_checkpoint, "read", reading)
    monkeypatch.setattr(LitGPT, "training_step", stepping)
    assert train("resume=runs/a", "trainer.max_steps=14", defaults=False).status == 0
    assert freed == [True, True] and len(seen) == 1
