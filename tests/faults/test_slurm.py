"""SLURM itself: its own daemons, one controller and two nodes, all on the loopback address of this machine."""

import os
import platform
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path
from unittest import mock

import pytest
import torch

from base import ranks
from tests.conftest import ROOT, missing, refusal
from tests.faults.processes import JOB, LONG, wait_for
from tests.faults.test_resume import assert_as_if_never_touched

CONFIG = """
ClusterName=here
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
AuthType=auth/none
CredType=cred/none
AuthInfo=cred_expire=5
SlurmUser=root
SlurmdUser=root
StateSaveLocation={place}/state
SlurmdSpoolDir={place}/%n
SlurmctldPidFile={place}/slurmctld.pid
SlurmdPidFile={place}/%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
ReturnToService=2
KillWait=5
NodeName=one NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[1]} CPUs={cores}
NodeName=two NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[2]} CPUs={cores}
PartitionName=all Nodes=one,two Default=YES State=UP
"""


def ask(*command):
    return subprocess.run(
        command, check=True, capture_output=True, text=True, timeout=60
    ).stdout.strip()


@pytest.fixture(scope="module")
def slurm(tmp_path_factory):
    if shutil.which("slurmd") is None:
        missing("no SLURM (package slurm-wlm)")
    if os.getuid() != 0:
        missing("root, for the daemons of SLURM")
    place = tmp_path_factory.mktemp("slurm")
    (place / "state").mkdir()
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(3)]
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    text = CONFIG.format(host=platform.node(), ports=ports, place=place, cores=os.cpu_count())
    (place / "slurm.conf").write_text(text)
    (place / "cgroup.conf").write_text("CgroupAutomount=no\n")
    daemons = []
    with pytest.MonkeyPatch.context() as patch, open(place / "daemons.log", "w") as log:
        patch.setenv("SLURM_CONF", str(place / "slurm.conf"))
        patch.setenv("MASTER_ADDR", "127.0.0.1")  # no name server knows the nodes one and two
        try:
            for command in (
                ["slurmctld", "-D", "-i"],
                ["slurmd", "-D", "-N", "one"],
                ["slurmd", "-D", "-N", "two"],
            ):
                daemons.append(
                    subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
                )
            wait_for(ready)
            yield
        finally:
            subprocess.run(["scancel", "--full", "--user=root"], capture_output=True)
            subprocess.run(["scancel", "--signal=KILL", "--user=root"], capture_output=True)
            for daemon in reversed(daemons):
                daemon.terminate()
                daemon.wait(20)


def ready():
    time.sleep(0.2)
    answer = subprocess.run(["sinfo", "-h", "-o", "%D %t"], capture_output=True, text=True)
    return answer.stdout.split() == ["2", "idle"]


@pytest.fixture
def project(slurm, workplace):
    for name in ("train.py", "conf"):
        Path(name).symlink_to(ROOT / name)
    Path(".venv/bin").mkdir(parents=True)
    Path(".venv/bin/python").write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    Path(".venv/bin/python").chmod(0o755)
    return workplace


PAGE = (ROOT / "docs/cluster.md").read_text("utf-8")
COMMANDS = {
    line.split()[1]: line.split()[1:] for line in PAGE.splitlines() if line.startswith("sbatch ")
}
SHORT = ["trainer.max_steps=2", "trainer.val_check_interval=2"]
SMALL = ["--ntasks-per-node=1", "--gpus-per-node=0", "--cpus-per-task=1", "--output=job.out"]


def submit(name, *arguments):
    """Submit a command of the documentation, with more options and overrides, and return the job's number."""
    given = [each for each in COMMANDS[f"--job-name={name}"] if each != "docs/train.sbatch"]
    words = [*given, *SMALL, *arguments]
    options = [each for each in words if each.startswith("--")]
    overrides = [each for each in words if not each.startswith("--")]
    return ask("sbatch", "--parsable", *options, str(ROOT / "docs/train.sbatch"), *overrides, *JOB)


def wait_for_end(number):
    until = time.monotonic() + 300
    while number in ask("squeue", "-h", "-o", "%A %F").split():
        assert time.monotonic() < until, Path("job.out").read_text() + ask(
            "scontrol", "show", "job", number
        )
        time.sleep(0.5)


def test_a_job_on_two_nodes_is_requeued_and_goes_on(project, whole_of_two):
    number = submit("many", "--nodes=2", *LONG)
    wait_for(Path("runs/many/checkpoints/previous.ckpt").exists, timeout=180)
    ask("scancel", "--signal=USR1", number)
    wait_for_end(number)
    said = Path("job.out").read_text()
    assert f"SLURM job {number} is requeued, to continue this run" in said, said
    assert "resume: continuing runs/many" in said and said.count("step 120/120") == 1, said
    assert_as_if_never_touched(whole_of_two, Path("runs/many"))


def test_the_other_commands_of_the_page(project):
    assert len(COMMANDS) == 3
    jobs = [
        submit("large", "--nodes=1", "--ntasks-per-node=2", *SHORT),
        submit("seeds", "--array=1", *SHORT),
    ]
    for number in jobs:
        wait_for_end(number)
    done = {run.name: (run / "checkpoints/last.ckpt").exists() for run in Path("runs").iterdir()}
    assert done == {"large": True, "seeds-1": True}, Path("job.out").read_text()
    assert "seed: 1\n" in Path("runs/seeds-1/config.yaml").read_text()
    assert torch.load("runs/large/checkpoints/last.ckpt")["conditions"]["world_size"] == 2


STEP = {  # of srun on two machines
    "STEP_ID": "0", "JOB_ID": "7", "STEP_NUM_TASKS": "4", "STEP_NUM_NODES": "2",
    "PROCID": "3", "LOCALID": "1", "NODEID": "1", "STEP_NODELIST": "node[5-7,9],other1",
}  # fmt: skip


@mock.patch.dict(os.environ, {f"SLURM_{name}": value for name, value in STEP.items()})
def test_a_task_of_several_has_the_variables_of_torchrun_and_one_alone_has_not():
    os.environ.pop("MASTER_ADDR", None)  # of the fixture `slurm`
    os.environ["SLURM_STEP_NUM_TASKS"] = "1"
    ranks.adopt_srun()
    assert (ranks.launched(), ranks.rank(), os.environ.get("MASTER_ADDR")) == (None, 0, None)
    os.environ |= {"SLURM_STEP_NUM_TASKS": "4", "SLURM_STEP_TASKS_PER_NODE": "3,1"}
    said = refusal(ranks.JobError, ranks.adopt_srun)
    assert "(3,1): give every machine the same number of tasks" in said
    os.environ["SLURM_STEP_TASKS_PER_NODE"] = "2(x2)"
    ranks.adopt_srun()
    assert (ranks.launched(), ranks.rank(), os.environ["MASTER_ADDR"]) == ((2, 2), 3, "node5")
