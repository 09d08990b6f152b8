"""Save after every validation; keep the best model."""

import math
from pathlib import Path
from typing import Any

import lightning as L

from base.files import link
from training.checkpoint_files import remove_older, step_path
from training.module import LitGPT


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
