"""The callback that ends a run within its time limit (`minutes=N`): it chooses the number of steps while training."""

import math
import time
from dataclasses import replace
from typing import Any

import lightning as L
import torch

from base import processes
from base.files import write_text
from base.jobs.run_directory import Run
from base.log import log
from base.progress import count
from conf.schema import to_yaml
from data.datamodule import ENDLESS
from training.callbacks.checkpoints import Checkpoints
from training.choosing.choose import fill
from training.choosing.rules import MAX_VALIDATIONS, MIN_VALIDATIONS
from training.module import LitGPT

TIMED_STEPS = 20  # least steps before the choice
# After the choice, the mean of a step is over this fraction of the steps left at least, so that
# some busy seconds count little.
WINDOW = 0.3
END_SECONDS = 2.0  # min seconds reserved to count n-grams, write samples and the report, and exit
# on a slow machine, this fraction of the seconds of importing PyTorch is reserved instead
END_SHARE = 0.5
# If the run would end later by more than this fraction of the time left, and by more than so many
# seconds, it is shortened.
LATE = 0.03
LATE_SECONDS = 0.5
VALIDATING = 0.05  # max fraction of the time for validations before the last one


def store_steps(run: Run, module: LitGPT, steps: int, interval: int) -> None:
    """Store the number of steps in the configuration and, unless it is set, the interval of validations."""
    trainer = fill(module.config.trainer, val_check_interval=interval)
    module.config = replace(module.config, trainer=replace(trainer, max_steps=steps))
    write_text(run.config, to_yaml(module.config))


