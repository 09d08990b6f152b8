"""What goes wrong, and exactly where: each function arranges for it in the process that calls it."""

import io
import itertools
import math
import os
import resource
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import matplotlib.figure
import torch
from lightning.pytorch.strategies import Strategy
from torch.distributed.tensor import DTensor

import data.remote.manifest
import data.remote.shards
import data.remote.store
import gpt.checkpoint
import gpt.optim
import reports.picture_process
import reports.tensorboard
import training.callbacks.pictures
import training.checkpoint_io
import training.finish
import training.machine
import training.module
import training.outcome
import training.summary
from base import processes
from training.callbacks.checkpoints import Checkpoints
from training.callbacks.pictures import Pictures
from training.module import LitGPT
from training.run_plan import RunPlan
from training.sharding import ShardedMuon


def die(*_: Any, **__: Any) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def before(owner: Any, name: str, action: Callable[..., object]) -> None:
    original = getattr(owner, name)
    setattr(owner, name, lambda *given, **named: (action(*given, **named), original(*given, **named))[1])


def after(owner: Any, name: str, action: Callable[..., object]) -> None:
    original = getattr(owner, name)
    setattr(owner, name, lambda *given, **named: (original(*given, **named), action(*given, **named))[0])


def sending(number: int) -> Callable[..., None]:
    return lambda *_, **__: os.kill(os.getpid(), number)


def the(number: int, action: Callable[..., object] = die) -> Callable[..., object]:
    """What is called again and again, and acts the `number`-th time (from 1)."""
    count = itertools.count(1)
    return lambda *given, **named: action(*given, **named) if next(count) == number else None


def in_rank(rank: int, fault: Callable[..., object], *arguments: Any) -> None:
    before(LitGPT, "on_fit_start", lambda *_: fault(*arguments) if processes.rank() == rank else None)


def in_trial(name: str, fault: Callable[..., object], *arguments: Any) -> None:
    before(LitGPT, "on_fit_start", lambda *_: fault(*arguments) if f"name={name}" in sys.argv else None)


def before_step(step: int, action: Callable[[], object]) -> None:
    before(LitGPT, "training_step", lambda module, *_: action() if module.global_step == step else None)


def at_step(step: int) -> None:
    before_step(step, die)


def in_accumulation(step: int, micro_batch: int) -> None:
    kill = the(micro_batch)
    after(LitGPT, "manual_backward", lambda module, *_: kill() if module.global_step == step else None)


def before_update(step: int) -> None:
    after(torch.nn.utils, "clip_grad_norm_", the(step + 1))


def after_update(step: int) -> None:
    after(LitGPT, "training_step", lambda module, *_: die() if module.global_step == step + 1 else None)


def signal_in_validation(number: int, where: str, signal_number: int = signal.SIGKILL) -> None:
    begun: list[Any] = []
    kill = sending(signal_number)
    before(LitGPT, "on_validation_epoch_start", begun.append)
    name = {"begin": "on_validation_epoch_start", "middle": "validation_step", "end": "on_validation_epoch_end"}[where]
    after(LitGPT, name, lambda *_: kill() if len(begun) == number else None)


def after_save(number: int) -> None:
    after(Checkpoints, "save", the(number))


class _Dying(io.FileIO):
    left: int

    def write(self, data: Any) -> int:
        super().write(bytes(data)[: self.left])
        self.left -= len(data)
        if self.left < 0:
            die()
        return len(data)


def in_write(number: int, size: int) -> None:
    """Die in a save (from 1) when so many bytes are written; negative ones count from the end."""

    def arrange(_: Path, contents: dict[str, Any]) -> None:
        whole = io.BytesIO()
        torch.save(contents, whole)

        def opened(path: Path, mode: str) -> Any:
            file = _Dying(path, mode)
            file.left = size if size >= 0 else whole.tell() + size
            return file

        gpt.checkpoint.open = opened  # type: ignore[attr-defined]

    before(training.checkpoint_io, "save", the(number, arrange))


def before_rename(number: int, name: str) -> None:
    """Die when a file is to take a name that begins or ends so, the `number`-th time (from 1)."""
    kill = the(number)
    before(os, "replace", lambda _, to: kill() if Path(to).name.startswith(name) or Path(to).suffix == name else None)


def before_call(name: str, number: int = signal.SIGKILL, call: int = 1) -> None:
    action = the(call, sending(number))
    for module in (training.machine, training.summary, training.outcome, training.finish):
        if hasattr(module, name):
            before(module, name, action)


def without(protection: str) -> None:
    """Do not load weights, or the optimizer's state, seed dropout by the step, or cut TensorBoard's files."""
    match protection:
        case "weights":
            LitGPT.load_state_dict = lambda *_, **__: None  # type: ignore[method-assign, assignment]
        case "optimizer":
            Strategy.load_optimizer_state_dict = lambda *_: None  # type: ignore[method-assign]
        case "seeds":
            training.module.dropout_seed = lambda *_: torch.initial_seed()
            torch.manual_seed = lambda *_: torch.default_generator  # type: ignore[assignment]
        case "cut":
            reports.tensorboard.cut_events = lambda *_: None


def no_links(step: int) -> None:
    os.link = mock.Mock(side_effect=OSError(95, "Operation not supported"))
    at_step(step)


def never_due() -> None:
    """Have this process find no checkpoint due, whatever its clock says."""
    Checkpoints.due_at = property(lambda _: math.inf, lambda *_: None)  # type: ignore[assignment]


