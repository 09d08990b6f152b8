import json
import re
import signal
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import data.datamodule
from tests.conftest import Ended
from tests.faults import faults
from tests.faults.processes import run

pytestmark = pytest.mark.slow
Train = Callable[..., Ended]
LAYERS = 3
SMALL = (
    f"debug=profile data.path=book.txt model.layers={LAYERS} model.heads=2 model.dim=64 model.context=64 "
    "data.batch=8 trainer.accelerator=cpu trainer.devices=1 trainer.precision=32-true"
).split()
TRACE = Path("runs/debug-profile/trace.json")
LINEAR = 4 * LAYERS + 1  # products in a forward pass: two of attention, two of the MLP, and the head


@pytest.fixture(autouse=True)
def quick_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("train.SAMPLE_LENGTH", 5)


def recorded(trace: Path) -> list[float]:
    """Milliseconds at which the forward passes of a trace begin."""
    events = json.loads(trace.read_text("utf-8"))["traceEvents"]
    return sorted(event["ts"] / 1000 for event in events if event.get("name") == "aten::linear")[::LINEAR]


def test_three_steps_are_recorded(train: Train, monkeypatch: pytest.MonkeyPatch) -> None:
    make = data.datamodule.train_batch
    monkeypatch.setattr("data.datamodule.train_batch", lambda *given: (time.sleep(0.03), make(*given))[1])
    ended = train(*SMALL, defaults=False)
    assert (ended.status, ended.err) == (0, "")
    begun = recorded(TRACE)
    assert len(begun) == 3 and min(np.diff(begun)) >= 30, "the wait for a batch is between two steps"
    for said in (ended.out, Path("runs/debug-profile/train.log").read_text()):
        (row,) = re.findall(r"^ +aten::mm .* (\d+) *$", said, re.MULTILINE)
        assert int(row) == 3 * 3 * LINEAR, "a product forward and two backward"
        assert f"profile    {TRACE}\n" in said
    for steps in (2, 12):  # short runs are recorded at their end, without the validation
        ended = train(*SMALL, f"trainer.max_steps={steps}", "trainer.val_check_interval=1", defaults=False)
        assert (ended.status, ended.err) == (0, "")
        assert len(recorded(TRACE)) == 1


def test_a_run_that_is_ended_while_it_is_recorded_goes_on(workplace: Path) -> None:
    typed = ["name=cut", "trainer.profiler=pytorch", "trainer.max_steps=15"]
    ended = run(*typed, fault=(faults.signal_at, 12, signal.SIGTERM))
    assert ended.status == 143 and Path("runs/cut/trace.json").exists(), ended
    ended = run("resume=runs/cut", "trainer.profiler=pytorch", defaults=False)
    assert (ended.status, ended.err) == (0, ""), ended
    assert json.loads(Path("runs/cut/trace.json").read_text("utf-8"))["traceEvents"]
