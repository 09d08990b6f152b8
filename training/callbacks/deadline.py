"""The callback that ends a run within its time limit (`minutes=N`): it chooses the number of steps while training."""

import math
import time
from bisect import bisect_right
from collections import deque
from dataclasses import replace
from typing import Any

import lightning as L
import torch

from base import processes
from base.files import write_text
from base.jobs.run_directory import Run
from base.log import log
from base.progress import count
from conf.schema import Config, to_yaml
from data.datamodule import ENDLESS
from reports.history import History
from training.callbacks.checkpoints import Checkpoints
from training.choosing.choose import MAX_VALIDATIONS, MIN_VALIDATIONS
from training.module import LitGPT

TIMED_STEPS = 20  # min recent steps whose mean is the time of a step
# After the choice, that mean is over this fraction of the steps left, so that some busy seconds
# count little.
WINDOW = 0.3
END_SECONDS = 2.0  # min seconds reserved to count n-grams, write samples and the report, and exit
# on a slow machine, this fraction of the seconds of importing PyTorch is reserved instead
END_SHARE = 0.5
# If the run would end earlier or later by more than this fraction of its time, and by more than so
# many seconds, the number is chosen again.
OFF = 0.05
OFF_SECONDS = 2.0
VALIDATING = 0.05  # max fraction of the time for validations before the last one
EVALUATING = 0.5  # seconds of evaluating a token, as a fraction of those of training with it


def with_steps(config: Config, steps: int, interval: int) -> Config:
    """Return `config` with the number of steps and, unless it is set, the interval of validations."""
    if config.trainer.val_check_interval != "auto":
        interval = config.trainer.val_check_interval
    trainer = replace(config.trainer, max_steps=steps, val_check_interval=interval)
    return replace(config, trainer=trainer)


def ended_by_callback(config: Config, step: int, history: History) -> Config:
    """Return the configuration of a run that ended before the choice: the steps taken, with as many validations."""
    return with_steps(config, step, math.ceil(step / max(1, history.validations.seen)))


