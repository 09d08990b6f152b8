"""Runs `train.py` in processes of their own, which can be told where to be killed.

What takes seconds, loading torch, Lightning and what is ours, is done once: a server process has loaded them and forks
for each run. Such a run is a process like any other, with signals, files and an end of its own.
"""

import multiprocessing
import multiprocessing.process
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import chdir, suppress
from pathlib import Path
from typing import Any

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import gpt.fit.pictures
import sample as sample_script
import train as train_script
from tests.conftest import ROOT, TINY, Ended

Fault = tuple[Any, ...]  # a function of tests/faults/faults.py and its arguments
LIMIT = 150.0  # seconds for a run of two, of which a quiet machine takes a tenth
MUON = "model.dropout=0.1 data.micro_batch=2 optim.clip=0.5 trainer.precision=bf16-mixed".split()
TWO = ["trainer=ddp", "trainer.devices=2", *MUON]
LONG = ["trainer.max_steps=160", "trainer.val_check_interval=20"]

_server = multiprocessing.get_context("forkserver")
_server.set_forkserver_preload(
    "torch torch.utils.tensorboard lightning lightning.pytorch.callbacks lightning.pytorch.loggers hydra.main "
    "hydra._internal.config_loader_impl filelock pooch tqdm tests.faults.faults tests.faults.processes".split()
    + ["s3fs.core"]  # which Lightning looks for when it logs
)


def fork(target: Callable[..., object], *arguments: Any) -> multiprocessing.process.BaseProcess:
    """Start a process of the server's that calls `target`."""
    with chdir(ROOT):  # from where the server, at its first start, loads what is ours
        process = _server.Process(target=target, args=arguments)
        process.start()
    return process


class Process:
    """A run of `train.py` (or `sample.py`) in the current directory, on book.txt with a tiny model.

    Args:
        arguments: overrides, on top of the tiny defaults.
        fault: where it is to be killed, or what is to go wrong: a function and its arguments.
        script: `train` or `sample`.
        defaults: whether to give the tiny defaults.
        environment: variables on top of this process' own.
    """

    def __init__(
        self,
        *arguments: str,
        fault: Fault | None = None,
        script: str = "train",
        defaults: bool = True,
        environment: dict[str, str] | None = None,
    ) -> None:
        given = [*TINY, "data.path=book.txt"] if defaults and script == "train" else []
        keys = {argument.partition("=")[0] for argument in arguments}
        given = [argument for argument in given if argument.partition("=")[0] not in keys]
        self.files = [Path(tempfile.mkstemp(suffix=f".{name}")[1]) for name in ("out", "err")]
        variables = {**os.environ, **(environment or {})}
        parts = (os.getcwd(), variables, script, [*given, *arguments], fault, [str(file) for file in self.files])
        self.process = fork(_run, *parts)

    def signal(self, number: int) -> None:
        """Send a signal."""
        assert self.process.pid is not None
        with suppress(ProcessLookupError):  # it has ended
            os.kill(self.process.pid, number)

    def wait(self, timeout: float = LIMIT) -> Ended:
        """Wait for the end; a process that was killed by a signal has its negative number as status."""
        self.process.join(timeout)
        if self.process.exitcode is None:
            self.process.kill()
            self.process.join()
            raise AssertionError(f"did not end within {timeout} s: {self.files[1].read_text()}")
        texts = [file.read_text("utf-8", "replace") for file in self.files]
        for file in self.files:
            file.unlink()
        return Ended(self.process.exitcode, *texts)


def run(*arguments: str, **options: Any) -> Ended:
    """Run `train.py` to its end."""
    return Process(*arguments, **options).wait()


def run_ranks(count: int, *arguments: str, **options: Any) -> Ended:
    """Run `train.py` as so many processes on this machine, of which only the first has anything to say.

    Args:
        count: how many.
        *arguments: overrides.
        **options: of `Process`, the same for all; `fault` may be given for each rank apart, in a dict.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1])}
    fault = options.pop("fault", None)
    processes = [
        Process(
            *arguments,
            f"trainer.devices={count}",
            fault=fault.get(rank) if isinstance(fault, dict) else fault,
            environment=meeting | {"LOCAL_RANK": str(rank)},
            **options,
        )
        for rank in range(count)
    ]
    try:
        first, *others = [process.wait() for process in processes]
    finally:
        for process in processes:
            process.process.kill()
    for other in others:
        assert (other.status == 0) == (first.status == 0) and (other.out, other.err) == ("", ""), (first, other)
    return first


def _run(
    directory: str,
    variables: dict[str, str],
    script: str,
    arguments: list[str],
    fault: Fault | None,
    files: list[str],
) -> None:
    os.chdir(directory)
    os.environ.clear()
    os.environ.update(variables)
    tempfile.tempdir = None  # as in a new process: found anew
    os.setpgrp()
    for number, file in enumerate(files, start=1):
        os.dup2(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND), number)
    sys.stdout, sys.stderr = (open(number, "w", encoding="utf-8", buffering=1) for number in (1, 2))
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.argv = [str(ROOT / f"{script}.py"), *arguments]
    train_script.STARTED = time.perf_counter()
    train_script.SAMPLE_LENGTH = gpt.fit.pictures.SAMPLE_LENGTH = 20  # the longer part of a run this small
    if fault is not None:
        fault[0](*fault[1:])
    status = train_script.cli() if script == "train" else sample_script.cli(arguments)
    if hasattr(os, "getuid") and os.getuid() == 0:
        os.seteuid(0)  # the server's own files are root's, whoever the run was
    sys.exit(status)


def start(*arguments: str, **options: Any) -> subprocess.Popen:
    """Start `python train.py` itself, in a process group of its own, on book.txt with a tiny model."""
    keys = {argument.partition("=")[0] for argument in arguments}
    given = [given for given in [*TINY, "data.path=book.txt"] if given.partition("=")[0] not in keys]
    return subprocess.Popen(
        [sys.executable, ROOT / "train.py", *given, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        **options,
    )


def wait_for(condition: Callable[[], bool], process: Any = None, timeout: float = LIMIT) -> None:
    """Wait until something holds, or fail when the process has ended or time is up."""
    until = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < until, "did not happen in time"
        if process is not None and process.poll() is not None:
            raise AssertionError(f"ended before that: {process.communicate()}")
        time.sleep(0.005)


def events(directory: Path) -> dict[str, list[tuple[int, Any]]]:
    """All that TensorBoard shows of a run but its speed and memory: the points (step, value) by tag."""
    accumulator = EventAccumulator(str(directory), size_guidance={"tensors": 0, "scalars": 0})
    accumulator.Reload()
    tags = accumulator.Tags()
    points: dict[str, list[tuple[int, Any]]] = {}
    for tag in tags["scalars"]:
        if not tag.startswith(("perf/", "time/")):
            points[tag] = [(point.step, point.value) for point in accumulator.Scalars(tag)]
    for tag in tags["tensors"]:
        if not tag.startswith("_hparams_"):
            points[tag] = [(p.step, p.tensor_proto.SerializeToString()) for p in accumulator.Tensors(tag)]
    return points