def break_best() -> None:
    def damage(plan: RunPlan, *_: Any) -> None:
        best = plan.directory / "checkpoints/best.safetensors"
        data = best.read_bytes()
        best.unlink()
        best.write_bytes(data[:-100])

    before(training.finish, "finish", damage)


def limit_file_size(step: int, size: int) -> None:
    limit = (size, resource.getrlimit(resource.RLIMIT_FSIZE)[1])
    before_step(step, lambda: resource.setrlimit(resource.RLIMIT_FSIZE, limit))


def read_only(step: int) -> None:
    """Make the directory of the checkpoints read-only from a step on, and this process one that has to respect it."""

    def seal() -> None:
        for path in (Path(), Path("runs"), Path("runs/cut"), *Path("runs/cut").iterdir()):
            path.chmod(0o555 if path.name == "checkpoints" else 0o777)
        if os.geteuid() == 0:
            os.seteuid(65534)

    before_step(step, seal)


def fill_disk(step: int) -> None:
    def fill() -> None:
        with suppress(OSError), open("filler", "wb", buffering=0) as file:
            while file.write(bytes(4096)):
                pass

    before_step(step, fill)


def wait_for_file(step: int, name: str) -> None:
    def wait() -> None:
        Path("waiting").touch()
        until = time.monotonic() + 60
        while not Path(name).exists() and time.monotonic() < until:
            time.sleep(0.01)

    before_step(step, wait)


def spoil_loss(step: int, value: float = math.nan) -> None:
    """Have the loss of a step be something else; its gradient is as it was."""
    original = training.module.F.cross_entropy
    count = itertools.count()

    def spoilt(*given: Any, **named: Any) -> torch.Tensor:
        loss = original(*given, **named)
        return loss - loss.detach() + value if torch.is_grad_enabled() and next(count) == step else loss

    training.module.F = SimpleNamespace(cross_entropy=spoilt)  # type: ignore[assignment]


def spoil_gradient(step: int, value: float = math.inf) -> None:
    """Have one number of a step's gradient be another."""

    def spoil(module: LitGPT, *_: Any) -> None:
        if module.global_step == step:
            gradient = module.net.embedding.weight.grad
            assert gradient is not None
            gradient[0, 0] = value

    after(LitGPT, "manual_backward", spoil)


def spoil_weights(step: int) -> None:
    def spoil(module: LitGPT, *_: Any) -> None:
        if module.global_step == step + 1:
            module.net.shift.data.mul_(math.inf)
            os.kill(os.getpid(), signal.SIGTERM)

    after(LitGPT, "training_step", spoil)


def both(*each: Any) -> None:
    for function, *arguments in each:
        function(*arguments)


def raise_at(step: int) -> None:
    before_step(step, lambda: 1 / 0)


def signal_at(step: int, number: int) -> None:
    before_step(step, sending(number))


def signal_parent_at(step: int, number: int) -> None:
    def send() -> None:
        os.kill(os.getppid(), number)
        time.sleep(3)

    before_step(step, send)


def hang_at(step: int) -> None:
    signal_at(step, signal.SIGSTOP)


def signal_while_loading(number: int) -> None:
    """Send oneself a signal while weights are copied, where torch catches whatever is raised."""
    send = the(1, sending(number))
    before(LitGPT, "load_state_dict", lambda *_, **__: before(torch.Tensor, "copy_", send))


def small_shards(*more: Any) -> None:
    data.remote.shards.SHARD, data.remote.shards.BLOCK = 8_000, 30_000
    data.remote.store.RETRY_SECONDS = 20.0
    if more:
        more[0](*more[1:])


def in_fetch(number: int) -> None:
    def cut(_: Any, copy: Path) -> None:
        copy.write_bytes(copy.read_bytes()[:500])
        die()

    after(data.remote.manifest, "download", the(number, cut))


def orthogonalise_shards() -> None:
    """Have Muon take the rows that a device has for a matrix."""
    ShardedMuon.whole = staticmethod(lambda tensor: tensor.to_local())
    ShardedMuon.shard_like = staticmethod(
        lambda rows, like: DTensor.from_local(rows, like.device_mesh, like.placements)
    )


def count_graphs(backend: str) -> None:
    from torch._dynamo.utils import counters

    torch.compile = partial(torch.compile, backend=backend)

    def say(*_: Any) -> None:
        print(f"graphs: {counters['stats']['unique_graphs']}, breaks: {sum(counters['graph_break'].values())}")

    before(training.finish, "finish", say)


def killed_at_the_end() -> None:
    reports.picture_process.NICENESS = 0
    after(Pictures, "finish", die)


def drawer_gets(number: int, waiting: int = 100) -> None:
    """The process that draws gets a signal as soon as it has something to draw; so many pictures wait for it."""

    def send(pictures: Pictures, *_: Any, **__: Any) -> None:
        if pictures.renderer:
            os.kill(pictures.renderer.process.pid, number)

    training.callbacks.pictures.END_SECONDS, training.callbacks.pictures.MAX_QUEUED = 1.0, waiting
    after(Pictures, "_send", send)


def nothing_is_drawn_here() -> None:
    """Drawing in this process is an error; the one that draws gets as much time as others, and is waited for."""
    reports.picture_process.NICENESS, training.callbacks.pictures.END_SECONDS = 0, 100.0

    before(matplotlib.figure.Figure, "__init__", mock.Mock(side_effect=AssertionError("drawn where the run trains")))