class Deadline(L.Callback):
    """Chooses the number of steps of a run with a time limit when its learning rate must begin to fall (cooldown).

    The choice can wait until the cooldown, because the learning rates of a trapezoid schedule do
    not depend on the number of steps before. If k steps are done and r more fit into the remaining
    time, the cooldown is due as soon as k >= (1 - cooldown) (k + r). The run then has k / (1 -
    cooldown) steps in all, so that it trains like a run whose number of steps was set at the
    start, even if the machine has just paused. If the machine becomes slower later, the number is
    lowered and the learning rate falls faster; if it becomes faster, the number is raised, but
    never above the steps that the text needs.
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
        self.recent = deque[float](maxlen=TIMED_STEPS)  # seconds of the last steps
        self.seconds_per_token: float | None = None  # of the last validation
        self.begin_timing()

    def begin_timing(self) -> None:
        """Time the steps after the next one, which is slow, because it is the first or contains other work."""
        self.began: tuple[int, float] | None = None  # step and time
        self.recent.clear()
        self.seconds_in_steps = 0.0  # sum of all steps since `began`

    def on_validation_start(self, *_: Any) -> None:
        self.validation_began = time.perf_counter()

    def on_validation_end(self, trainer: Any, *_: Any) -> None:
        seconds = time.perf_counter() - self.validation_began
        self.seconds_per_token = seconds / trainer.datamodule.num_validated

    def on_train_batch_start(self, *_: Any) -> None:
        self.step_began = time.perf_counter()

    def on_train_batch_end(self, trainer: L.Trainer, pl_module: Any, *_: Any) -> None:
        """Choose the number of steps if the cooldown is due, or again if the speed of the machine has changed."""
        now = time.perf_counter()
        if self.began is None:
            self.began = trainer.global_step, now
        else:
            self.recent.append(now - self.step_began)
            self.seconds_in_steps += now - self.step_began
        if self.chooses_interval and trainer.max_steps < 0:
            # Lightning validates after each step whose number is a multiple of `val_check_batch`.
            trainer.val_check_batch = 1 if self._validation_is_due(trainer, pl_module) else ENDLESS
        if not self._is_due(trainer):
            return
        if pl_module.asynchronous:  # wait for the steps that are still queued on the GPU
            torch.cuda.synchronize(pl_module.device)
            if not self._is_due(trainer):
                return
        self._choose(trainer)

    def _choose(self, trainer: Any) -> None:
        """Set the number of steps, and with it the steps at which the run validates, which a resumed run repeats."""
        step = trainer.global_step
        steps_before = trainer.max_steps
        steps = self.fitting(trainer)
        if steps_before < 0:
            why = f"the learning rate falls from step {step:,} on"
            # The cooldown is then its full fraction of the steps, even after a recent pause.
            if self._seconds_left() > 0 and self.cooldown < 1:
                steps = max(steps, math.ceil(step / (1 - self.cooldown)))
        else:
            why = f"the machine has become {'slower' if steps < steps_before else 'faster'}"
        trainer.fit_loop.epoch_loop.max_steps = steps  # which `trainer.max_steps` returns
        trainer.should_stop = steps == step
        # Only once, because validations at multiples of a later interval would be uneven. `_interval`
        # reads `max_steps` and `recent`.
        if self.chooses_interval and steps_before < 0:
            # The last multiple before the end would otherwise be anywhere, even just before it.
            num_intervals = math.ceil(steps / self._interval(trainer, steps))
            trainer.val_check_batch = math.ceil(steps / num_intervals)
        # Timing starts anew, so that the same pause does not change the number twice.
        self.recent = deque(maxlen=max(TIMED_STEPS, int(WINDOW * (steps - step))))
        self.save(trainer.lightning_module, steps, trainer.val_check_batch)
        log.info(f"minutes    {count(steps, 'step')} in all: {why}")

    def on_train_end(self, trainer: L.Trainer, pl_module: Any) -> None:
        if trainer.max_steps < 0:  # another callback has ended the run before the choice
            pl_module.config = ended_by_callback(
                pl_module.config, trainer.global_step, pl_module.history
            )
            write_text(self.run.config, to_yaml(pl_module.config))

    def save(self, module: Any, steps: int, interval: int) -> None:
        """Store the choice, and save after this step, so that a resumed run begins with the choice."""
        module.config = with_steps(module.config, steps, interval)
        write_text(self.run.config, to_yaml(module.config))
        self.checkpoints.due_at = 0.0  # `Checkpoints`, which is called later, saves at once

    def _is_due(self, trainer: L.Trainer) -> bool:
        """Return whether to choose the number of steps after this step, for the first time or again."""
        step = trainer.global_step
        is_timed = len(self.recent) == self.recent.maxlen
        if trainer.max_steps < 0:  # it has not been chosen yet
            is_due = is_timed and step >= (1 - self.cooldown) * self.fitting(trainer)
            return is_due or self._seconds_left() <= 0
        if not is_timed or step == trainer.max_steps:
            return False
        # by how much the run would end too early
        seconds_off = (self.fitting(trainer) - trainer.max_steps) * self._per_step(trainer)
        seconds_in_all = self.ends_at - processes.BEGAN  # of this process
        return abs(seconds_off) > max(OFF_SECONDS, OFF * seconds_in_all)

    def _validation_is_due(self, trainer: L.Trainer, module: Any) -> bool:
        """Return whether to validate after this step, before the number of steps has been chosen."""
        if not self.recent:
            return False
        interval = self._interval(trainer, self.fitting(trainer))
        return trainer.global_step - module.history.validated_step >= interval

    def _interval(self, trainer: Any, steps: int) -> int:
        """Return the steps between two validations, half of which come while the learning rate falls.

        There is one a minute, within the limits for their number, unless they would take more of
        the time than `VALIDATING`.
        """
        if not self.recent:  # the time is over after the first step
            return steps
        # The steps before the learning rate falls, or those after, as a fraction of all: each
        # phase has half of the validations.
        phase = 1 - self.cooldown if trainer.max_steps < 0 else self.cooldown
        minutes = steps * self._per_step(trainer) / 60
        validations = min(MAX_VALIDATIONS, max(MIN_VALIDATIONS, minutes))
        interval = phase * steps / (validations / 2)
        validation_seconds = trainer.datamodule.num_validated * self._seconds_per_token(trainer)
        shortest = validation_seconds / (VALIDATING * self._per_step(trainer))
        return max(1, math.ceil(interval), int(shortest))

    def _seconds_per_token(self, trainer: Any) -> float:
        """Return the expected seconds per token of a validation."""
        if self.seconds_per_token is not None:
            return self.seconds_per_token
        return EVALUATING * self._per_step(trainer) / trainer.datamodule.tokens_per_step

    def _seconds_left(self) -> float:
        return self.ends_at - time.perf_counter() - self.end_seconds

    def _per_step(self, trainer: Any) -> float:
        """Return the expected seconds of a coming step, with its share of the validations."""
        assert self.began
        first_step, first_ended = self.began
        steps = trainer.global_step - first_step
        seconds = time.perf_counter() - first_ended
        if trainer.max_steps < 0:
            return seconds / steps
        # After the choice, the last steps count, because the machine may have become slower or
        # faster.
        in_step = sum(self.recent) / len(self.recent)
        between_steps = (seconds - self.seconds_in_steps) / steps  # such as validations
        return in_step + between_steps

    def fitting(self, trainer: Any) -> int:
        """Return an estimate of the steps of the whole run: those that fit into its time limit, or that it needs."""
        step = trainer.global_step
        if self.began is None or not self.recent:
            return step
        per_step = self._per_step(trainer)
        per_token = self._seconds_per_token(trainer)
        left = self._seconds_left()
        data = trainer.datamodule

        def seconds(steps: int) -> float:
            """Seconds of `steps` more steps with their validations, of the last validation and of the evaluation."""
            tokens = data.num_validated
            evaluated = data.num_evaluated(step + steps)
            if evaluated > data.num_validated:  # otherwise the last validation is the evaluation
                tokens += evaluated
            return steps * per_step + tokens * per_token

        in_time = max(0, int(left / per_step))  # without the last validation and the evaluation
        most = int(min(in_time, max(0, self.steps_needed - step)))
        # how many of the numbers of steps 0, 1, ..., most take no longer than the time left
        num_fitting = bisect_right(range(most + 1), left, key=seconds)
        return step + max(0, num_fitting - 1)
