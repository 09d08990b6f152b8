"""What keeps a run from losing anything: checkpoints, stops between two steps, and processes that end together."""

import math
import os
import platform
import signal
import struct
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import lightning as L
import torch
from google.protobuf.message import DecodeError
from lightning.fabric.plugins.environments import ClusterEnvironment, LightningEnvironment, TorchElasticEnvironment
from lightning.fabric.plugins.io.checkpoint_io import CheckpointIO
from lightning.pytorch.strategies import DDPStrategy
from tensorboard.compat.proto.event_pb2 import Event

from conf.fields import InputError, shown
from gpt import job
from gpt.checkpoint import is_finite, link, read, remove_older, save, step_path, write_model
from gpt.fit.module import Diverged, LitGPT
from gpt.fit.sharding import ShardedStrategy
from gpt.runs import RUNS

ARRIVAL = timedelta(minutes=10)  # that processes have to find each other, some on machines that start later
GRACE = 10.0  # seconds that a process gives the one that started it to end by itself


class AtomicCheckpointIO(CheckpointIO):
    """Lets Lightning read and write through `gpt.checkpoint`: whole files only, no code run on loading.

    Args:
        resumed: contents of the checkpoint that the run goes on from, which have been read and verified.
    """

    def __init__(self, resumed: dict[str, Any] | None = None) -> None:
        self.resumed = resumed

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None) -> None:
        """Write `checkpoint`, and before it its model as `last.safetensors`: each is always a whole file.

        Raises:
            Diverged: not all of it are numbers, so it is not written.
        """
        if not is_finite(checkpoint):
            raise Diverged(f"step {checkpoint['global_step']} has left weights that are no numbers: not saved")
        write_model(Path(path).with_name("last.safetensors"), checkpoint)
        save(path, checkpoint)

    def load_checkpoint(self, path: Any, map_location: Any = None, weights_only: bool | None = None) -> dict[str, Any]:
        """Read and verify a checkpoint."""
        contents, self.resumed = self.resumed, None
        return read(path) if contents is None else contents

    def remove_checkpoint(self, path: Any) -> None:
        """Delete a checkpoint."""
        Path(path).unlink(missing_ok=True)


