"""Every program that opens a model, each time in a process of its own, under limits of memory and time."""

import importlib
import json
import os
import resource
import signal
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import NamedTuple

import base.progress
from tests.conftest import ROOT
from tests.faults.processes import begin, end_with, fork

MB = 2**20
TEXT, LINE = "text.txt", "line.txt"  # which the programs read, of the letters in tests/model_files.py
PROGRAMS = {
    "sample": "sample.py {} --num-chars 1 --seed 0",
    "score": "score.py {} " + LINE,
    "web": "export.py {} --to web out.html",
    "card": "export.py {} --to card out.md",
    "train": "train.py init_from={} data.path=" + TEXT + " name=new trainer.max_steps=1 trainer.accelerator=cpu "
    "trainer.devices=1 data.batch=2 compile=false watch.pictures=false logger=none",
}
# A model file may cost so much more than a tiny honest model does: its size this many times, and so many bytes.
TIMES, MORE, SECONDS = 4, 200 * MB, 5.0
MEMORY, CPU, WALL = 4096 * MB, 60, 150  # what nothing may pass: bytes of addresses, seconds of work, seconds at all


class Cost(NamedTuple):
    status: int  # below 0: the signal that killed it, such as SIGXCPU for a hang
    out: str
    err: str
    memory: int  # largest resident set, bytes
    seconds: float  # of work, its own and the system's for it


def call(program: str, model: str | Path) -> Cost:
    """Run one of `PROGRAMS` on a model file to its end."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        process = fork(_work, os.getcwd(), program, str(model), folder)
        process.join(2 * WALL)
        assert process.exitcode is not None, (program, model)
        out, err = ((folder / name).read_text("utf-8", "replace") for name in ("out", "err"))
        used = folder / "used"
        return Cost(process.exitcode, out, err, *(json.loads(used.read_text()) if used.exists() else (0, 0.0)))


def _work(place: str, program: str, model: str, folder: Path) -> None:
    os.chdir(place)
    base.progress.LINE_SECONDS = 1e6  # how busy the machine is does not show in what a program says
    for number, name in enumerate(("out", "err"), start=1):
        os.dup2(os.open(folder / name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
    sys.stdin = open(os.devnull)
    begin(os.environ | {"XDG_CACHE_HOME": str(Path(place, "cache"))}, [])
    addresses = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    resource.setrlimit(resource.RLIMIT_AS, (addresses + MEMORY, addresses + MEMORY))
    resource.setrlimit(resource.RLIMIT_CPU, (CPU, CPU))
    signal.alarm(WALL)
    end_with(partial(_program, program, model, folder))


def _program(program: str, model: str, folder: Path) -> object:
    script, *given = [part.format(model) for part in PROGRAMS[program].split()]
    sys.argv = [str(ROOT / script), *given]
    module = importlib.import_module(Path(script).stem)
    try:
        return module.cli() if script == "train.py" else module.cli(given)
    finally:
        used = resource.getrusage(resource.RUSAGE_SELF)
        (folder / "used").write_text(json.dumps([used.ru_maxrss * 1024, used.ru_utime + used.ru_stime]))


def is_bounded(ended: Cost, honest: Cost, size: int) -> bool:
    """Whether a model file of so many bytes has cost no more than it may."""
    return ended.memory <= honest.memory + TIMES * size + MORE and ended.seconds <= honest.seconds + SECONDS


def is_refusal(ended: Cost, name: str) -> bool:
    line = ended.err.removesuffix("\n")
    return ended.status == 2 and ended.out == "" and name in line and line.isprintable() and len(line) < 400


def write_texts() -> None:
    Path(TEXT).write_text("abcdefghijk" * 200)
    Path(LINE).write_text("abcdefghijk" * 2)
