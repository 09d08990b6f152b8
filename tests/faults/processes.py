"""Runs commands in processes of their own, which can be told where to be killed.

What takes seconds, loading torch, Lightning and what is ours, is done once: a server process has
loaded them and forks for each run. Such a run is a process like any other, with signals, files and
an end of its own. What it starts with the command of `train.py`, trials and ranks, is forked from
it; `start` and the tests of SLURM start real commands.
"""

import faulthandler
import gc
import importlib
import multiprocessing
import multiprocessing.process
import os
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from contextlib import chdir, suppress
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch.distributed.run
from tensorboard.summary.writer import event_file_writer
from torch.distributed.elastic.multiprocessing.subprocess_handler import subprocess_handler

import train as train_script
from base import processes
from base.jobs import run_lock
from tests.conftest import ROOT, TINY, Ended, board, from_here, less_progress, tiny
from training import results
from training.callbacks import watch

SCRIPT = str(ROOT / "train.py")
LIMIT = 150.0  # seconds for a run of two, of which a quiet machine takes a tenth
MUON = "model.dropout=0.1 data.micro_batch=2 optim.clip=0.5 trainer.precision=bf16-mixed".split()
TWO = ["trainer.devices=2", *MUON]
LONG = ["trainer.max_steps=120", "trainer.val_check_interval=20"]
# A tiny run of two on book.txt whose number of processes, steps and validations are said
# elsewhere.
SAID_ELSEWHERE = ("trainer.max_steps", "trainer.devices", "trainer.val_check")
JOB = [each for each in TINY if not each.startswith(SAID_ELSEWHERE)]
JOB += ["data.path=book.txt", *MUON]

_server = multiprocessing.get_context("forkserver")
_server.set_forkserver_preload(
    "torch torch.utils.tensorboard lightning lightning.pytorch.callbacks lightning.pytorch.loggers hydra "
    "hydra._internal.config_loader_impl filelock tqdm torch.distributed.run tests.faults.faults tests.faults.processes "
    "sample score export gpt.export.to_web".split()
    + ["s3fs.core"]  # which Lightning looks for when it logs
)


def fork(target, *arguments):
    """Start a process of the server's that calls `target`."""
    with chdir(ROOT):  # from where the server, at its first start, loads what is ours
        process = _server.Process(target=target, args=arguments)
        process.start()
    return process


class Process:
    """A command in the current directory, `train.py` on book.txt with a tiny model, in a process group of its own."""

    def __init__(
        self,
        *arguments,
        fault=(),  # called in the process before it begins
        defaults=True,  # those of `tiny`
        program="train.py",
        environment=None,  # on top of this process' own
        torchrun=False,  # whether these are arguments of torchrun, which starts it
        # samples as long as those of the real command, most of the work of a run this small
        long=False,
    ):
        given = tiny(arguments) if defaults and not torchrun else list(arguments)
        self.files = [Path(tempfile.mkstemp(suffix=f".{name}")[1]) for name in ("out", "err")]
        variables = {**os.environ, **(environment or {})}
        command = [program, *given]
        self.process = fork(
            _run, os.getcwd(), variables, command, fault, self.files, torchrun, long
        )
        self.ended = None
        assert self.process.pid is not None
        self.pid = self.process.pid

    def signal(self, number, group=False):
        """Send a signal, also to the processes that it has started and that are of its group: trials, but no ranks."""
        with suppress(ProcessLookupError):  # it has ended
            (os.killpg if group else os.kill)(self.pid, number)

    def poll(self):
        """The exit status, None before the end."""
        return self.process.exitcode

    def wait(self, timeout=LIMIT):
        """Wait for the end; a process that was killed by a signal has its negative number as status."""
        self.process.join(timeout)
        if self.process.exitcode is None:
            self.process.kill()
            raise AssertionError(f"did not end within {timeout} s: {self.wait()}")
        if self.ended is None:
            out, err = (file.read_text("utf-8", "replace") for file in self.files)
            self.ended = Ended(
                self.process.exitcode, from_here(out), from_here(less_progress(err))
            )
            for file in self.files:
                file.unlink()
        return self.ended

    def ends(self):
        """As `wait`, of a job that must leave no process behind in this directory; ends what is left."""
        try:
            ended = self.wait()
            wait_for(lambda: not processes_in(Path()), timeout=60)
            return ended
        finally:
            for left in processes_in(Path()):
                os.kill(left, signal.SIGKILL)


