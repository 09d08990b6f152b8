"""Stop a run by a signal between two steps."""

import os
import signal
from typing import Any

import lightning as L

from training.callbacks.checkpoints import Checkpoints
from training.errors import Stopped
from training.lightning_private import validation_interval


class StopSignals(L.Callback):
    """On Ctrl-C, SIGTERM or SLURM's SIGUSR1: finish the step, save, raise `Stopped`. A second Ctrl-C exits at once.

    Outside of training, where there is nothing to save, the handler itself raises `Stopped`.
    """

    SIGNALS = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGUSR1") if hasattr(signal, name))

    def __init__(self, checkpoints: Checkpoints) -> None:
        self.checkpoints = checkpoints
        self.received: int | None = None
        self.training = False

    def __enter__(self) -> "StopSignals":
        self.previous = {number: signal.signal(number, self._receive) for number in self.SIGNALS}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self.previous.items():
            signal.signal(number, handler)

    def on_sanity_check_start(self, *_: Any) -> None:
        self.on_train_start()

    def on_train_start(self, *_: Any) -> None:
        """Replace the handlers that Lightning has set in between; it restores its own."""
        for number in self.SIGNALS:
            signal.signal(number, self._receive)
        self.training = True

    def teardown(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        self.training = False

    def on_train_batch_end(self, trainer: L.Trainer, *_: Any) -> None:
        """Save and stop, unless a validation follows this step, after which `Checkpoints` saves."""
        step = trainer.global_step
        validates = step % validation_interval(trainer) == 0 or step == trainer.max_steps
        if not validates and self._asked(trainer):
            self.checkpoints.save(trainer)
            raise Stopped(self.received or signal.SIGTERM, step)

    def on_validation_end(self, trainer: L.Trainer, *_: Any) -> None:
        if trainer.global_step < trainer.max_steps and self._asked(trainer):
            raise Stopped(self.received or signal.SIGTERM, trainer.global_step)

    def _asked(self, trainer: L.Trainer) -> bool:
        """Whether any rank was asked to stop; the same answer on all."""
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
