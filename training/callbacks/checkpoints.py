"""The callbacks that save checkpoints, stop a run after a signal and, with `callbacks=snapshots`, keep every model."""

import math
import signal
import time
from pathlib import Path
from typing import Any

import lightning as L
from lightning.pytorch.plugins import TorchCheckpointIO

from gpt.checkpoint import save_training_checkpoint, write_model
from training.errors import Signals, Stopped
from training.resume import ResumePoint

FIRST_SECONDS = 60.0  # max seconds of training before the first checkpoint
LAST = "last.ckpt"
PREVIOUS = "previous.ckpt"


def any_rank(trainer: L.Trainer, decision: bool) -> bool:
    """Return whether `decision` is true in any process (rank).

    All processes must call this function, because it is a reduction.
    """
    if trainer.world_size == 1:
        return decision
    return trainer.strategy.reduce_boolean_decision(decision, all=False)


class Checkpoints(L.Callback):
    """Saves the checkpoint `last.ckpt` after every validation, and renames the old `last.ckpt` to `previous.ckpt`.

    A checkpoint is also saved after a step if the last save was `checkpoint_minutes` ago, or if a
    process (rank) has received a signal. Several GPUs decide together whether to save, but only
    after steps whose losses have been fetched, which happens at least every `MAX_PENDING` steps.
    If the validation loss is the lowest so far, `AtomicCheckpointIO` also writes the model to
    `best.safetensors`. After a signal, `Stopped` is raised when the step or the validation is saved.
    """

    def __init__(self, directory: Path, minutes: float, signals: Signals) -> None:
        self.directory = directory
        self.signals = signals
        self.seconds = 60 * minutes  # between two saves
        self.due_at = math.inf  # time.monotonic() of the next save, known when training starts

    def on_train_start(self, *_: Any, **__: Any) -> None:
        self.signals.catch()  # a second time, because Lightning has replaced the handlers
        self.signals.training = True
        self.due_at = time.monotonic() + min(FIRST_SECONDS, self.seconds)

    on_sanity_check_start = on_train_start

    def teardown(self, *_: Any, **__: Any) -> None:
        self.signals.training = False

    def on_train_batch_end(self, trainer: L.Trainer, pl_module: Any, *_: Any) -> None:
        step = trainer.global_step
        if step % trainer.val_check_batch == 0 or step == trainer.max_steps:  # type: ignore[operator]
            return  # a validation follows and saves
        if trainer.world_size > 1 and pl_module.pending_losses:
            return  # a GPU still computes these steps, and a reduction would wait for them
        # A single reduction: `stop_if_asked` makes another only after a save.
        if any_rank(trainer, self.signals.received is not None or time.monotonic() >= self.due_at):
            self.save(trainer)
            self.stop_if_asked(trainer)

    def on_validation_end(self, trainer: L.Trainer, pl_module: Any) -> None:
        is_last = trainer.global_step == trainer.max_steps
        if not trainer.sanity_checking:  # not before the first step
            # A callback such as EarlyStopping has ended the run; after the last step, `Metrics` does.
            pl_module.history.stopped_early = trainer.should_stop and not is_last
            self.save(trainer)
        if not is_last:  # after the last step, `train` raises `Stopped`
            self.stop_if_asked(trainer)

    def stop_if_asked(self, trainer: L.Trainer) -> None:
        """Raise `Stopped` if any process (rank) has received a signal. All processes must call this method."""
        if any_rank(trainer, self.signals.received is not None):
            # None: only another rank has received one, and it is not known which
            raise Stopped(self.signals.received or signal.SIGTERM, trainer.global_step)

    def save(self, trainer: L.Trainer) -> None:
        """Save a checkpoint after the latest step. All processes (ranks) must call this method."""
        for logger in trainer.loggers:
            logger.save()  # flush the events of these steps before the checkpoint that counts them
        trainer.save_checkpoint(self.directory / LAST)
        self.due_at = time.monotonic() + self.seconds
        # the save is not part of the time of a step
        trainer.lightning_module.history.begin_step()  # type: ignore[union-attr, operator]


class Snapshots(L.Callback):
    """At each validation, writes the evaluated weights to `checkpoints/step-N.safetensors`, where N is the step.

    If another callback averages the weights, the module contains the average only during
    validation. So `Snapshots` copies the weights before the first validation batch and writes them
    when the validation has ended. `Checkpoints` saves after `Snapshots`, so if a run is killed
    between the two, the resumed run repeats the validation and writes the same file.
    """

    def __init__(self) -> None:
        self.weights: dict[str, Any] = {}

    def on_validation_batch_start(self, trainer: L.Trainer, pl_module: Any, *_: Any) -> None:
        if trainer.is_global_zero and not self.weights and not trainer.sanity_checking:
            self.weights = {
                name: weight.cpu().clone() for name, weight in pl_module.state_dict().items()
            }

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        if not self.weights:
            return
        (folder,) = [
            callback.directory
            for callback in trainer.callbacks
            if isinstance(callback, Checkpoints)
        ]
        contents = {"state_dict": self.weights, "global_step": trainer.global_step}
        pl_module.on_save_checkpoint(contents)  # adds the description of the model
        write_model(folder / f"step-{trainer.global_step}.safetensors", contents)
        self.weights = {}


class AtomicCheckpointIO(TorchCheckpointIO):
    """Lightning's `CheckpointIO` for our checkpoint format, which `gpt.checkpoint` reads and writes.

    A file is written atomically and flushed to the disk, which Lightning's own writer does not do.
    Reading a file executes no code from the file.
    """

    def __init__(self, resumed: ResumePoint | None) -> None:
        self.resumed = resumed  # the checkpoint to continue from, already read
        # If last.ckpt is damaged, it must not replace previous.ckpt.
        self.last_is_damaged = resumed is not None and resumed.path.name == PREVIOUS

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None
    ) -> None:
        """Write a checkpoint, and before it the model best.safetensors if the validation loss is the lowest so far.

        If the process is killed between the two writes, the resumed run repeats the validation.
        """
        if checkpoint["history"]["best_step"] == checkpoint["global_step"]:
            write_model(Path(path).with_name("best.safetensors"), checkpoint)
        previous = None if self.last_is_damaged else Path(path).with_name(PREVIOUS)
        save_training_checkpoint(path, checkpoint, previous)
        self.last_is_damaged = False

    def load_checkpoint(self, *_: Any, **__: Any) -> dict[str, Any]:
        """Return the checkpoint of the run to resume, which `newest_checkpoint` has read."""
        assert self.resumed
        return self.resumed.take()
