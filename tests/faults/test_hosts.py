"""Two hosts: two network namespaces of this machine with a cable between them, and torchrun in each."""

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import ROOT, last, missing
from tests.faults.processes import JOB, LONG, SCRIPT, Process, children_of, wait_for
from tests.faults.test_resume import assert_as_if_never_touched

LONGEST = 180  # seconds, on a machine that is busy with other tests, too
PAGE = (ROOT / "docs/cluster.md").read_text("utf-8").replace("\\\n", "")  # a command over two lines is one
STATIC = [line for line in PAGE.splitlines() if line.startswith("torchrun ") and "--node-rank" in line]
ELASTIC = [line for line in PAGE.splitlines() if line.startswith("torchrun ") and "--max-restarts" in line]


def ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True)


class Host:
    def __init__(self, letter: str, number: int) -> None:
        self.name, self.address, self.cable = f"chargpt-{os.getpid()}-{letter}", f"10.117.0.{number}", f"cable-{letter}"
        self.jobs: list[Process] = []
        ip("netns", "add", self.name)

    def processes(self) -> list[int]:
        listed = subprocess.run(["ip", "netns", "pids", self.name], capture_output=True, text=True, check=True)
        return [int(pid) for pid in listed.stdout.split()]

    def lose_power(self) -> None:
        for pid in self.processes():
            os.kill(pid, signal.SIGKILL)
        for job in self.jobs:
            job.wait(LONGEST)


@pytest.fixture
def hosts(workplace: Path) -> Iterator[tuple[Host, Host]]:
    if shutil.which("ip") is None:
        missing("no ip (package iproute2)")
    made: list[Host] = []
    try:
        try:
            made += [Host("a", 1)]
            made += [Host("b", 2)]
        except subprocess.CalledProcessError as error:
            missing(f"network namespaces: {error.stderr.strip()}")
        one, other = made
        ip("link", "add", one.cable, "netns", one.name, "type", "veth", "peer", other.cable, "netns", other.name)
        for host in made:
            ip("-n", host.name, "address", "add", f"{host.address}/24", "dev", host.cable)
            for device in ("lo", host.cable):
                ip("-n", host.name, "link", "set", device, "up")
        yield one, other
    finally:
        for host in made:
            host.lose_power()
            ip("netns", "delete", host.name)


def job(host: Host, command: str, *arguments: str) -> Process:
    """Start one host's part of a run: a command of the documentation, with the steps cut and one process a host."""
    number = int(host.address[-1]) - 1
    given = command.replace("node1", "10.117.0.1").replace("--nproc-per-node=4", "--nproc-per-node=1").split()[1:]
    given = ["--log-dir=torchrun", *given]  # otherwise torchrun leaves a folder in the temporary directory
    if "c10d" in command:  # these hosts have addresses, but no names to know themselves by
        given = [f"--rdzv-conf=is_host={1 - number}", f"--local-addr={host.address}", *given]
    given[given.index("train.py")] = SCRIPT
    exports = (line.removeprefix("export ") for line in PAGE.splitlines() if line.startswith("export "))
    variables = {"GLOO_SOCKET_IFNAME": host.cable, **dict(line.split("=") for line in exports)}
    started = Process(*given, *JOB, *LONG, *arguments, environment=variables, network=host.name, long=True)
    host.jobs.append(started)
    return started


def test_a_host_is_lost_and_the_same_commands_go_on(hosts: tuple[Host, Host], whole_of_two: Path) -> None:
    one, other = hosts
    running = [job(host, command, "trainer.timeout=5") for host, command in zip(hosts, STATIC, strict=True)]
    wait_for(Path("runs/many/checkpoints/previous.ckpt").exists, running[0], LONGEST)
    other.lose_power()
    ended = running[0].wait(LONGEST)
    assert ended.status != 0
    told = "another process of this run has died or does not answer; the newest checkpoint is runs/many/"
    assert told in ended.out + ended.err, ended
    assert not one.processes() and not other.processes()
    assert last("many")["global_step"] < 160, "it was lost in the middle"
    running = [job(host, command) for host, command in zip(hosts, STATIC, strict=True)]
    first, second = (process.wait(LONGEST) for process in running)
    assert first.status == second.status == 0, (first, second)
    assert "resume: from runs/many/checkpoints/last.ckpt" in first.out and "resume:" not in second.out
    assert_as_if_never_touched(whole_of_two, Path("runs/many"))


def test_torchrun_starts_the_processes_again(hosts: tuple[Host, Host]) -> None:
    one, other = (job(host, *ELASTIC) for host in hosts)
    wait_for(Path("runs/many/checkpoints/previous.ckpt").exists, one, LONGEST)
    (worker,) = children_of(other.pid)
    os.kill(worker, signal.SIGKILL)
    ended = [process.wait(LONGEST) for process in (one, other)]
    assert [each.status for each in ended] == [0, 0], ended
    assert "resume: from runs/many/checkpoints/last.ckpt" in ended[0].out and "step 160/160" in ended[0].out


def test_hosts_that_see_different_files_are_told(hosts: tuple[Host, Host]) -> None:
    here = Path.cwd()
    (here / "b").mkdir()
    (here / "b/book.txt").write_text((here / "book.txt").read_text()[::-1])
    one = job(hosts[0], STATIC[0])
    os.chdir("b")
    other = job(hosts[1], STATIC[1])
    os.chdir(here)
    first, second = one.wait(LONGEST), other.wait(LONGEST)
    assert first.status != 0 and second.status != 0
    said = first.out + first.err
    assert "train.py: text: rank 1 on " in said and "all machines must see the same text and the same runs/" in said
    assert not list(Path("runs/many/checkpoints").glob("*")) and not list((here / "b").glob("runs/*/checkpoints/*"))
