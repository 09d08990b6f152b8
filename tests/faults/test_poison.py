"""Numbers that are none stop a run before they reach a weight, and none ever reaches a checkpoint."""

import shutil
from functools import partial
from pathlib import Path
from typing import Any

from gpt import model_file
from gpt.checkpoint import is_finite, read
from tests.conftest import one_line
from tests.faults import faults
from tests.faults.processes import MUON, run, run_ranks
from tests.faults.test_checkpoints import contents_of
from tests.faults.test_resume import assert_as_if_never_touched

CHECKPOINTS = Path("runs/cut/checkpoints")


def assert_finite() -> None:
    assert all(is_finite(read(path)) for path in CHECKPOINTS.glob("*.ckpt"))
    for path in CHECKPOINTS.glob("*.safetensors"):
        model_file.read(path)


def test_a_step_that_is_no_number_is_not_taken(whole: Any, workplace: Path) -> None:
    for fault, said in (
        ((faults.spoil_loss, 4 * 17 + 1), "step 18: the loss is nan (batch 17 of seed 0)"),
        ((faults.spoil_gradient, 29), "step 30: the norm of the gradient is inf (batch 29 of seed 0)"),
    ):
        ended = run("name=cut", *MUON, fault=fault)
        newest = sorted(CHECKPOINTS.glob("step-*"))[-1]
        one_line(ended, 1, said, "training has diverged; lower optim.lr", f"the newest checkpoint is {newest}")
        assert said in Path("runs/cut/train.log").read_text()
        assert_finite()
        assert run("name=cut", "resume=auto", *MUON).status == 0
        assert_as_if_never_touched(whole(MUON), Path("runs/cut"))
        shutil.rmtree("runs")


def test_weights_that_are_no_numbers_are_not_saved(workplace: Path) -> None:
    for start in (run, partial(run_ranks, 2, "trainer=fsdp")):
        ended = start("name=cut", *MUON, fault=(faults.spoil_weights, 12))
        one_line(ended, 1, "step 13 has left weights that are NaN or infinite: not saved", "step-00000010.ckpt")
        assert len(contents_of(CHECKPOINTS)) == 4
        assert_finite()
        shutil.rmtree("runs")


def test_one_rank_s_loss_stops_both(workplace: Path) -> None:
    for trainer, batch, newest in (("ddp", 2 * 25, 20), ("fsdp", 2 * 17 + 1, 10)):
        ended = run_ranks(2, "name=cut", f"trainer={trainer}", *MUON, fault={1: (faults.spoil_loss, batch)})
        said = f"step {batch // 2 + 1}: the loss is nan (batch {batch // 2} of seed 0)"
        one_line(ended, 1, said, "training has diverged", "the newest checkpoint is", f"step-000000{newest}.ckpt")
        shutil.rmtree("runs")
