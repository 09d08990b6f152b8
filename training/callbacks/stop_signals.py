"""Save between two steps when a checkpoint is due, and stop there after a signal."""

import os
import signal
from typing import Any

import lightning as L

from training.callbacks.checkpoints import Checkpoints
from training.errors import Stopped
from training.lightning_private import validation_interval
from training.module import LitGPT


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

    def on_train_batch_end(self, trainer: L.Trainer, pl_module: L.LightningModule, *_: Any) -> None:
        """Save if asked or due, and stop if asked, unless a validation follows, after which `Checkpoints` saves."""
        assert isinstance(pl_module, LitGPT)
        step = trainer.global_step
        if step % validation_interval(trainer) == 0 or step == trainer.max_steps:
            return
        # One reduction per step for both questions; the second is asked only where a checkpoint was saved.
        if self._any_rank(trainer, self.received is not None or self.checkpoints.due):
            self.checkpoints.save(trainer)
            pl_module.end_pause()
            self._stop_if_asked(trainer)

    def on_validation_end(self, trainer: L.Trainer, *_: Any) -> None:
        if trainer.global_step < trainer.max_steps:
            self._stop_if_asked(trainer)

    def _stop_if_asked(self, trainer: L.Trainer) -> None:
        if self._any_rank(trainer, self.received is not None):
            raise Stopped(self.received or signal.SIGTERM, trainer.global_step)

    def _any_rank(self, trainer: L.Trainer, decision: bool) -> bool:
        """Whether any rank decides so; the same answer on all."""
        return decision if trainer.world_size == 1 else trainer.strategy.reduce_boolean_decision(decision, all=False)

    def _receive(self, number: int, frame: Any) -> None:
        if not self.training:
            self.received = number
            raise Stopped(number)
        if self.received is not None and number == signal.SIGINT:
            os._exit(128 + number)
        self.received = number
