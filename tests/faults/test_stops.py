import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.faults import faults
from tests.faults.processes import MUON, TWO, Process, events, run, run_ranks, wait_for
from tests.faults.test_resume import assert_as_if_never_touched, assert_same, assert_same_checkpoints


@pytest.mark.parametrize(("number", "step"), [(signal.SIGINT, 13), (signal.SIGTERM, 19), (signal.SIGUSR1, 20)])
def test_a_stop_finishes_the_step_and_saves(number: int, step: int, whole: Any, workplace: Path) -> None:
    ended = run("name=cut", *MUON, fault=(faults.signal_at, step, number))
    name = signal.Signals(number).name
    assert ended.status == 128 + number and ended.err == "", ended
    assert f"stopped by {name} after step {step + 1}; the newest checkpoint is runs/cut/checkpoints/" in ended.out
    assert json.loads(Path("runs/cut/summary.json").read_text())["status"] == "interrupted"
    assert torch.load("runs/cut/checkpoints/last.ckpt")["global_step"] == step + 1
    if number == signal.SIGTERM:  # again, while the checkpoint is loaded
        ended = run("resume=auto", defaults=False, fault=(faults.signal_while_loading, number))
        assert ended.status == 143 and ended.err == "" and "stopped by SIGTERM; the newest" in ended.out, ended
    assert run("resume=auto", defaults=False).status == 0
    assert_same_checkpoints(whole(MUON), Path("runs/cut"))


@pytest.mark.parametrize(("fault", "said"), [
    *(((faults.signal_in_validation, 3, when, signal.SIGTERM), " after step 30") for when in ("begin", "middle")),
    ((faults.before_call, "finish", signal.SIGTERM), "; the newest checkpoint is"),
])  # fmt: skip
def test_a_stop_in_the_last_validation_or_evaluation(fault: Any, said: str, whole: Any, workplace: Path) -> None:
    ended = run("name=cut", *MUON, fault=fault)
    assert ended.status == 143 and f"stopped by SIGTERM{said}" in ended.out, ended
    assert run("resume=auto", defaults=False).status == 0
    assert_as_if_never_touched(whole(MUON), Path("runs/cut"))


@pytest.fixture
def slurm(workplace: Path) -> dict[str, str]:
    (workplace / "tools").mkdir()
    (workplace / "tools/scontrol").write_text('#!/bin/sh\necho "$@" >> "$ASKED"\n')
    (workplace / "tools/scontrol").chmod(0o755)
    path = f"{workplace / 'tools'}{os.pathsep}{os.environ['PATH']}"
    return {"PATH": path, "ASKED": str(workplace / "asked"), "SLURM_JOB_ID": "4711"}


def test_slurm_requeues_what_has_not_begun(slurm: dict[str, str]) -> None:
    ended = run(fault=(faults.before_call, "choose", signal.SIGUSR1), environment=slurm)
    assert ended.status == 138 and "SLURM job 4711 is requeued" in ended.out, ended
    assert Path("asked").read_text() == "requeue 4711\n" and not Path("runs").exists()


def test_a_job_may_make_several_runs(workplace: Path) -> None:
    for steps in (2, 3):
        assert run(f"trainer.max_steps={steps}", environment={"SLURM_JOB_ID": "6"}).status == 0
    assert len(list(Path("runs").iterdir())) == 2
    again = run("trainer.max_steps=3", environment={"SLURM_JOB_ID": "6", "SLURM_RESTART_COUNT": "1"})
    assert again.status == 0 and "is finished: step 3 of 3" in again.out, again


def test_slurm_requeues_and_the_same_command_goes_on(whole: Any, slurm: dict[str, str]) -> None:
    first = run(*MUON, fault=(faults.signal_at, 12, signal.SIGUSR1), environment=slurm)
    assert first.status == 138 and "SLURM job 4711 is requeued, to continue this run" in first.out, first
    assert Path("asked").read_text() == "requeue 4711\n"
    second = run(*MUON, environment=slurm | {"SLURM_RESTART_COUNT": "1"})
    (cut,) = Path("runs").iterdir()
    assert second.status == 0 and f"resume: continuing {cut}" in second.out and cut.name.startswith("4711_"), second
    ours, theirs = (torch.load(each / "checkpoints/last.ckpt")["state_dict"] for each in (whole(MUON), cut))
    assert_same(ours, theirs, "state_dict")
    assert events(whole(MUON)) == events(cut)
    # A job of an array is named by both numbers; a scontrol that fails is heard.
    Path("tools/scontrol").write_text('#!/bin/sh\necho "$@" >> "$ASKED"\necho "Access denied" >&2\nexit 1\n')
    array = slurm | {"SLURM_JOB_ID": "4713", "SLURM_ARRAY_JOB_ID": "4712", "SLURM_ARRAY_TASK_ID": "3"}
    third = run(*MUON, fault=(faults.signal_at, 12, signal.SIGUSR1), environment=array)
    assert third.status == 138 and "SLURM job 4712_3 could not be requeued: Access denied" in third.err, third
    assert Path("asked").read_text() == "requeue 4711\nrequeue 4712_3\n"


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_a_signal_to_one_rank_stops_both_cleanly(strategy: str, workplace: Path) -> None:
    fault = {1: (faults.signal_at, 12, signal.SIGTERM)}
    ended = run_ranks(2, "name=cut", *TWO, f"trainer={strategy}", fault=fault)
    assert (ended.status, ended.err) == (143, ""), ended
    assert "stopped by SIGTERM after step 13" in ended.out
    assert torch.load("runs/cut/checkpoints/last.ckpt")["global_step"] == 13


def test_ctrl_c_in_the_terminal_reaches_both(workplace: Path) -> None:
    process = Process("name=cut", *TWO, "trainer.max_steps=100000")
    wait_for(Path("runs/cut/checkpoints/last.ckpt").exists, process)
    process.signal(signal.SIGINT, group=True)
    ended = process.ends()
    assert (ended.status, ended.err) == (130, ""), ended
    assert "stopped by SIGINT after step" in ended.out


@pytest.mark.parametrize(("fault", "rank", "strategy"), [
    (faults.raise_at, 0, "ddp"), (faults.at_step, 0, "ddp"), (faults.hang_at, 0, "ddp"),
    (faults.raise_at, 1, "ddp"), (faults.at_step, 1, "ddp"), (faults.hang_at, 1, "fsdp"),
])  # fmt: skip
def test_a_rank_that_fails_ends_the_job(fault: Any, rank: int, strategy: str, workplace: Path) -> None:
    given = ["name=cut", *TWO, f"trainer={strategy}", "trainer.timeout=5"]
    ended = run_ranks(2, *given, fault={rank: (fault, 12)})
    assert ended.status != 0
    if fault is faults.raise_at:
        assert "ZeroDivisionError: division by zero" in ended.err
    elif rank == 1:
        told = "another process of this run has died or does not answer; the newest checkpoint is"
        assert told in ended.err or ended.status == -signal.SIGKILL, ended
    assert torch.load("runs/cut/checkpoints/last.ckpt")["global_step"] == 10
