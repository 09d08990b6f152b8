"""Save a checkpoint after every validation and at time intervals, and the best model."""

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

FIRST_SECONDS = 60.0  # max seconds of training before the first checkpoint


class Checkpoints(L.Callback):
    """Save `last.safetensors` and `step-<n>.ckpt`, and link `last.ckpt` to the latter, after every validation.

    Also save after a step when the last checkpoint is `seconds` old or a rank has received a signal.

    At the lowest validation loss so far, link `best.safetensors` to that model. The link comes last because a resumed
    run can restore it from the `.ckpt`: a kill between two files loses neither the old nor the new best model.
    """

    def __init__(self, directory: Path, seconds: float, stops: StopSignals) -> None:
        self.directory, self.seconds, self.stops = directory, seconds, stops
        self.due_at = math.inf
        self.over = False  # whether the run ended before max_steps, such as by early stopping
        self.best_loss, self.best_step = math.inf, -1

    def state_dict(self) -> dict[str, Any]:
        return {"best_loss": self.best_loss, "best_step": self.best_step, "over": self.over}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.best_loss, self.best_step = state_dict["best_loss"], state_dict["best_step"]

    def on_train_start(self, *_: Any) -> None:
        self.due_at = time.monotonic() + min(FIRST_SECONDS, self.seconds)

    def on_train_batch_end(self, trainer: L.Trainer, pl_module: L.LightningModule, *_: Any) -> None:
        assert isinstance(pl_module, LitGPT)
        step = trainer.global_step
        if step % validation_interval(trainer) == 0 or step == trainer.max_steps:
            return  # a validation follows and saves
        # A single reduction per step: `stop_if_asked` makes another only after a save.
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
            logger.save()  # flush the events of these steps before the checkpoint that counts them
        path = step_path(self.directory, trainer.global_step)
        trainer.save_checkpoint(path)
        self.due_at = time.monotonic() + self.seconds
        if not trainer.is_global_zero:
            return
        link(path, self.directory / "last.ckpt")
        if best:
            link(self.directory / "last.safetensors", self.directory / "best.safetensors")
        remove_older(path)
