"""The callback that ends a run within its time limit (`minutes=N`): it chooses the number of steps while training."""

import math
import time
from bisect import bisect_right
from collections import deque
from typing import Any

import lightning as L
import torch

from base.files import write_text
from base.log import log
from base.progress import count
from conf.schema import to_yaml
from data.datamodule import ENDLESS
from training.callbacks.checkpoints import Checkpoints
from training.run_plan import VALIDATIONS, RunPlan

TIMED_STEPS = 20  # min recent steps whose mean is the time of a step
WINDOW = 0.1  # after the choice, that mean is over this fraction of the steps left, so that a busy second counts little
END_SECONDS = 2.0  # min seconds reserved to count n-grams, write samples and the report, and exit
END_SHARE = 0.5  # on a slow machine, this fraction of the seconds of importing PyTorch is reserved instead
# If the run would end earlier or later by more than this fraction of its time, and by more than so many seconds, the
# number is chosen again.
OFF, OFF_SECONDS = 0.05, 2.0


class Deadline(L.Callback):
    """Chooses the number of steps of a run with a time limit when its learning rate must begin to fall (cooldown).

    The choice can wait until the cooldown, because the learning rates of a trapezoid schedule do not depend on the
    number of steps before. If k steps are done and r more fit into the remaining time, the cooldown is due as soon as k
    >= (1 - cooldown) (k + r). The run then has k / (1 - cooldown) steps in all, so that it trains like a run whose
    number of steps was set at the start, even if the machine has just paused. If the machine becomes slower later, the
    number is lowered and the learning rate falls faster; if it becomes faster, the number is raised.
    """

    def __init__(self, plan: RunPlan, checkpoints: Checkpoints) -> None:
        self.plan, self.checkpoints, self.cooldown = plan, checkpoints, plan.config.optim.cooldown
        before = plan.resume_point.history.seconds if plan.resume_point else 0.0  # of training in earlier processes
        self.ends_at = plan.startup.began + 60 * (plan.config.minutes or 0) - before
        self.end_seconds = max(END_SECONDS, END_SHARE * plan.startup.import_seconds)
        self.validates = plan.config.trainer.val_check_interval == "auto"
        self.validated = 0  # the step of the last validation
        self.began: tuple[int, float] | None = None  # step and time after the first step, which is slow
        self.recent = deque[float](maxlen=TIMED_STEPS)  # seconds of the last steps
        self.stepped = 0.0  # seconds of all steps since `began`
        self.per_token: float | None = None  # seconds per token of the last validation

    def save(self, steps: int) -> None:
        """Store the number of steps, and save after this step, so that a resumed run begins with the number."""
        write_text(self.plan.run.config, to_yaml(self.plan.with_steps(steps).config))
        self.checkpoints.due_at = 0.0

    def on_validation_start(self, *_: Any) -> None:
        self.validating = time.perf_counter()

    def on_validation_end(self, trainer: Any, *_: Any) -> None:
        self.per_token = (time.perf_counter() - self.validating) / trainer.datamodule.num_validated()
        self.validated = trainer.global_step

    def on_train_batch_start(self, *_: Any) -> None:
        self.stepping = time.perf_counter()

    def on_train_batch_end(self, trainer: L.Trainer, pl_module: Any, *_: Any) -> None:
        """Choose the number of steps if the cooldown is due, or again if the speed of the machine has changed."""
        step, now = trainer.global_step, time.perf_counter()
        if self.began is None:
            self.began, self.validated = (step, now), step
        else:
            self.recent.append(now - self.stepping)
            self.stepped += now - self.stepping
        if self.validates:  # Lightning validates after each step whose number is a multiple of `val_check_batch`
            trainer.val_check_batch = 1 if self._validation_is_due(trainer) else ENDLESS
        if not self._is_due(trainer):
            return
        if pl_module.asynchronous:  # wait for the steps that are still queued on the GPU
            torch.cuda.synchronize(pl_module.device)
            if not self._is_due(trainer):
                return
        before, steps = trainer.max_steps, self.fitting(trainer)
        if before < 0 and step < steps and self.cooldown < 1:
            steps = max(steps, math.ceil(step / (1 - self.cooldown)))
        self.recent = deque(maxlen=max(TIMED_STEPS, int(WINDOW * (steps - step))))  # empty: a pause counts once
        trainer.fit_loop.epoch_loop.max_steps = steps
        trainer.should_stop = steps == step
        self.save(steps)
        why = f"the learning rate falls from step {step:,} on"
        if before > 0:
            why = f"the machine has become {'slower' if steps < before else 'faster'}"
        log.info(f"minutes    {count(steps, 'step')} in all: {why}")

    def _is_due(self, trainer: L.Trainer) -> bool:
        """Return whether to choose the number of steps after this step, for the first time or again."""
        step, now, timed = trainer.global_step, time.perf_counter(), len(self.recent) == self.recent.maxlen
        if trainer.max_steps < 0:
            over = now + self.end_seconds >= self.ends_at
            return over or (timed and step >= (1 - self.cooldown) * self.fitting(trainer))
        if not timed or step == trainer.max_steps:
            return False
        off = (self.fitting(trainer) - trainer.max_steps) * self._per_step(trainer)
        return abs(off) > max(OFF_SECONDS, OFF * (self.ends_at - self.plan.startup.began))

    def _validation_is_due(self, trainer: L.Trainer) -> bool:
        """Return whether an interval has passed since the last validation, and half of one is left to the last step."""
        steps = trainer.max_steps if trainer.max_steps > 0 else self.fitting(trainer)
        interval, step = max(1, steps // VALIDATIONS), trainer.global_step
        return len(self.recent) > 0 and step - self.validated >= interval and steps - step >= interval / 2

    def _per_step(self, trainer: Any) -> float:
        """Return the expected seconds of a coming step, with its share of the validations."""
        assert self.began
        steps, seconds = trainer.global_step - self.began[0], time.perf_counter() - self.began[1]
        if trainer.max_steps < 0:
            return seconds / steps
        # After the choice, the last steps count, because the machine may have become slower or faster.
        return sum(self.recent) / len(self.recent) + (seconds - self.stepped) / steps

    def fitting(self, trainer: Any) -> int:
        """Return an estimate of the number of steps of the whole run that fit into its time limit."""
        step, now, data = trainer.global_step, time.perf_counter(), trainer.datamodule
        if self.began is None or not self.recent:
            return step
        per_step = self._per_step(trainer)
        left = self.ends_at - now - self.end_seconds
        # Until a validation has been timed, a token is taken to cost as much there as in training, which is more.
        per_token = per_step / data.tokens_per_step if self.per_token is None else self.per_token

        def seconds(steps: int) -> float:
            return steps * per_step + data.num_validated(last_step=step + steps) * per_token

        return step + max(0, bisect_right(range(max(0, int(left / per_step)) + 1), left, key=seconds) - 1)
