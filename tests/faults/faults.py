"""What goes wrong, and exactly where: each function arranges for it in the process that calls it."""

import io
import itertools
import math
import os
import shutil
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import matplotlib.figure
import torch
from lightning.fabric.plugins.io.torch_io import TorchCheckpointIO
from lightning.pytorch.strategies import Strategy
from torch.distributed.tensor import DTensor

import data.manifest
import data.shards
import gpt.checkpoint
import gpt.fit.durability
import gpt.fit.module
import gpt.fit.pictures
import gpt.optim
import train as train_script
from gpt.fit.durability import AtomicCheckpointIO, Checkpoints
from gpt.fit.module import LitGPT
from gpt.fit.pictures import Pictures


def die() -> None:
    """End this process as `kill -9` does."""
    os.kill(os.getpid(), signal.SIGKILL)


def before(owner: Any, name: str, action: Callable[..., object]) -> None:
    """Have `action` called with the arguments of `owner.name` before each call of it."""
    original = getattr(owner, name)

    def called(*given: Any, **named: Any) -> Any:
        action(*given, **named)
        return original(*given, **named)

    setattr(owner, name, called)


def after(owner: Any, name: str, action: Callable[..., object]) -> None:
    """Have `action` called with the arguments of `owner.name` after each call of it."""
    original = getattr(owner, name)

    def called(*given: Any, **named: Any) -> Any:
        result = original(*given, **named)
        action(*given, **named)
        return result

    setattr(owner, name, called)


def at_step(step: int) -> None:
    """Die before the forward pass of a step (from 0)."""
    before(LitGPT, "training_step", lambda module, *_: die() if module.global_step == step else None)


def in_accumulation(step: int, micro_batch: int) -> None:
    """Die after the gradient of some of a step's micro-batches."""
    done: dict[int, int] = {}

    def count(module: LitGPT, *_: Any) -> None:
        done[module.global_step] = done.get(module.global_step, 0) + 1
        if module.global_step == step and done[step] == micro_batch:
            die()

    after(LitGPT, "manual_backward", count)


def before_update(step: int) -> None:
    """Die between a step's gradient and its update."""
    calls = iter(range(10**9))
    after(torch.nn.utils, "clip_grad_norm_", lambda *_: die() if next(calls) == step else None)


def after_update(step: int) -> None:
    """Die after a step's update, before anything has counted it."""
    after(LitGPT, "training_step", lambda module, *_: die() if module.global_step == step + 1 else None)


def at_validation(number: int, where: str) -> None:
    """Die at the begin, in the middle or at the end of a validation (from 1)."""
    count = [0]

    def begun(*_: Any) -> None:
        count[0] += 1
        if where == "begin" and count[0] == number:
            die()

    before(LitGPT, "on_validation_epoch_start", begun)
    if where == "middle":
        after(LitGPT, "validation_step", lambda *_: die() if count[0] == number else None)
    if where == "end":
        after(LitGPT, "on_validation_epoch_end", lambda *_: die() if count[0] == number else None)


def after_save(number: int) -> None:
    """Die when a save (from 1) is done."""
    calls = iter(range(1, 10**9))
    after(Checkpoints, "save", lambda *_: die() if next(calls) == number else None)


class _Dying:
    """A file that can be written up to `size` bytes, which is where the process dies."""

    def __init__(self, file: Any, size: int) -> None:
        self.file, self.left = file, size

    def __enter__(self) -> "_Dying":
        return self

    def __exit__(self, *_: object) -> None:
        self.file.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.file, name)

    def write(self, data: Any) -> int:
        part = bytes(data)[: self.left]
        self.file.write(part)
        self.left -= len(part)
        if len(part) < len(data):
            self.file.flush()
            die()
        return len(data)


