"""Stops are clean: alone, under SLURM, and of several processes, which end together or not at all."""

import itertools
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.conftest import ROOT, TINY
from tests.faults import faults
from tests.faults.processes import MUON, TWO, events, run, start, wait_for
from tests.faults.test_resume import assert_as_if_never_touched, assert_same, assert_same_checkpoints


def drive(fault: str, *arguments: str) -> subprocess.Popen:
    """Start train.py with a fault in one of its ranks."""
    keys = {argument.partition("=")[0] for argument in arguments}
    given = [each for each in [*TINY, "data.path=book.txt"] if each.partition("=")[0] not in keys]
    return subprocess.Popen(
        [sys.executable, ROOT / "tests/faults/driver.py", *given, *arguments],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
        env=os.environ | {"FAULT": fault},
    )  # fmt: skip


def gone(group: int) -> bool:
    """Whether no process of a group is left."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return True
    return False


def ends(process: subprocess.Popen, within: float) -> tuple[int, str, str]:
    """How a job ended; fails, and ends it, where it does not, or leaves a process behind."""
    try:
        out, err = process.communicate(timeout=within)
        until = time.monotonic() + 60
        while not gone(process.pid) and time.monotonic() < until:
            time.sleep(0.05)
        assert gone(process.pid), f"left a process behind: {err}"
        return process.returncode, out, err
    finally:
        if not gone(process.pid):
            os.killpg(process.pid, signal.SIGKILL)


# -- One process -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "number", [signal.SIGINT, signal.SIGTERM, signal.SIGUSR1], ids=["ctrl-c", "sigterm", "sigusr1"]
)
@pytest.mark.parametrize("step", [13, 19, 20])
def test_a_stop_finishes_the_step_and_saves(number: int, step: int, whole: Any, workplace: Path) -> None:
    ended = run("name=cut", *MUON, fault=(faults.signal_at, step, number))
    name = signal.Signals(number).name
    assert ended.status == 128 + number and ended.err == "", ended
    assert f"stopped by {name} after step {step + 1}; the newest checkpoint is runs/cut/checkpoints/" in ended.out
    assert json.loads(Path("runs/cut/summary.json").read_text())["status"] == "interrupted"
    assert torch.load("runs/cut/checkpoints/last.ckpt")["global_step"] == step + 1
    assert run("resume=auto", defaults=False).status == 0
    assert_same_checkpoints(whole(MUON), Path("runs/cut"))
    assert events(whole(MUON)) == events(Path("runs/cut"))


def test_a_stop_while_a_checkpoint_is_loaded(whole: Any, workplace: Path) -> None:
    assert run("name=cut", *MUON, fault=(faults.signal_at, 12, signal.SIGTERM)).status == 143
    ended = run("resume=auto", defaults=False, fault=(faults.signal_while_loading, signal.SIGTERM))
    assert ended.status == 143 and ended.err == "" and "stopped by SIGTERM; the newest" in ended.out, ended
    assert run("resume=auto", defaults=False).status == 0
    assert_same_checkpoints(whole(MUON), Path("runs/cut"))


def test_a_stop_while_the_trained_model_is_evaluated(whole: Any, workplace: Path) -> None:
    ended = run("name=cut", *MUON, fault=(faults.signal_in_finish, signal.SIGTERM))
    assert ended.status == 143 and "stopped by SIGTERM; the newest checkpoint is" in ended.out, ended
    assert run("resume=auto", defaults=False).status == 0
    assert_as_if_never_touched(whole(MUON), Path("runs/cut"))


@pytest.mark.parametrize("when", ["begin", "middle"])
def test_a_stop_in_the_last_validation(when: str, whole: Any, workplace: Path) -> None:
    """It is saved, and not evaluated: time may be up."""
    ended = run("name=cut", *MUON, fault=(faults.signal_in_validation, 3, when, signal.SIGTERM))
    assert ended.status == 143 and "stopped by SIGTERM after step 30" in ended.out, ended
    assert run("resume=auto", defaults=False).status == 0
    assert_as_if_never_touched(whole(MUON), Path("runs/cut"))


def test_slurm_requeues_what_has_not_begun(workplace: Path) -> None:
    (workplace / "scontrol").write_text('#!/bin/sh\necho "$@" >> asked\n')
    (workplace / "scontrol").chmod(0o755)
    slurm = {"PATH": f"{workplace}{os.pathsep}{os.environ['PATH']}", "SLURM_JOB_ID": "5"}
    ended = run(fault=(faults.signal_before_fit, signal.SIGUSR1), environment=slurm)
    assert ended.status == 138 and "SLURM job 5 is requeued" in ended.out, ended
    assert Path("asked").read_text() == "requeue 5\n" and not Path("runs").exists()


def test_a_job_may_make_several_runs(workplace: Path) -> None:
    slurm = {"SLURM_JOB_ID": "6"}
    assert run("trainer.max_steps=2", environment=slurm).status == 0
    assert run("trainer.max_steps=3", environment=slurm).status == 0
    assert len(list(Path("runs").iterdir())) == 2
    again = run("trainer.max_steps=3", environment=slurm | {"SLURM_RESTART_COUNT": "1"})
    assert again.status == 0 and "is finished: step 3 of 3" in again.out, again


def test_slurm_requeues_and_the_same_command_goes_on(
    whole: Any,
    workplace: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A script stands for SLURM's `scontrol`: it keeps what it was asked for. The job's second start is ours."""
    tools = workplace / "tools"
    tools.mkdir()
    (tools / "scontrol").write_text('#!/bin/sh\necho "$@" >> "$ASKED"\n')
    (tools / "scontrol").chmod(0o755)
    slurm = {
        "PATH": f"{tools}{os.pathsep}{os.environ['PATH']}",
        "ASKED": str(workplace / "asked"),
        "SLURM_JOB_ID": "4711",
    }
    first = run(*MUON, fault=(faults.signal_at, 12, signal.SIGUSR1), environment=slurm)
    assert first.status == 138 and "SLURM job 4711 is requeued, to go on with this run" in first.out, first
    assert Path("asked").read_text() == "requeue 4711\n"
    second = run(*MUON, environment=slurm | {"SLURM_RESTART_COUNT": "1"})
    (cut,) = Path("runs").iterdir()
    assert second.status == 0 and f"resume: going on in {cut}" in second.out and cut.name.startswith("4711_"), second
    ours, theirs = (torch.load(each / "checkpoints/last.ckpt") for each in (whole(MUON), cut))
    assert_same(ours["state_dict"], theirs["state_dict"], "state_dict")
    assert events(whole(MUON)) == events(cut)
    # A job of an array is named by both numbers; a scontrol that fails is heard.
    (tools / "scontrol").write_text('#!/bin/sh\necho "$@" >> "$ASKED"\necho "Access denied" >&2\nexit 1\n')
    array = slurm | {"SLURM_JOB_ID": "4713", "SLURM_ARRAY_JOB_ID": "4712", "SLURM_ARRAY_TASK_ID": "3"}
    third = run(*MUON, fault=(faults.signal_at, 12, signal.SIGUSR1), environment=array)
    assert third.status == 138 and "SLURM job 4712_3 could not be requeued: Access denied" in third.out, third
    assert Path("asked").read_text() == "requeue 4711\nrequeue 4712_3\n"


