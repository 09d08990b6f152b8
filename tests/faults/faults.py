"""What goes wrong, and exactly where: each function arranges for it in the process that calls it."""

import io
import itertools
import math
import os
import resource
import signal
import sys
import time
import zipfile
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import torch
from torch.distributed.elastic.multiprocessing.api import PContext

import gpt.checkpoint
import gpt.optim
import training.callbacks.checkpoints
import training.choosing.hardware
import training.module
import training.results
from base import ranks
from base.log import log
from training.callbacks.checkpoints import Checkpoints
from training.module import LitGPT


def before(owner, name, action):
    original = getattr(owner, name)
    setattr(
        owner,
        name,
        lambda *given, **named: (action(*given, **named), original(*given, **named))[1],
    )


def after(owner, name, action):
    original = getattr(owner, name)
    setattr(
        owner,
        name,
        lambda *given, **named: (original(*given, **named), action(*given, **named))[0],
    )


def sending(number):
    return lambda *_, **__: os.kill(os.getpid(), number)


die = sending(signal.SIGKILL)


def the(number, action=die):
    """What is called again and again, and acts the `number`-th time (from 1)."""
    count = itertools.count(1)
    return lambda *given, **named: action(*given, **named) if next(count) == number else None


def in_rank(rank, fault, *arguments):
    in_call("on_fit_start", lambda _: ranks.rank() == rank, partial(fault, *arguments))


def in_trial(name, fault, *arguments):
    in_call("on_fit_start", lambda _: f"name={name}" in sys.argv, partial(fault, *arguments))


def in_call(name, condition, action):
    """Act at the beginning of a method of the module if a condition on the module holds."""
    before(LitGPT, name, lambda module, *_: action() if condition(module) else None)


def before_step(step, action):
    in_call("training_step", lambda module: module.global_step == step, action)


def at_step(step, number=signal.SIGKILL):
    before_step(step, sending(number))


def after_update(step):
    after(
        LitGPT,
        "training_step",
        lambda module, *_: die() if module.global_step == step + 1 else None,
    )


def signal_in_validation(number, signal_number=signal.SIGKILL):
    begun = []
    kill = sending(signal_number)
    before(LitGPT, "on_validation_epoch_start", begun.append)
    after(LitGPT, "validation_step", lambda *_: kill() if len(begun) == number else None)


def after_save(number):
    after(Checkpoints, "save", the(number))


class _Dying(io.FileIO):
    def write(self, data):
        super().write(bytes(data)[: self.left])
        self.left -= len(data)
        if self.left < 0:
            die()
        return len(data)


def in_write(number, size):
    """Die in a save (from 1) when so many bytes are written."""

    def opened(path, mode):
        file = _Dying(path, mode)
        file.left = size
        return file

    arrange = the(number, lambda *_, **__: setattr(gpt.checkpoint, "open", opened))
    before(training.callbacks.checkpoints, "save_training_checkpoint", arrange)


def before_rename(number, name):
    """Die when a file is to take a name that begins so, the `number`-th time (from 1)."""
    kill = the(number)
    before(os, "replace", lambda _, to: kill() if Path(to).name.startswith(name) else None)


def before_results(number=signal.SIGKILL):
    before(training.results, "write_results", sending(number))


def never_due():
    """Have this process find no checkpoint due, whatever its clock says."""
    Checkpoints.due_at = property(lambda _: math.inf, lambda *_: None)


def fail_to_read(error):
    def fail(*_):
        raise error

    before(zipfile.ZipFile, "testzip", fail)


def limit(size):
    """Let this process use 200 MB and four times `size` more of private memory than it has, and 10 s of work."""
    # and stacks
    data = int(Path("/proc/self/statm").read_text().split()[5]) * os.sysconf("SC_PAGE_SIZE")
    most = data + 200 * 2**20 + 4 * size
    _, highest = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (most, highest))
    resource.setrlimit(resource.RLIMIT_CPU, (10, 10))


def limit_unseen(addresses):
    """Let this process have so many bytes of addresses, without the estimate of its memory knowing it."""
    training.choosing.hardware.available = lambda _: math.inf
    resource.setrlimit(resource.RLIMIT_AS, (addresses, addresses))


def fill_disk(step):
    def fill():
        with suppress(OSError), open("runs/filler", "wb", buffering=0) as file:
            while file.write(bytes(4096)):
                pass

    before_step(step, fill)


def wait_at(step):
    def wait():
        Path("waiting").touch()
        time.sleep(60)

    before_step(step, wait)


def spoil_loss(step):
    """Have the loss of a step be NaN; its gradient is as it was."""
    original = training.module.F.cross_entropy
    count = itertools.count()

    def spoilt(*given, **named):
        loss = original(*given, **named)
        return (
            loss - loss.detach() + math.nan
            if torch.is_grad_enabled() and next(count) == step
            else loss
        )

    training.module.F = SimpleNamespace(cross_entropy=spoilt)


def diverge_in_rank_1_first(step):
    """Have the loss of rank 1 be NaN, which all ranks see, and rank 0 say so a second later."""
    in_rank(1, spoil_loss, step)
    before(log, "error", lambda _: time.sleep(1) if ranks.rank() == 0 else None)


def spoil_gradient(step):
    def spoil(module, *_):
        if module.global_step == step:
            module.net.embedding.weight.grad[0, 0] = math.inf

    after(LitGPT, "manual_backward", spoil)


def spoil_weights(step):
    def spoil(module, *_):
        if module.global_step == step + 1:
            module.net.shift.data.mul_(math.inf)
            os.kill(os.getpid(), signal.SIGTERM)

    after(LitGPT, "training_step", spoil)


def raise_at(step):
    before_step(step, lambda: 1 / 0)


def signal_as_on_gpu(rank, step, number):
    """Send one rank a signal, where losses are read only now and then."""
    LitGPT.asynchronous = True
    in_rank(rank, at_step, step, number)


def signal_parent_at(step, number):
    def send():
        os.kill(os.getppid(), number)
        time.sleep(3)

    before_step(step, send)


def hang_in_rank(rank, step):
    # seconds until the launcher kills a rank that does not end
    PContext.close.__defaults__ = (None, 3)
    in_rank(rank, at_step, step, signal.SIGSTOP)