class Deadline(L.Callback):
    """Chooses the number of steps of a run with a time limit when its learning rate must begin to fall (cooldown).

    The choice can wait until the cooldown, because the learning rates of a trapezoid schedule do
    not depend on the number of steps before. If k steps are done and r more fit into the remaining
    time, the cooldown is due as soon as k >= (1 - cooldown) (k + r). The run then has k / (1 -
    cooldown) steps in all, so that it trains like a run whose number of steps was set at the
    start. If the machine becomes slower later, the number is lowered, and the learning rate falls
    faster.
    """

    def __init__(
        self, run: Run, module: LitGPT, steps_needed: float, checkpoints: Checkpoints
    ) -> None:
        config = module.config
        self.run = run
        self.checkpoints = checkpoints
        self.cooldown = config.optim.cooldown
        # as `time.perf_counter()` returns it; the history has the seconds of earlier processes
        self.ends_at = processes.BEGAN + 60 * (config.minutes or 0) - module.history.seconds
        self.end_seconds = max(END_SECONDS, END_SHARE * module.machine.import_seconds)
        self.steps_needed = steps_needed
        self.chooses_interval = config.trainer.val_check_interval == "auto"
        # the time of evaluating a token in the last validation, as a fraction of that of a step
        self.evaluating = 0.0
        self.begin_timing()

    def begin_timing(self) -> None:
        """Time the steps after the next one, which is slow, because it is the first or contains other work."""
        self.began: Any = None  # step and time
        self.seconds_in_steps = 0.0  # sum of all steps since `began`
        # the number of recent steps and their seconds: since `began`, or since the choice
        self.timed, self.timed_seconds = 0, 0.0

    def on_validation_start(self, *_: Any) -> None:
        self.validation_began = time.perf_counter()

    def on_validation_end(self, trainer: Any, *_: Any) -> None:
        seconds = time.perf_counter() - self.validation_began
        if self.timed:
            step_seconds = self._per_step(trainer)
            self.evaluating = seconds / trainer.datamodule.num_validated / step_seconds

    def on_train_batch_start(self, *_: Any) -> None:
        self.step_began = time.perf_counter()

    def on_train_batch_end(self, trainer: L.Trainer, pl_module: Any, *_: Any) -> None:
        """Choose the number of steps if the cooldown is due, or again if the speed of the machine has changed."""
        now = time.perf_counter()
        if self.began is None:
            self.began = trainer.global_step, now
        else:
            seconds = now - self.step_began
            self.seconds_in_steps += seconds
            self.timed += 1
            self.timed_seconds += seconds
        if self.chooses_interval and trainer.max_steps < 0:
            # Lightning validates after each step whose number is a multiple of `val_check_batch`.
            since = trainer.global_step - pl_module.history.validated_step
            validates = self.timed and since >= self._interval(trainer, self.fitting(trainer))
            trainer.val_check_batch = 1 if validates else ENDLESS
        is_due = self._is_due(trainer)
        if is_due and pl_module.asynchronous:
            torch.cuda.synchronize(pl_module.device)  # wait for the steps that are still queued
            is_due = self._is_due(trainer)
        if is_due:
            self._choose(trainer)

    def _choose(self, trainer: Any) -> None:
        """Set the number of steps, and with it the steps at which the run validates, which a resumed run repeats."""
        step = trainer.global_step
        steps = self.fitting(trainer)
        why = "the machine has become slower"
        is_first = trainer.max_steps < 0
        if is_first:
            why = f"the learning rate falls from step {step:,} on"
            if self._seconds_left() > 0 and self.cooldown < 1:
                steps = math.ceil(step / (1 - self.cooldown))
            self.steps_needed = math.inf  # from here on, only the time shortens the run
        trainer.fit_loop.epoch_loop.max_steps = steps  # which `trainer.max_steps` returns
        trainer.should_stop = steps == step
        # Only once, because validations at multiples of a later interval would be uneven. `_interval`
        # reads `max_steps`.
        if self.chooses_interval and is_first:
            # The last multiple before the end would otherwise be anywhere, even just before it.
            num_intervals = math.ceil(steps / self._interval(trainer, steps))
            trainer.val_check_batch = math.ceil(steps / num_intervals)
        # so that the same pause does not change the number twice
        self.timed, self.timed_seconds = 0, 0.0
        self.save(trainer.lightning_module, steps, trainer.val_check_batch)
        log.info(f"minutes    {count(steps, 'step')} in all: {why}")

    def save(self, module: Any, steps: int, interval: int) -> None:
        """Store the choice, and save after this step, so that a resumed run begins with the choice."""
        store_steps(self.run, module, steps, interval)
        self.checkpoints.due_at = 0.0  # `Checkpoints`, which is called later, saves at once

    def _is_due(self, trainer: L.Trainer) -> bool:
        """Return whether to choose the number of steps after this step, for the first time or again."""
        step = trainer.global_step
        left = self._seconds_left()
        if trainer.max_steps < 0:  # it has not been chosen yet
            is_cooldown = step >= (1 - self.cooldown) * self.fitting(trainer)
            return left <= 0 or (is_cooldown and self.timed >= TIMED_STEPS)
        if self.timed < max(1, WINDOW * (trainer.max_steps - step)):
            return False
        late = (trainer.max_steps - self.fitting(trainer)) * self._per_step(trainer)
        return late > max(LATE_SECONDS, LATE * left)

    def _interval(self, trainer: Any, steps: int) -> int:
        """Return the steps between two validations.

        There is one a minute, within the limits for their number, unless they would take more of
        the time than `VALIDATING`.
        """
        if not self.timed:  # the time is over after the first step
            return steps
        minutes = steps * self._per_step(trainer) / 60
        validations = min(MAX_VALIDATIONS, max(MIN_VALIDATIONS, minutes))
        shortest = trainer.datamodule.num_validated * self.evaluating / VALIDATING
        return max(1, math.ceil(steps / validations), int(shortest))

    def _seconds_left(self) -> float:
        return self.ends_at - time.perf_counter() - self.end_seconds

    def _per_step(self, trainer: Any) -> float:
        """Return the expected seconds of a coming step, with its share of the validations."""
        first_step, first_ended = self.began
        steps = trainer.global_step - first_step
        seconds = time.perf_counter() - first_ended
        # After the choice, only the last steps are timed, because the machine may have become slower.
        between_steps = (seconds - self.seconds_in_steps) / steps  # such as validations
        return self.timed_seconds / self.timed + between_steps

    def fitting(self, trainer: Any) -> int:
        """Return an estimate of the steps of the whole run: those that fit into its time limit, or that it needs."""
        step = trainer.global_step
        if not self.timed:
            return step
        per_step = self._per_step(trainer)
        data = trainer.datamodule
        left = self._seconds_left()
        steps = left / per_step
        # The evaluation at the end grows with the steps, so each round comes nearer.
        for _ in range(3):
            tokens = data.num_validated
            evaluated = data.num_evaluated(step + max(0, int(steps)))
            if evaluated > data.num_validated:  # otherwise the last validation is the evaluation
                tokens += evaluated
            steps = left / per_step - tokens * self.evaluating
        return step + max(0, int(min(steps, self.steps_needed - step)))
