import numpy as np
import pytest

from conf.schema import PRECISIONS
from tests.conftest import last, one_line, summary
from tests.faults import faults
from tests.test_score import lines_of
from training.module import LitGPT

STEPS = "trainer.max_steps=12 trainer.val_check_interval=6 compile=false".split()


@pytest.mark.slow
def test_a_loss_that_is_no_number_is_found_where_losses_are_read_now_and_then(train, monkeypatch):
    """At the next log, as on a GPU, and before anything is saved."""
    monkeypatch.setattr(LitGPT, "asynchronous", True)
    monkeypatch.setattr("training.module.StepGraph", lambda update, _: update)
    # put back afterwards
    monkeypatch.setattr(faults.training.module, "F", faults.training.module.F)
    faults.spoil_loss(9)
    ended = train("name=b", *STEPS, "trainer.log_every_n_steps=4")
    one_line(ended, 1, "step 10: the loss is nan (batch 9 of seed 0)", "last.ckpt")
    assert last("b")["global_step"] == 6


@pytest.mark.parametrize("given", [
    *(f"trainer.precision={precision}" for precision in PRECISIONS if precision != "auto"),
    "data.documents=line trainer.precision=32-true",
])  # fmt: skip
def test_the_last_validation_says_what_score_says(given, train, score):
    steps = [*STEPS, "trainer.val_check_interval=12", "optim.lr=0.05"]
    ended = train("name=a", *given.split(), *steps)
    assert ended.status == 0
    mode = "documents" if "documents" in given else "disjoint"
    characters = lines_of(score("a", "--split", "validation", "--window", mode, "--per-char").out)
    expected = pytest.approx(np.mean([each["nats"] for each in characters]), abs=1e-6)
    ((step, loss, _),) = last("a")["history"]["validations"]["entries"]
    assert (step, loss) == (12, expected) and summary("a")["last_val_loss"] == expected
    assert summary("a")["evaluation"]["mode"] == mode