def in_write(number: int, size: int) -> None:
    """Die in a save (from 1) when so many bytes are written; negative ones count from the end."""
    calls = iter(range(1, 10**9))
    original, wanted = gpt.fit.durability.save, [False, 0]

    def save(path: Path, contents: dict[str, Any]) -> None:
        wanted[0] = next(calls) == number
        whole = io.BytesIO()
        torch.save(contents, whole)
        wanted[1] = size if size >= 0 else len(whole.getvalue()) + size
        original(path, contents)

    def opened(path: Path, mode: str) -> Any:
        file = open(path, mode)
        return _Dying(file, int(wanted[1])) if wanted[0] and mode == "wb" else file

    gpt.fit.durability.save = save
    gpt.checkpoint.open = opened  # type: ignore[attr-defined]


def before_rename(number: int, name: str) -> None:
    """Die when a file whose name begins so is to take that name, the `number`-th time (from 1)."""
    calls = iter(range(1, 10**9))

    def check(_: Any, target: Any) -> None:
        if Path(target).name.startswith(name) and next(calls) == number:
            die()

    before(os, "replace", check)


def in_finish() -> None:
    """Die when training is over, before the trained model is evaluated."""
    before(train_script, "finish", lambda *_: die())


def at_end_of_fit() -> None:
    """Die when training is over, before the summary says so."""
    calls = iter(range(10**9))  # the first is written when the run begins
    before(train_script, "write_summary", lambda *_: die() if next(calls) == 1 else None)


# -- What protects, taken away -----------------------------------------------------------------------


def load_nothing() -> None:
    """Go on with a fresh model, at the right step."""
    LitGPT.load_state_dict = lambda *_, **__: None  # type: ignore[method-assign, assignment]


def load_no_optimizer() -> None:
    """Go on with an optimizer that has forgotten all."""
    Strategy.load_optimizer_state_dict = lambda *_: None  # type: ignore[method-assign]


def seed_no_dropout() -> None:
    """Draw dropout masks from wherever the generator stands."""
    gpt.fit.module.dropout_seed = lambda *_: torch.initial_seed()
    torch.manual_seed = lambda *_: torch.default_generator  # type: ignore[assignment]


def cut_no_events() -> None:
    """Leave TensorBoard's files as the killed process left them."""
    gpt.fit.durability.cut_events = lambda *_: None


def stock_in_write(number: int, size: int) -> None:
    """Write as Lightning does by itself, to one name, and die when so many bytes of a save have reached it."""

    def save(io: Any, contents: dict[str, Any], path: Any, storage_options: Any = None) -> None:
        TorchCheckpointIO().save_checkpoint(contents, Path(path).with_name("last.ckpt"))

    AtomicCheckpointIO.save_checkpoint = save  # type: ignore[method-assign]
    gpt.fit.durability.link = lambda *_: None
    calls = iter(range(1, 10**9))

    def copy(source: Any, target: Any, *_: Any, **__: Any) -> None:
        data = Path(source).read_bytes()
        if next(calls) == number:
            Path(target).write_bytes(data[:size])
            die()
        Path(target).write_bytes(data)

    shutil.copyfile = copy  # what shutil.move calls between two file systems


# -- What else can go wrong ----------------------------------------------------------------------------


def no_links(step: int) -> None:
    """Have a file system without hard links, and die at a step."""

    def refused(*_: Any) -> None:
        raise OSError(95, "Operation not supported")

    os.link = refused
    at_step(step)


def break_best() -> None:
    """Damage the best checkpoint when training is over, while the last is another file."""

    def damage(run: Path, *_: Any) -> None:
        best = run / "checkpoints/best.safetensors"
        data = best.read_bytes()
        best.unlink()
        best.write_bytes(data[:-100])

    before(train_script, "finish", damage)


def limit_file_size(step: int, size: int) -> None:
    """Let no file grow beyond `size` bytes, from a step on."""
    import resource

    limit = (size, resource.getrlimit(resource.RLIMIT_FSIZE)[1])
    before(
        LitGPT,
        "training_step",
        lambda module, *_: resource.setrlimit(resource.RLIMIT_FSIZE, limit) if module.global_step == step else None,
    )


