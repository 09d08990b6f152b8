import re
from typing import Any

import numpy as np
import pytest

from conf.schema import PRECISIONS
from tests.conftest import Call, last, summary
from tests.faults import faults
from tests.test_score import lines_of
from training.module import LitGPT

STEPS = ("trainer.max_steps=12", "trainer.val_check_interval=6", "trainer.log_every_n_steps=4", "compile=false")


@pytest.mark.slow
def test_nothing_is_read_between_logs_and_a_loss_that_is_no_number_is_found_at_the_next(
    train: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, reads = LitGPT.read, []

    def reading(module: LitGPT) -> Any:
        steps = read(module)
        reads.extend([[step for step, _, _ in steps]] if steps else [])
        return steps

    monkeypatch.setattr(LitGPT, "read", reading)
    monkeypatch.setattr(LitGPT, "asynchronous", True)  # as on a GPU
    monkeypatch.setattr("training.module.StepGraph", lambda update, _: update)
    monkeypatch.setattr("training.callbacks.metrics.LINE_SECONDS", 0.0)
    assert train("name=a", *STEPS).status == 0
    assert reads == [[0], [1, 2, 3], [4, 5], [6, 7], [8, 9, 10, 11]], "the first step is slow and timed alone"
    reads.clear()
    monkeypatch.setattr(faults.training.module, "F", faults.training.module.F)  # put back afterwards
    faults.spoil_loss(9)
    ended = train("name=b", *STEPS)
    assert ended.status == 1 and reads == [[0], [1, 2, 3], [4, 5], [6, 7]]
    assert re.fullmatch(r"train.py: step 10: the loss is nan \(batch 9 of seed 0\).*last.ckpt.*\n", ended.err)
    assert last("b")["global_step"] == 6


@pytest.mark.parametrize("precision", [each for each in PRECISIONS if each != "auto"])
def test_the_last_validation_says_what_score_says(precision: str, train: Call, score: Call) -> None:
    steps = ("trainer.max_steps=12", "trainer.val_check_interval=12", "optim.lr=0.05", "compile=false")
    assert train("name=a", f"trainer.precision={precision}", *steps).status == 0
    characters = lines_of(score("a", "--split", "validation", "--window", "disjoint", "--per-char").out)
    expected = pytest.approx(np.mean([each["nats"] for each in characters]), abs=1e-6)
    ((step, loss, _),) = last("a")["callbacks"]["Metrics"]["history"]["validations"]["entries"]
    assert (step, loss) == (12, expected) and summary("a")["last_val_loss"] == expected
