"""A training step that is recorded and repeated, against the same step taken by Python each time.

What records is the oracle of tests/reference/capture.py; what is compared is whole runs of train.py, bit for bit.
"""

import os
import re
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from tests.conftest import Ended, last
from tests.faults import faults
from tests.faults.test_resume import assert_same
from tests.reference.capture import record
from tests.training.callbacks.test_metrics import scalars
from training.captured_step import WARMUP_STEPS, choose_capture
from training.module import LitGPT

Train = Callable[..., Ended]
STEPS = ("trainer.max_steps=12", "trainer.val_check_interval=6", "trainer.log_every_n_steps=4", "compile=false")


def each_time(work: Callable[[], None]) -> Callable[[], None]:
    return work  # nothing is recorded: Python does the work again


@pytest.fixture
def recording(monkeypatch: pytest.MonkeyPatch) -> Callable[[Any], None]:
    """Sets what records the steps of the runs that follow."""
    monkeypatch.setattr("gpt.model.GPT._check", lambda *_: None)  # looks at tokens, on a CPU alone
    return lambda recorder: monkeypatch.setattr("training.assemble.choose_capture", lambda *_: recorder)


def assert_same_run(one: str, other: str) -> None:
    for part in ("state_dict", "optimizer_states"):
        assert_same(last(one)[part], last(other)[part], part)
    for tag in ("train/loss", "optim/grad_norm", "val/loss", "optim/clip_share", "update/mlp"):
        assert scalars(one, tag) == scalars(other, tag), tag


@pytest.mark.slow
def test_repeated_steps_are_the_steps(train: Train, recording: Callable) -> None:
    recipes = {
        "muon": ["model.dropout=0.2", "data.micro_batch=4", "model.positions=learned"],
        "adamw": [
            "optim.name=adamw", "model.tied=true", "model.activation=gelu", "trainer.precision=bf16-mixed",
            "callbacks=ema", "model.window=16", "model.context=64", "model.positions=alibi",
        ],
    }  # fmt: skip
    for name, recipe in recipes.items():
        repeated = []

        def counting(work: Callable[[], None], repeated: list = repeated) -> Any:
            repeated.append(Mock(wraps=record(work)))
            return repeated[-1]

        for run, recorder in ((f"python-{name}", each_time), (name, counting)):
            recording(recorder)
            assert train(f"name={run}", *STEPS, *recipe).status == 0
        assert_same_run(f"python-{name}", name)
        assert len(set(scalars(name, "train/loss").values())) == 3
        assert [each.call_count for each in repeated] == [12 - WARMUP_STEPS]


@pytest.mark.slow
def test_a_stopped_run_goes_on_bit_for_bit(train: Train, recording: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    recording(record)
    typed = [*STEPS, "model.dropout=0.1", "trainer.log_every_n_steps=5"]
    assert train("name=whole", *typed).status == 0
    with monkeypatch.context() as patched:
        patched.setattr(LitGPT, "training_step", LitGPT.training_step)  # put back afterwards
        faults.before_step(7, lambda: os.kill(os.getpid(), signal.SIGTERM))
        assert train("name=cut", *typed).status == 143
    assert last("cut")["global_step"] == 8
    assert train("resume=runs/cut", defaults=False).status == 0
    assert_same_run("whole", "cut")


@pytest.mark.slow
def test_checkpoints_are_those_of_a_run_that_repeats_nothing(train: Train, recording: Callable) -> None:
    for optimizer, resumed in (("muon", ["plain"]), ("adamw", ["plain", "repeated"])):
        recorders = {f"plain-{optimizer}": None, f"repeated-{optimizer}": record}
        for name, recorder in recorders.items():
            recording(recorder)
            assert train(f"name={name}", f"optim.name={optimizer}", *STEPS).status == 0
        plain, repeated = recorders
        assert scalars(repeated, "train/loss") == pytest.approx(scalars(plain, "train/loss"), rel=1e-4)
        groups = [last(name)["optimizer_states"][0]["param_groups"] for name in recorders]
        for one, other in zip(*groups, strict=True):
            rate, rounded = one.pop("lr"), other.pop("lr")
            assert type(rate) is type(rounded) is float and rounded == pytest.approx(rate, rel=1e-6)
            assert one == other
        for name in resumed:
            recording(record if name == "plain" else None)
            assert train(f"resume=runs/{name}-{optimizer}", "trainer.max_steps=16", defaults=False).status == 0


@pytest.mark.slow
def test_nothing_is_read_between_logs_and_a_loss_that_is_no_number_is_found_at_the_next(
    train: Train, recording: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, reads = LitGPT.read, []

    def reading(module: LitGPT) -> Any:
        steps = read(module)
        reads.extend([[step for step, _, _ in steps]] if steps else [])
        return steps

    monkeypatch.setattr(LitGPT, "read", reading)
    recording(each_time)
    assert train("name=a", *STEPS).status == 0
    assert reads == [[0, 1, 2, 3], [4, 5], [6, 7], [8, 9, 10, 11]]
    reads.clear()
    monkeypatch.setattr(faults.training.module, "F", faults.training.module.F)  # put back afterwards
    faults.spoil_loss(9)
    ended = train("name=b", *STEPS)
    assert ended.status == 1 and reads == [[0, 1, 2, 3], [4, 5], [6, 7]]
    assert re.fullmatch(r"train.py: step 10: the loss is nan \(batch 9 of seed 0\).*step-00000006.ckpt.*\n", ended.err)
    assert [path.name for path in sorted(Path("runs/b/checkpoints").glob("step-*"))] == ["step-00000006.ckpt"]


def test_where_steps_are_captured() -> None:
    assert choose_capture("graph", 1, False) is not None
    for where in (("graph", 2, False), ("true", 1, False), ("false", 1, False), ("graph", 1, True)):
        assert choose_capture(*where) is None