# -- Two processes -----------------------------------------------------------------------------------


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_a_signal_to_one_rank_stops_both_cleanly(strategy: str, workplace: Path) -> None:
    status, out, err = ends(drive("1:signal_at:12:15", "name=cut", *TWO, f"trainer={strategy}"), within=150)
    assert (status, err) == (143, ""), err
    assert "stopped by SIGTERM after step 13" in out
    assert torch.load("runs/cut/checkpoints/last.ckpt")["global_step"] == 13


def test_ctrl_c_in_the_terminal_reaches_both(workplace: Path) -> None:
    process = start("name=cut", *TWO, "trainer.max_steps=100000", "trainer.val_check_interval=1000")
    wait_for(lambda: Path("runs/cut/train.log").exists(), process)
    wait_for(lambda: bool(list(Path("runs/cut").glob("events*"))), process)
    time.sleep(4)
    os.killpg(process.pid, signal.SIGINT)
    status, out, err = ends(process, within=150)
    assert (status, err) == (130, ""), err
    assert "stopped by SIGINT after step" in out


@pytest.mark.parametrize(
    ("fault", "rank", "strategy"),
    [
        *itertools.product(("raise_at:12", "at_step:12", "hang_at:12"), (0, 1), ("ddp",)),
        ("hang_at:12", 1, "fsdp"),
    ],
)
def test_a_rank_that_fails_ends_the_job(fault: str, rank: int, strategy: str, workplace: Path) -> None:
    patience = 15 if "hang" in fault else 60  # it holds for finding each other, too, which takes a busy machine long
    process = drive(f"{rank}:{fault}", "name=cut", *TWO, f"trainer={strategy}", f"trainer.timeout={patience}")
    status, out, err = ends(process, within=150)
    assert status != 0
    if "raise" in fault:
        assert "made to fail" in err
    elif rank == 1:
        assert "another process of this run has died or is silent; the newest checkpoint is" in err or status == -9
    assert torch.load("runs/cut/checkpoints/last.ckpt")["global_step"] == 10
