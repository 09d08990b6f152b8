"""On Ctrl-C, SIGTERM or SLURM's SIGUSR1: finish the step, save, leave."""

import os
import signal
from typing import Any

import lightning as L

from training.callbacks.checkpoints import Checkpoints
from training.errors import Stopped


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

    def __enter__(self) -> "StopSignals":
        """Handle signals until the context ends."""
        return self

    def __exit__(self, *_: object) -> None:
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