class Checkpoints(L.Callback):
    """Saves `last.safetensors` and `step-<n>.ckpt`, also named `last.ckpt`, after every validation.

    Where the validation loss is the lowest so far, `best.safetensors` becomes a further name of that model. This comes
    last, for the `.ckpt` can make it again: a kill between two files loses neither the old best nor the new.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.over = False  # whether something other than the number of steps has ended the run, such as early stopping
        self.best_loss, self.best_step = math.inf, -1

    def state_dict(self) -> dict[str, Any]:
        """What is best so far, so that a resumed run does not take a worse model for it."""
        return {"best_loss": self.best_loss, "best_step": self.best_step, "over": self.over}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Remember what was best."""
        self.best_loss, self.best_step = state_dict["best_loss"], state_dict["best_step"]

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Save, and keep as best what has the lowest validation loss."""
        assert isinstance(pl_module, LitGPT) and pl_module.score is not None
        if trainer.sanity_checking:  # before the first step
            return
        best = pl_module.score.loss < self.best_loss
        if best:
            self.best_loss, self.best_step = pl_module.score.loss, trainer.global_step
        self.over = trainer.should_stop and trainer.global_step < trainer.max_steps
        self.save(trainer, best)

    def save(self, trainer: L.Trainer, best: bool = False) -> None:
        """Save the state after the step just taken; every process must call this."""
        for logger in trainer.loggers:
            logger.save()  # what was logged up to here is on disk before the step counts as done
        path = step_path(self.directory, trainer.global_step)
        trainer.save_checkpoint(path)
        if not trainer.is_global_zero:
            return
        link(path, self.directory / "last.ckpt")
        if best:
            link(self.directory / "last.safetensors", self.directory / "best.safetensors")
        remove_older(path)


def cut_events(run: Path, step: int) -> None:
    """Cut off what a killed process logged for TensorBoard after `step`, and records that are not whole.

    A record is its length (8 bytes), a checksum (4), so many bytes of an `Event`, and a checksum (4).
    """
    for file in run.glob("events.out.tfevents.*"):
        if file.is_symlink():
            continue
        with open(file, "r+b") as events:
            end, size = 0, os.fstat(events.fileno()).st_size
            while len(head := events.read(12)) == 12:
                (length,) = struct.unpack("<Q", head[:8])
                if events.tell() + length + 4 > size:
                    break
                try:
                    event = Event.FromString(events.read(length + 4)[:-4])
                except DecodeError:
                    break
                if event.step > step:
                    break
                end = events.tell()
            events.truncate(end)


class Stopped(Exception):
    """The program was asked to stop by a signal; what there was to save is saved."""

    def __init__(self, number: int, step: int | None = None) -> None:
        when = "" if step is None else f" after step {step}"
        super().__init__(f"stopped by {signal.Signals(number).name}{when}")
        self.number, self.step = number, step


class StopSignals(L.Callback):
    """On Ctrl-C, SIGTERM or SLURM's SIGUSR1: finish the step, save, leave. A further Ctrl-C leaves at once.

    Outside of training, where there is nothing to save, `Stopped` is raised where the program stands.
    """

    SIGNALS = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGUSR1") if hasattr(signal, name))

    def __init__(self, checkpoints: Checkpoints) -> None:
        self.checkpoints = checkpoints
        self.received: int | None = None
        self.training = False
        self.previous = {number: signal.signal(number, self._receive) for number in self.SIGNALS}

    def give_back(self) -> None:
        """Leave the signals to what handled them before."""
        for number, handler in self.previous.items():
            signal.signal(number, handler)

    def on_sanity_check_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """A validation before the first step is finished, too."""
        self.on_train_start(trainer, pl_module)

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """From here on finish steps; Lightning has set handlers of its own meanwhile, which it takes back."""
        for number in self.SIGNALS:
            signal.signal(number, self._receive)
        self.training = True

    def teardown(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        """There are no more steps."""
        self.training = False

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Stop here, unless a validation of this very step is to come, which saves by itself."""
        step = trainer.global_step
        validates = step % trainer.val_check_batch == 0 or step == trainer.max_steps  # type: ignore[operator]
        if not validates and self._asked(trainer):
            self.checkpoints.save(trainer)
            raise Stopped(self.received or signal.SIGTERM, step)

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Stop after the validation, with all of it on disk."""
        if trainer.global_step < trainer.max_steps and self._asked(trainer):
            raise Stopped(self.received or signal.SIGTERM, trainer.global_step)

    def _asked(self, trainer: L.Trainer) -> bool:
        """Whether any process was asked to stop; all processes agree on the answer."""
        if trainer.world_size == 1:
            return self.received is not None
        return trainer.strategy.reduce_boolean_decision(self.received is not None, all=False)

    def _receive(self, number: int, frame: Any) -> None:
        if not self.training:
            self.received = number
            raise Stopped(number)
        if self.received is not None and number == signal.SIGINT:
            os._exit(128 + number)
        self.received = number


class SameStart(L.Callback):
    """Ends a run at its start where its processes do not go on from the same: each must see the same files.

    Args:
        mine: what this process starts from, by name, as plain data.
        timeout: seconds after which, from here on, they give up one that is silent.
    """

    HERE = ("device", "threads")  # of a machine, and allowed to differ between machines

    def __init__(self, mine: dict[str, Any], timeout: float) -> None:
        self.timeout = timeout
        self.mine = {name: value for name, value in mine.items() if name not in self.HERE}

    def setup(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        """Compare, as soon as the processes can talk to each other.

        Raises:
            InputError: on every process, with the first difference.
        """
        if trainer.world_size == 1:
            return
        mesh = getattr(trainer.strategy, "device_mesh", None)  # of fsdp, with groups of its own
        for group in (None, *(mesh.get_all_groups() if mesh else ())):
            torch.distributed.distributed_c10d._set_pg_timeout(timedelta(seconds=self.timeout), group)
        everyone: list[Any] = [None] * trainer.world_size
        torch.distributed.all_gather_object(everyone, (platform.node(), self.mine))
        (first, wanted), *others = everyone
        for rank, (machine, found) in enumerate(others, start=1):
            for name in wanted:
                if found.get(name) != wanted[name]:
                    raise InputError(
                        f"{name}: rank {rank} on {machine} has {shown(found.get(name))}, rank 0 on {first} has "
                        f"{shown(wanted[name])}: all machines must see the same text and the same {RUNS}/"
                    )


def make_environment() -> ClusterEnvironment:
    """Where Lightning learns which process it is: from torchrun's variables, or it starts the others itself."""
    return TorchElasticEnvironment() if job.launched() else LightningEnvironment()


def make_strategy(strategy: str, devices: int) -> Any:
    """How so many devices work together."""
    if devices == 1:
        return "auto"
    return ShardedStrategy(devices, ARRIVAL) if strategy == "fsdp" else DDPStrategy(timeout=ARRIVAL)


def end_parent() -> None:
    """End the process that started this one, which has failed, unless it ends by itself: it may hang."""
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()  # whoever waits for this process is told
    parent, until = os.getppid(), time.monotonic() + GRACE
    while os.getppid() == parent and time.monotonic() < until:
        time.sleep(0.1)
    if os.getppid() == parent:
        os.kill(parent, signal.SIGKILL)


def is_lost_process(error: BaseException) -> bool:
    """Whether an error says that another process of this run has died or is silent."""
    words = ("Connection closed by peer", "Connection reset by peer", "Timed out", "timed out", "NCCL")
    return isinstance(error, RuntimeError) and any(word in str(error) for word in words)