def run(*arguments, **options):
    """Run `train.py` to its end."""
    return Process(*arguments, **options).wait()


def run_ranks(count, *arguments, **options):
    """Run `train.py` as so many processes; `faults.in_rank` is a fault of one of them."""
    return Process(*arguments, f"trainer.devices={count}", **options).ends()


class ForkingPopen(subprocess.Popen):
    """Starts commands, and forks this process, which has loaded everything, where one is that of `train.py`."""

    def __init__(self, args, **options):
        if isinstance(args, list | tuple) and SCRIPT in args:
            given = args[args.index(SCRIPT) + 1 :]
            options["preexec_fn"] = partial(_become, options.get("env") or dict(os.environ), given)
        sys.stdout.flush()
        sys.stderr.flush()
        super().__init__(args, **options)


_parents: list[Any] = []  # what belongs to the process that this one was forked from


def _become(variables, arguments):
    """Take the place of a new process: none of the parent's files, locks and signal handlers is this one's."""
    nothing = os.open(os.devnull, os.O_RDWR)
    for file in os.listdir("/dev/fd"):
        if int(file) > 2:
            os.dup2(nothing, int(file))
    _parents.extend([run_lock._held, sys.stdout, sys.stderr])
    run_lock._held = {}
    gc.enable()
    status = 1
    try:
        begin(variables, [SCRIPT, *arguments])
        status = train_script.cli()
    except SystemExit as stop:
        status = stop.code
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(int(status or 0))


def begin(variables, command):
    os.environ.clear()
    os.environ.update(variables)
    sys.stdout, sys.stderr = (
        open(number, "w", encoding="utf-8", buffering=1, closefd=False) for number in (1, 2)
    )
    faulthandler.enable()  # a crash of the interpreter says where
    tempfile.tempdir = None  # as in a new process: found anew
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.argv = command
    # TensorBoard reads event files in the order of their names: the second, then the process
    # number as text. Only a forked process begins in the second of the one before it.
    event_file_writer.os = SimpleNamespace(getpid=time.time_ns, path=os.path)
    processes.BEGAN = time.perf_counter()


def _run(place, variables, argv, fault, files, torchrun, long):
    program, *given = argv
    os.chdir(place)
    os.setpgrp()
    for number, name in enumerate(files, start=1):
        os.dup2(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_APPEND), number)
    begin(variables, [str(ROOT / program), *given])
    subprocess.Popen = subprocess_handler.Popen = ForkingPopen  # type: ignore[misc]
    if not long:
        watch.SAMPLE_LENGTH = results.FINAL_SAMPLE_LENGTH = 20
    if fault:
        fault[0](*fault[1:])
    if torchrun:
        torch.distributed.run.main(given)
    else:
        sys.exit(importlib.import_module(program.removesuffix(".py")).cli())


def start(*arguments, **options):
    """Start `python train.py` itself, in a process group of its own, on book.txt with a tiny model."""
    return subprocess.Popen(
        [sys.executable, SCRIPT, *tiny(arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        **options,
    )


def wait_for(condition, process=None, timeout=LIMIT):
    """Wait until something holds, or fail when the process has ended or time is up."""
    until = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < until, "did not happen in time"
        if process is not None and process.poll() is not None:
            said = process.wait() if isinstance(process, Process) else process.communicate()
            raise AssertionError(f"ended before that: {said}")
        time.sleep(0.005)


def children_of(pid):
    """The processes that the main thread of a process has started."""
    return [*map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())]


def processes_in(directory):
    """Processes that work in a directory, but for this one."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if (process / "cwd").resolve() == directory.resolve() and int(
                process.name
            ) != os.getpid():
                found.append(int(process.name))
    return found


def events(directory):
    """All that TensorBoard shows of a run but its speed and memory: the points (step, value) by tag."""
    accumulator, validation = board(directory.absolute()), directory.absolute() / "validation"
    tags = accumulator.Tags()
    points = events(validation) if validation.exists() else {}
    for tag in tags["scalars"]:
        if not tag.startswith(("perf/", "time/")):
            points[tag] = [(point.step, point.value) for point in accumulator.Scalars(tag)]
    for tag in tags["tensors"]:
        texts = {
            point.step: point.tensor_proto.SerializeToString()
            for point in accumulator.Tensors(tag)
        }
        points[tag] = list(texts.items())  # of two texts of one step, TensorBoard shows the second
    return points
