"""Every program that opens a model, each time in a process of its own, under limits of memory and time.

What takes seconds, loading torch, Lightning and what is ours, is done once: a nursery has loaded them and forks for
each program that is asked for. `cold` starts the real command instead.
"""

import importlib
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

import base.progress
from tests.conftest import ROOT
from tests.faults.processes import end_with, fork

MB = 2**20
TEXT, LINE = "text.txt", "line.txt"  # which the programs read, of the letters in tests/model_files.py
PROGRAMS = {
    "sample": "sample.py {} --num-chars 1 --seed 0",
    "score": "score.py {} " + LINE,
    "web": "export.py {} --to web out.html",
    "torch": "export.py {} --to torch out.pt2",
    "train": "train.py init_from={} data.path=" + TEXT + " name=new trainer.max_steps=1 trainer.accelerator=cpu "
    "trainer.devices=1 data.batch=2 compile=false watch.pictures=false logger=none",
}
MADE = ("out.html", "out.pt2", "runs")  # what they write when all is well
# A model file may cost so much more than a tiny honest model does: its size this many times, and so many bytes.
TIMES, MORE, SECONDS = 4, 200 * MB, 5.0
MEMORY, CPU, WALL = 4096 * MB, 60, 150  # what nothing may pass: bytes of addresses, seconds of work, seconds at all


class Cost(NamedTuple):
    status: int  # below 0: the signal that killed it, such as SIGXCPU for a hang
    out: str
    err: str
    memory: int  # largest resident set, bytes
    seconds: float  # of work, its own and the system's for it


class Nursery:
    """A process that has loaded everything and forks for each program; `folder` holds what they print."""

    def __init__(self, folder: Path) -> None:
        self.ours, theirs = Pipe()
        self.process = fork(_serve, theirs, folder)

    def __call__(self, program: str, model: str | Path) -> Cost:
        return self.call(_program, program, str(model))

    def call(self, work: Callable[..., object], *given: Any) -> Cost:
        self.ours.send((os.getcwd(), work, given))
        assert self.ours.poll(2 * WALL), "the nursery does not answer"
        return self.ours.recv()

    def close(self) -> None:
        self.ours.close()
        self.process.join(10)
        self.process.kill()


def _serve(asked: Connection, folder: Path) -> None:
    for name in (
        "sample score export train gpt.checkpoint gpt.inference.decoder gpt.inference.generate gpt.evaluation "
        "gpt.analysis reports.scoring gpt.export.to_web_page gpt.export.to_torch_program safetensors.numpy "
        "sweeps.submit hydra tests.model_files"
    ).split():
        importlib.import_module(name)
    with suppress(EOFError):
        while True:
            place, work, given = asked.recv()
            pid = os.fork()
            if pid == 0:
                end_with(partial(_work, place, work, given, folder))
            _, status, used = os.wait4(pid, 0)
            texts = [(folder / name).read_text("utf-8", "replace") for name in ("out", "err")]
            seconds = used.ru_utime + used.ru_stime
            asked.send(Cost(os.waitstatus_to_exitcode(status), *texts, used.ru_maxrss * 1024, seconds))


def _work(place: str, work: Callable[..., object], given: tuple[Any, ...], folder: Path) -> object:
    os.chdir(place)
    base.progress.LINE_SECONDS = 1e6  # how busy the machine is does not show in what a program says
    os.environ["XDG_CACHE_HOME"] = str(Path(place, "cache"))
    for number, name in enumerate(("out", "err"), start=1):
        os.dup2(os.open(folder / name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
    sys.stdout, sys.stderr = (open(number, "w", encoding="utf-8", buffering=1) for number in (1, 2))
    used = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, used + MEMORY))
    resource.setrlimit(resource.RLIMIT_CPU, (CPU, CPU))
    signal.alarm(WALL)
    return work(*given)


def _program(program: str, model: str) -> object:
    script, *given = [part.format(model) for part in PROGRAMS[program].split()]
    sys.argv = [str(ROOT / script), *given]
    module = importlib.import_module(Path(script).stem)
    if script != "train.py":
        return module.cli(given)
    module.STARTED = time.perf_counter()
    return module.cli()


# A small process that starts a command and measures it: what a process takes is counted from the one it is forked from.
LAUNCHER = """
import json, os, resource, subprocess, sys
cpu, wall, *command = sys.argv[1:]
resource.setrlimit(resource.RLIMIT_CPU, (int(cpu), int(cpu)))
process = subprocess.Popen(["timeout", "--signal=KILL", wall, *command], stdin=subprocess.DEVNULL)
_, status, used = os.wait4(process.pid, 0)
figures = os.waitstatus_to_exitcode(status), used.ru_maxrss * 1024, used.ru_utime + used.ru_stime
print(json.dumps(figures), file=sys.stderr)
"""


def cold(program: str, model: str | Path) -> Cost:
    script, *given = [part.format(model) for part in PROGRAMS[program].split()]
    command = [sys.executable, "-c", LAUNCHER, str(CPU), str(WALL), sys.executable, ROOT / script, *given]
    done = subprocess.run(command, capture_output=True, text=True)
    *lines, last = done.stderr.splitlines(keepends=True)
    status, memory, seconds = json.loads(last)
    said = [line for line in lines if not line.endswith((" so far\n", " left\n"))]  # progress, on a busy machine
    return Cost(status, done.stdout, "".join(said), memory, seconds)


def is_bounded(ended: Cost, honest: Cost, size: int) -> bool:
    """Whether a model file of so many bytes has cost no more than it may."""
    return ended.memory <= honest.memory + TIMES * size + MORE and ended.seconds <= honest.seconds + SECONDS


def is_refusal(ended: Cost, name: str) -> bool:
    line = ended.err.removesuffix("\n")
    return ended.status == 2 and ended.out == "" and name in line and line.isprintable() and len(line) < 400


def has_diverged(ended: Cost) -> bool:
    return ended.status == 1 and "training has diverged" in ended.err and "Traceback" not in ended.err


def write_texts() -> None:
    Path(TEXT).write_text("abcdefghijk" * 200)
    Path(LINE).write_text("abcdefghijk" * 2)


def clear() -> None:
    for name in MADE:
        if Path(name).is_dir():
            shutil.rmtree(name)
        Path(name).unlink(missing_ok=True)
