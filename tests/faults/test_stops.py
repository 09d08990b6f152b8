"""How runs end: by signals, by processes that die, and by numbers that are none, which never reach a checkpoint."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from gpt import model_file
from gpt.checkpoint import is_finite, read_training_checkpoint
from tests.base.test_progress import Terminal
from tests.conftest import ROOT, last, needs_compiler, one_line, summary
from tests.faults import faults
from tests.faults.processes import JOB, LIMIT, MUON, TWO, Process, run, run_ranks, start, wait_for
from tests.faults.test_resume import assert_as_if_never_touched, assert_same_checkpoints

CHECKPOINTS = Path("runs/cut/checkpoints")
TERM = pytest.param(signal.SIGTERM, 19, marks=pytest.mark.promise)


@pytest.mark.parametrize(
    ("number", "step"), [(signal.SIGINT, 13), TERM, (signal.SIGUSR1, 20), (signal.SIGHUP, 16)]
)
def test_a_stop_finishes_the_step_and_saves(number, step, whole, workplace):
    ended = run("name=cut", *MUON, fault=(faults.at_step, step, number))
    name = signal.Signals(number).name
    assert ended.status == 128 + number and ended.err == "", ended
    assert (
        f"stopped by {name} after step {step + 1}; the newest checkpoint is runs/cut/checkpoints/"
        in ended.out
    )
    assert summary("cut")["status"] == "interrupted"
    assert last("cut")["global_step"] == step + 1
    assert run("resume=auto", defaults=False).status == 0
    assert_same_checkpoints(whole(MUON))


@pytest.mark.parametrize(("fault", "said"), [
    ((faults.signal_in_validation, 3, signal.SIGTERM), " after step 30"),
    ((faults.before_results, signal.SIGTERM), "; the newest checkpoint is"),
])  # fmt: skip
def test_a_stop_in_the_last_validation_or_evaluation(fault, said, whole, workplace):
    ended = run("name=cut", *MUON, fault=fault)
    assert ended.status == 143 and f"stopped by SIGTERM{said}" in ended.out, ended
    assert run("resume=auto", defaults=False).status == 0
    assert_as_if_never_touched(whole(MUON))


@pytest.mark.slow
def test_a_signal_while_the_model_compiles(workplace):
    needs_compiler()
    process = start(
        "compile=true", env=os.environ | {"TORCHINDUCTOR_CACHE_DIR": str(workplace / "cold")}
    )
    wait_for(lambda: any(Path("cold").rglob("*")), process)
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=60)  # 10 s on a quiet machine
    assert process.returncode == 128 + signal.SIGTERM and "Traceback" not in err, (out, err)
    assert "stopped by SIGTERM" in out and "validation loss" not in out


def test_a_job_may_make_several_runs_and_a_restarted_one_continues_its_own(workplace):
    job = {"SLURM_JOB_ID": "6"}
    for steps in (2, 3):
        given = (f"trainer.max_steps={steps}", "trainer.devices=2")
        assert run(*given, environment=job).status == 0
    assert len(list(Path("runs").iterdir())) == 2
    again = run(*given, environment=job | {"SLURM_RESTART_COUNT": "1"})
    assert again.status == 0 and "is finished: step 3 of 3" in again.out, again


def test_a_job_of_an_array_that_cannot_be_requeued(workplace):
    """It is named by both numbers, and a scontrol that fails is heard. tests/faults/test_slurm.py has SLURM itself."""
    scontrol = workplace / "tools/scontrol"
    scontrol.parent.mkdir()
    scontrol.write_text('#!/bin/sh\necho "asked to $@" >&2\nexit 1\n')
    scontrol.chmod(0o755)
    job = {"SLURM_JOB_ID": "4713", "SLURM_ARRAY_JOB_ID": "4712", "SLURM_ARRAY_TASK_ID": "3"}
    job["PATH"] = f"{scontrol.parent}{os.pathsep}{os.environ['PATH']}"
    ended = run(fault=(faults.at_step, 12, signal.SIGUSR1), environment=job)
    assert ended.status == 138, ended
    assert "SLURM job 4712_3 could not be requeued: asked to requeue 4712_3" in ended.err


# Loading PyTorch takes ten minutes.
LOADING = """
import runpy, sys, time
from training import run
run.import_module = lambda name: time.sleep(600)
sys.argv = [sys.argv[1], "data.path=book.txt", "name=a"]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def test_a_terminal_shows_that_pytorch_loads_and_ctrl_c_ends_that_at_once(workplace):
    terminal = Terminal("-c", LOADING, str(ROOT / "train.py"))
    terminal.until("loading PyTorch and Lightning  00:00")
    terminal.process.send_signal(signal.SIGINT)
    terminal.until("stopped by SIGINT; there is no run yet")
    terminal.process.send_signal(signal.SIGINT)
    shown = terminal.watch()
    assert terminal.process.returncode == 130, shown
    assert "Traceback" not in shown
    assert not Path("runs").exists()


