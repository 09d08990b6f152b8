import re
from typing import Any

import pytest

from tests.conftest import Call, last
from tests.faults import faults
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
    assert train("name=a", *STEPS).status == 0
    assert reads == [[0], [1, 2, 3], [4, 5], [6, 7], [8, 9, 10, 11]], "the first step is slow and timed alone"
    reads.clear()
    monkeypatch.setattr(faults.training.module, "F", faults.training.module.F)  # put back afterwards
    faults.spoil_loss(9)
    ended = train("name=b", *STEPS)
    assert ended.status == 1 and reads == [[0], [1, 2, 3], [4, 5], [6, 7]]
    assert re.fullmatch(r"train.py: step 10: the loss is nan \(batch 9 of seed 0\).*last.ckpt.*\n", ended.err)
    assert last("b")["global_step"] == 6
