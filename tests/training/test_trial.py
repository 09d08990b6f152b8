"""What is tried with a throwaway model, and what becomes of the configuration."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch

from conf.schema import Config
from tests.conftest import Ended
from tests.reference.capture import record
from training import trial
from training.captured_step import WARMUP_STEPS
from training.module import LitGPT

Train = Callable[..., Ended]


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("training.machine.missing_to_compile", lambda: "")
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.setattr("training.machine.COMPILE_FROM", 0.0)
    monkeypatch.setattr("training.trial._take_steps", Mock(side_effect=RuntimeError("one\ntwo")))


def test_what_was_typed_and_fails_is_refused_before_there_is_a_run(
    train: Train, failing: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = train("name=typed", "compile=true")
    assert ended.status == 2 and not Path("runs").exists()
    assert ended.err == "train.py: compile=true: failed (RuntimeError: one); use compile=false\n"
    monkeypatch.setattr("training.trial._take_steps", Mock(side_effect=torch.OutOfMemoryError()))
    ended = train("name=large", "compile=true")
    assert ended.status == 2 and "out of memory" in ended.err and "compile" not in ended.err.partition(";")[0]


def test_config_yaml_says_at_the_end_what_it_says_when_the_run_begins(
    train: Train, failing: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, begun = Path("runs/a/config.yaml"), []
    monkeypatch.setattr(LitGPT, "on_train_start", lambda module: begun.append(path.read_bytes()))
    ended = train("name=a")
    assert ended.status == 0 and begun == [path.read_bytes()] and b"compile: 'false'" in begun[0]
    line = "compile=true: failed (RuntimeError: one); the run is not compiled"
    assert ended.out.splitlines().count(line) == 1 and ended.out.count("compile=") == 1
    assert train("name=a", "resume=auto", "trainer.max_steps=40").status == 0


def test_nothing_in_a_configuration_can_be_changed() -> None:
    for part in (config := Config(), config.model, config.data, config.optim, config.trainer, config.watch):
        name = dataclasses.fields(part)[0].name
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(part, name, None)


def test_as_many_steps_are_tried_as_it_takes_to_capture_one(train: Train, monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[Mock] = []

    def capture(work: Callable[[], None]) -> Callable[[], None]:
        tried.append(Mock(wraps=record(work)))
        return tried[-1]

    monkeypatch.setattr("gpt.model.GPT._check", lambda *_: None)  # looks at tokens, on a CPU alone
    monkeypatch.setattr("training.assemble.choose_capture", lambda *_: capture)
    monkeypatch.setattr(
        "training.trial.try_compiling", lambda plan: (trial._take_steps(plan, WARMUP_STEPS + 1), plan)[1]
    )
    assert train("name=a", "compile=false", "trainer.max_steps=5", "model.dropout=0.1").status == 0
    assert [each.call_count for each in tried] == [1, 5 - WARMUP_STEPS]