def read_only(step: int) -> None:
    """Make the directory of the checkpoints read-only from a step on, and this process one that has to respect it."""

    def seal(module: LitGPT, *_: Any) -> None:
        if module.global_step == step:
            for path in (Path(), Path("runs"), Path("runs/cut"), *Path("runs/cut").iterdir()):
                path.chmod(0o555 if path.name == "checkpoints" else 0o777)
            if os.geteuid() == 0:
                os.seteuid(65534)

    before(LitGPT, "training_step", seal)


def fill_disk(step: int) -> None:
    """Fill the file system with a file called `filler` at a step."""

    def fill(module: LitGPT, *_: Any) -> None:
        if module.global_step == step:
            with suppress(OSError), open("filler", "wb", buffering=0) as file:
                while file.write(bytes(4096)):
                    pass

    before(LitGPT, "training_step", fill)


def wait_for_file(step: int, name: str) -> None:
    """Wait at a step until a file is there, having made one called `waiting`."""

    def wait(module: LitGPT, *_: Any) -> None:
        if module.global_step == step:
            Path("waiting").touch()
            until = time.monotonic() + 60
            while not Path(name).exists() and time.monotonic() < until:
                time.sleep(0.01)

    before(LitGPT, "training_step", wait)


# -- Numbers that are none, and processes that do not go on --------------------------------------------


def spoil_loss(step: int, value: float = math.nan) -> None:
    """Have the loss of a step be something else; its gradient is as it was."""
    original = gpt.fit.module.F.cross_entropy
    count = itertools.count()

    def spoilt(*given: Any, **named: Any) -> torch.Tensor:
        loss = original(*given, **named)
        return loss - loss.detach() + value if torch.is_grad_enabled() and next(count) == step else loss

    gpt.fit.module.F = SimpleNamespace(cross_entropy=spoilt)  # type: ignore[assignment]


def spoil_gradient(step: int, value: float = math.inf) -> None:
    """Have one number of a step's gradient be another."""

    def spoil(module: LitGPT, *_: Any) -> None:
        if module.global_step == step:
            gradient = module.net.embedding.weight.grad
            assert gradient is not None
            gradient[0, 0] = value

    after(LitGPT, "manual_backward", spoil)


def spoil_weights(step: int) -> None:
    """Have the update of a step, whose loss and gradient were fine, leave one that is no number, and stop."""

    def spoil(module: LitGPT, *_: Any) -> None:
        if module.global_step == step + 1:
            module.net.shift.data.mul_(math.inf)
            os.kill(os.getpid(), signal.SIGTERM)

    after(LitGPT, "training_step", spoil)


def guard_nothing() -> None:
    """Take every number for one."""
    gpt.fit.module.math = SimpleNamespace(isfinite=lambda _: True)  # type: ignore[assignment]
    gpt.fit.durability.is_finite = lambda _: True


def both(*each: Any) -> None:
    """Several faults at once."""
    for function, *arguments in each:
        function(*arguments)


def raise_at(step: int) -> None:
    """Fail at a step."""

    def fail(module: LitGPT, *_: Any) -> None:
        if module.global_step == step:
            raise ZeroDivisionError("made to fail")

    before(LitGPT, "training_step", fail)


def hang_at(step: int) -> None:
    """Stand still at a step, deaf to whatever can be handled."""
    before(LitGPT, "training_step", lambda module, *_: os.kill(os.getpid(), 19) if module.global_step == step else None)


def signal_at(step: int, number: int) -> None:
    """Send oneself a signal at a step."""
    before(
        LitGPT,
        "training_step",
        lambda module, *_: os.kill(os.getpid(), number) if module.global_step == step else None,
    )


def signal_while_loading(number: int) -> None:
    """Send oneself a signal while weights are copied, where torch catches whatever is raised."""

    def copying(*_: Any, **__: Any) -> None:
        calls = iter(range(10**9))
        before(torch.Tensor, "copy_", lambda *_: os.kill(os.getpid(), number) if next(calls) == 0 else None)

    before(LitGPT, "load_state_dict", copying)


