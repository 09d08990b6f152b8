"""What keeps a run from losing anything: checkpoints, and stops between two steps."""

import math
import os
import signal
from pathlib import Path
from typing import Any

import lightning as L
from lightning.fabric.plugins.io.checkpoint_io import CheckpointIO

from gpt.checkpoint import link, read, save
from gpt.fit.module import LitGPT

KEEP = 2  # step-*.ckpt files beside best and last


class AtomicCheckpointIO(CheckpointIO):
    """Lets Lightning read and write through `gpt.checkpoint`: whole files only, no code run on loading."""

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None) -> None:
        """Write `checkpoint` so that `path` is always a whole file."""
        save(path, checkpoint)

    def load_checkpoint(self, path: Any, map_location: Any = None, weights_only: bool | None = None) -> dict[str, Any]:
        """Read and verify a checkpoint."""
        return read(path)

    def remove_checkpoint(self, path: Any) -> None:
        """Delete a checkpoint."""
        Path(path).unlink(missing_ok=True)


class Checkpoints(L.Callback):
    """Saves `step-<n>.ckpt` after every validation; `last.ckpt` and `best.ckpt` are further names of such files.

    Args:
        directory: where they go.
    """

    def __init__(self, directory: Path) -> None:
        """Nothing is best yet."""
        self.directory = directory
        self.best_loss, self.best_step = math.inf, -1

    def state_dict(self) -> dict[str, Any]:
        """What is best so far, so that a resumed run does not take a worse model for it."""
        return {"best_loss": self.best_loss, "best_step": self.best_step}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Remember what was best."""
        self.best_loss, self.best_step = state_dict["best_loss"], state_dict["best_step"]

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Save, and keep as best what has the lowest validation loss."""
        assert isinstance(pl_module, LitGPT) and pl_module.score is not None
        best = pl_module.score.loss < self.best_loss
        if best:
            self.best_loss, self.best_step = pl_module.score.loss, trainer.global_step
        self.save(trainer, best)

    def save(self, trainer: L.Trainer, best: bool = False) -> None:
        """Save the state after the step just taken; every process must call this."""
        for logger in trainer.loggers:
            logger.save()  # what was logged up to here is on disk before the step counts as done
        path = self.directory / f"step-{trainer.global_step:08d}.ckpt"
        trainer.save_checkpoint(path)
        if not trainer.is_global_zero:
            return
        link(path, self.directory / "last.ckpt")
        if best:
            link(path, self.directory / "best.ckpt")
        for old in sorted(self.directory.glob("step-*.ckpt"))[:-KEEP]:
            old.unlink()


class Stopped(Exception):
    """Training was asked to stop by a signal and has saved its state."""

    def __init__(self, number: int, step: int) -> None:
        """Remember the signal and the step."""
        super().__init__(f"stopped by {signal.Signals(number).name} after step {step}")
        self.number, self.step = number, step


class StopSignals(L.Callback):
    """On Ctrl-C or SIGTERM: finish the step, save, leave. A second Ctrl-C leaves at once.

    Args:
        checkpoints: what saves.
    """

    SIGNALS = (signal.SIGINT, signal.SIGTERM)

    def __init__(self, checkpoints: Checkpoints) -> None:
        """No signal has come yet."""
        self.checkpoints = checkpoints
        self.received: int | None = None
        self.previous: dict[int, Any] = {}

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Take over the signals, after Lightning has set its own handlers."""
        self.previous = {number: signal.signal(number, self._receive) for number in self.SIGNALS}

    def teardown(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        """Give the signals back."""
        for number, handler in self.previous.items():
            signal.signal(number, handler)

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
        if self.received == number == signal.SIGINT:
            os._exit(130)
        self.received = number