STEPS = ["trainer.max_steps=300", "trainer.val_check_interval=30"]
LONG = ["name=cut", *JOB, "compile=false", *STEPS]


def test_a_run_is_saved_when_its_terminal_closes(workplace):
    terminal = Terminal(str(ROOT / "train.py"), *LONG)
    terminal.until("validation loss")
    os.close(terminal.ours)
    terminal.process.send_signal(signal.SIGHUP)
    assert terminal.process.wait(LIMIT) == 129
    saved = last("cut")["global_step"]
    said = Path("runs/cut/train.log").read_text()
    assert 30 <= saved < 300 and f"stopped by SIGHUP after step {saved}; the newest" in said


def test_with_nohup_a_run_goes_on(workplace):
    command = ["nohup", sys.executable, str(ROOT / "train.py"), *LONG, "trainer.max_steps=120"]
    with open("night.out", "w") as out:
        process = subprocess.Popen(command, stdout=out, stderr=out)
    wait_for(Path("runs/cut/checkpoints/last.ckpt").exists)
    process.send_signal(signal.SIGHUP)
    assert process.poll() is None, "it still trains"
    assert process.wait(LIMIT) == 0
    assert summary("cut")["steps"] == 120


def test_ctrl_c_in_the_terminal_is_passed_on_to_both(workplace):
    process = Process("name=cut", *TWO, "trainer.max_steps=100000")
    wait_for(Path("runs/cut/checkpoints/last.ckpt").exists, process)
    process.signal(signal.SIGINT, group=True)
    ended = process.ends()
    assert (ended.status, ended.err) == (130, ""), ended
    assert "stopped by SIGINT after step" in ended.out


def test_gpus_ask_each_other_only_after_steps_whose_losses_they_have_read(workplace):
    logs = (
        "trainer.max_steps=60 trainer.val_check_interval=60 trainer.log_every_n_steps=50".split()
    )
    fault = (faults.signal_as_on_gpu, 1, 12, signal.SIGTERM)
    ended = run_ranks(2, "name=cut", *TWO, *logs, fault=fault)
    assert ended.status == 143 and "stopped by SIGTERM after step 21;" in ended.out, ended
    assert last("cut")["global_step"] == 21, "20 steps after the first, which is read alone"


LOST = "another process of this run has died or does not answer; the newest checkpoint is"


@pytest.mark.parametrize(("fault", "said"), [
    ((faults.in_rank, 1, faults.raise_at, 12), "ZeroDivisionError: division by zero"),
    ((faults.in_rank, 0, faults.at_step, 12), f"rank 0 was killed by SIGKILL|{LOST}"),
    ((faults.hang_in_rank, 1, 12), LOST),
    ((faults.diverge_in_rank_1_first, 2 * 15), r"step 16: the loss is nan \(batch 15 of seed 0\)"),
])  # fmt: skip
def test_a_rank_that_fails_ends_the_job(fault, said, workplace):
    ended = run_ranks(2, "name=cut", *TWO, "trainer.timeout=5", fault=fault)
    assert ended.status == 1 and re.search(said, ended.err), ended
    assert last("cut")["global_step"] == 10


def assert_finite():
    assert all(is_finite(read_training_checkpoint(path)) for path in CHECKPOINTS.glob("*.ckpt"))
    for path in CHECKPOINTS.glob("*.safetensors"):
        model_file.read(path)


@pytest.mark.parametrize(("fault", "said"), [
    ((faults.spoil_loss, 4 * 17 + 1), "step 18: the loss is nan (batch 17 of seed 0)"),
    ((faults.spoil_gradient, 29), "step 30: the gradient norm is inf (batch 29 of seed 0)"),
])  # fmt: skip
def test_a_step_that_is_no_number_is_not_taken(whole, workplace, fault, said):
    ended = run("name=cut", *MUON, fault=fault)
    advice = "python train.py resume=runs/cut optim.lr=0.003 optim.muon_lr=0.005 'allow=[optim.lr,optim.muon_lr]'"
    one_line(ended, 1, said, "training has diverged", f"{CHECKPOINTS}/last.ckpt: {advice}")
    assert said in Path("runs/cut/train.log").read_text()
    assert_finite()
    assert run("name=cut", "resume=auto", *MUON).status == 0
    assert_as_if_never_touched(whole(MUON))


def test_weights_that_are_no_numbers_are_not_saved(workplace):
    ended = run("name=cut", *MUON, fault=(faults.spoil_weights, 12))
    one_line(ended, 1, "step 13 left weights that are NaN or infinite", "last.ckpt")
    assert len(list(CHECKPOINTS.iterdir())) == 2
    assert_finite()