def signal_in_finish(number: int) -> None:
    """Send oneself a signal while the trained model is evaluated."""
    before(train_script, "finish", lambda *_: os.kill(os.getpid(), number))


def signal_in_validation(number: int, where: str, signal_number: int) -> None:
    """Send oneself a signal at the begin or in the middle of a validation (from 1)."""
    count = [0]

    def begun(*_: Any) -> None:
        count[0] += 1
        if where == "begin" and count[0] == number:
            os.kill(os.getpid(), signal_number)

    before(LitGPT, "on_validation_epoch_start", begun)
    if where == "middle":
        after(
            LitGPT,
            "validation_step",
            lambda *_: os.kill(os.getpid(), signal_number) if count[0] == number else None,
        )


def signal_before_fit(number: int) -> None:
    """Send oneself a signal before anything of a run is there."""
    before(train_script, "choose", lambda *_: os.kill(os.getpid(), number))


def small_shards(*more: Any) -> None:
    """Shards and blocks of a few thousand tokens, and no long waiting; then another fault, if any."""
    data.shards.SHARD, data.shards.BLOCK = 8_000, 30_000
    data.manifest.PATIENCE = 20.0
    if more:
        more[0](*more[1:])


def in_fetch(number: int) -> None:
    """Die while a document, the `number`-th from 1 of this process, is written to this disk for a shard."""
    count = itertools.count(1)

    def fetched(_: Any, copy: Path) -> None:
        if next(count) == number:
            copy.write_bytes(copy.read_bytes()[:500])
            die()

    after(data.manifest, "download", fetched)


def in_encoding(number: int) -> None:
    """Die when so many of a process' shards are written, but not yet named."""
    count = itertools.count(1)
    before(os, "replace", lambda _, name: die() if Path(name).suffix == ".bin" and next(count) == number else None)


def wait_at(step: int, flag: str) -> None:
    """Before a step, leave a file to say so, and go on once someone has removed it."""

    def wait(module: LitGPT, *_: Any) -> None:
        if module.global_step == step:
            Path(flag).touch()
            while Path(flag).exists():
                time.sleep(0.01)

    before(LitGPT, "training_step", wait)


# -- Several devices -----------------------------------------------------------------------------------


def iterate_in_fp32() -> None:
    """Have Muon orthogonalise in fp32, where the order of a sum hardly shows."""
    gpt.optim.ITERATED_IN = torch.float32


def orthogonalise_shards() -> None:
    """Have Muon take the rows that a device has for a matrix."""
    gpt.optim.whole = lambda tensor: tensor.to_local()
    gpt.optim.shard_like = lambda rows, like: DTensor.from_local(rows, like.device_mesh, like.placements)


def count_graphs() -> None:
    """Have the first process say what has been compiled when training is over."""
    from torch._dynamo.utils import counters

    def say(*_: Any) -> None:
        print(f"graphs: {counters['stats']['unique_graphs']}, breaks: {sum(counters['graph_break'].values())}")

    before(train_script, "finish", say)


def killed_at_the_end() -> None:
    """Die when the trained model has been evaluated and all is drawn, before the run is called finished."""
    gpt.fit.pictures.NICENESS = 0
    after(Pictures, "finish", lambda *_, **__: die())


def drawer_gets(number: int, waiting: int = 100) -> None:
    """The process that draws gets a signal as soon as it has something to draw; so many pictures wait for it."""

    def send(pictures: Pictures, *_: Any, **__: Any) -> None:
        if pictures.drawer:
            os.kill(pictures.drawer.process.pid, number)

    gpt.fit.pictures.END_SECONDS, gpt.fit.pictures.MAX_WAITING = 1.0, waiting
    after(Pictures, "_send", send)


def nothing_is_drawn_here() -> None:
    """Drawing in this process is an error. The one that draws takes its time from others."""
    gpt.fit.pictures.NICENESS = 0

    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("drawn in the process that trains")

    before(matplotlib.figure.Figure, "__init__", refuse)
