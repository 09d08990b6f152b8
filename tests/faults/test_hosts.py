"""Two hosts: torchrun twice on the loopback interface, with a process each."""

import os
import re
import signal
import socket
from contextlib import chdir
from pathlib import Path

from tests.conftest import ROOT, last
from tests.faults.processes import JOB, LONG, SCRIPT, Process, children_of, wait_for
from tests.faults.test_resume import assert_as_if_never_touched

LONGEST = 180  # seconds, on a machine that is busy with other tests, too
# a command over two lines is one
PAGE = (ROOT / "docs/cluster.md").read_text("utf-8").replace("\\\n", "")
COMMANDS = [line for line in PAGE.splitlines() if line.startswith("torchrun --nnodes")]
(FIRST_HOST,) = [command for command in COMMANDS if "--node-rank=0" in command]
STATIC = [FIRST_HOST, FIRST_HOST.replace("--node-rank=0", "--node-rank=1")]
(EVERY_HOST,) = [command for command in COMMANDS if "--max-restarts" in command]
ELASTIC = [EVERY_HOST, EVERY_HOST]


def start_both(commands, *arguments, folders=(".", ".")):
    """Start a run by the commands of the documentation, each in its folder, with the steps cut."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    exports = re.findall(r"^export (\w+)=(\S+)$", PAGE, re.MULTILINE)
    variables = {"GLOO_SOCKET_IFNAME": "lo", **dict(exports)}
    jobs = []
    for number, (command, folder) in enumerate(zip(commands, folders, strict=True)):
        host = "127.0.0.1"
        # otherwise torchrun leaves a folder in the temporary directory
        given = ["--log-dir=torchrun"]
        if "c10d" in command:
            given += [f"--rdzv-conf=is_host={1 - number}", f"--local-addr={host}"]
            host += f":{port}"
        else:
            given += [f"--master-port={port}"]
        here = command.replace("--nproc-per-node=4", "--nproc-per-node=1").replace("node1", host)
        given += here.replace(" train.py ", f" {SCRIPT} ").split()[1:]
        given += [*JOB, *LONG, *arguments]
        with chdir(folder):
            jobs.append(Process(*given, environment=variables, torchrun=True, long=True))
    return jobs


def test_a_host_is_lost_and_the_same_commands_go_on(whole_of_two, workplace):
    one, other = start_both(STATIC, "trainer.timeout=5")
    wait_for(Path("runs/many/checkpoints/previous.ckpt").exists, one, LONGEST)
    for pid in (other.pid, *children_of(other.pid)):
        os.kill(pid, signal.SIGKILL)
    ended = one.wait(LONGEST)
    assert ended.status != 0
    told = "another process of this run has died or does not answer; the newest checkpoint is runs/many/"
    assert told in ended.out + ended.err, ended
    assert last("many")["global_step"] < 120, "it was lost in the middle"
    first, second = (process.wait(LONGEST) for process in start_both(STATIC))
    assert first.status == second.status == 0, (first, second)
    assert (
        "resume: from runs/many/checkpoints/last.ckpt" in first.out and "resume:" not in second.out
    )
    assert_as_if_never_touched(whole_of_two, Path("runs/many"))


def test_torchrun_starts_the_processes_again(workplace):
    one, other = start_both(ELASTIC)
    wait_for(Path("runs/many/checkpoints/previous.ckpt").exists, one, LONGEST)
    (worker,) = children_of(other.pid)
    os.kill(worker, signal.SIGKILL)
    ended = [process.wait(LONGEST) for process in (one, other)]
    assert [each.status for each in ended] == [0, 0], ended
    assert (
        "resume: from runs/many/checkpoints/last.ckpt" in ended[0].out
        and "step 120/120" in ended[0].out
    )


def test_hosts_that_see_different_files_are_told(workplace):
    Path("b").mkdir()
    Path("b/book.txt").write_text(Path("book.txt").read_text()[::-1])
    first, second = (process.wait(LONGEST) for process in start_both(STATIC, folders=(".", "b")))
    assert first.status != 0 and second.status != 0
    said = first.out + first.err
    assert (
        "train.py: text: rank 1 on " in said
        and "all machines must see the same text and the same runs/" in said
    )
    assert not list(Path().glob("**/checkpoints/*"))
