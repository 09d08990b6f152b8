"""The callback that stops a run between two steps after a signal, such as Ctrl-C."""

import os
import signal
from typing import Any

import lightning as L

from base.jobs.slurm import STOPS
from training.errors import Stopped


def any_rank(trainer: L.Trainer, decision: bool) -> bool:
    """Return whether `decision` is true in any process (rank).

    All processes must call this function, because it is a reduction.
    """
    if trainer.world_size == 1:
        return decision
    return trainer.strategy.reduce_boolean_decision(decision, all=False)


class StopSignals(L.Callback):
    """Ends the run after Ctrl-C, SIGTERM or SLURM's SIGUSR1: the step is finished and saved, then `Stopped` is raised.

    After a step, the callback `Checkpoints` saves and calls `stop_if_asked`, which raises
    `Stopped`. After a validation, `on_validation_end` calls `stop_if_asked`. Before and after
    training there is nothing to save, so the signal handler itself raises `Stopped`. A second
    Ctrl-C during training exits at once.
    """

    def __init__(self) -> None:
        self.received: int | None = None
        self.training = False  # also during the validation before the first step

    def __enter__(self) -> "StopSignals":
        self.previous = {number: signal.signal(number, self._receive) for number in STOPS}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self.previous.items():
            signal.signal(number, handler)

    def on_train_start(self, *_: Any, **__: Any) -> None:
        """Install the signal handlers of `__enter__` again, because Lightning has replaced them."""
        for number in STOPS:
            signal.signal(number, self._receive)
        self.training = True

    on_sanity_check_start = on_train_start

    def teardown(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        self.training = False

    def on_validation_end(self, trainer: L.Trainer, *_: Any) -> None:
        if trainer.global_step != trainer.max_steps:  # after the last step, `fit` raises `Stopped`
            self.stop_if_asked(trainer)

    def stop_if_asked(self, trainer: L.Trainer) -> None:
        """Raise `Stopped` if any process (rank) has received a signal. All processes must call this method."""
        if any_rank(trainer, self.received is not None):
            # None: only another rank has received one, and it is not known which
            raise Stopped(self.received or signal.SIGTERM, trainer.global_step)

    def _receive(self, number: int, frame: Any) -> None:
        if not self.training:
            self.received = number
            raise Stopped(number)
        if self.received is not None and number == signal.SIGINT:
            os._exit(128 + number)  # do not wait for the save
        self.received = number
