"""Save a checkpoint after every validation and at intervals of time, and the best model."""

import math
import time
from pathlib import Path
from typing import Any

import lightning as L

from base.files import link
from training.callbacks.stop_signals import StopSignals, any_rank
from training.checkpoint_files import remove_older, step_path
from training.lightning_private import validation_interval
from training.module import LitGPT

FIRST_SECONDS = 60.0  # seconds of training until the first checkpoint is due


class Checkpoints(L.Callback):
    """Save `last.safetensors` and `step-<n>.ckpt`, also named `last.ckpt`, after every validation.

    After other steps it saves where a checkpoint is due or `stops` has had a signal, on any rank.

    At the lowest validation loss so far, `best.safetensors` is hard-linked to that model. The link is made last: it can
    be made again from the `.ckpt`, so a kill between two files loses neither the old best model nor the new one.

    Args:
        directory: of the files.
        seconds: after a checkpoint until the next is due.
        stops: end the run between two steps.
    """

    def __init__(self, directory: Path, seconds: float, stops: StopSignals) -> None:
        self.directory, self.seconds, self.stops = directory, seconds, stops
        self.due_at = math.inf
        self.over = False  # whether something other than max_steps, such as early stopping, has ended the run
        self.best_loss, self.best_step = math.inf, -1

    def state_dict(self) -> dict[str, Any]:
        return {"best_loss": self.best_loss, "best_step": self.best_step, "over": self.over}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.best_loss, self.best_step = state_dict["best_loss"], state_dict["best_step"]

    def on_train_start(self, *_: Any) -> None:
        self.due_at = time.monotonic() + min(FIRST_SECONDS, self.seconds)

    def on_train_batch_end(self, trainer: L.Trainer, pl_module: L.LightningModule, *_: Any) -> None:
        """Save if asked or due, and stop if asked, unless a validation follows, which saves anyway."""
        assert isinstance(pl_module, LitGPT)
        step = trainer.global_step
        if step % validation_interval(trainer) == 0 or step == trainer.max_steps:
            return
        # One reduction per step for both questions; the second is asked only where a checkpoint was saved.
        if any_rank(trainer, self.stops.received is not None or time.monotonic() >= self.due_at):
            self.save(trainer)
            pl_module.end_pause()
            self.stops.stop_if_asked(trainer)

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        assert isinstance(pl_module, LitGPT) and pl_module.score is not None
        if trainer.sanity_checking:  # before the first step
            return
        best = pl_module.score.loss < self.best_loss
        if best:
            self.best_loss, self.best_step = pl_module.score.loss, trainer.global_step
        self.over = trainer.should_stop and trainer.global_step < trainer.max_steps
        self.save(trainer, best)

    def save(self, trainer: L.Trainer, best: bool = False) -> None:
        """Save the state after the step just taken; all ranks must call this."""
        for logger in trainer.loggers:
            logger.save()  # flush the events of these steps before a checkpoint says that they are done
        path = step_path(self.directory, trainer.global_step)
        trainer.save_checkpoint(path)
        self.due_at = time.monotonic() + self.seconds
        if not trainer.is_global_zero:
            return
        link(path, self.directory / "last.ckpt")
        if best:
            link(self.directory / "last.safetensors", self.directory / "best.safetensors")
        remove_older(path)
