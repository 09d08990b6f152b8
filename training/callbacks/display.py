"""The callback that shows the progress of training: as a bar in a terminal, otherwise as lines."""

import sys
import time
from typing import Any

import lightning as L

from base.log import log
from base.progress import LINE_SECONDS, Progress, clock, load_tqdm
from gpt.facts import in_nats
from training.callbacks.deadline import Deadline

# A line is due after this fraction of the time so far, so from 20 minutes on there is one a minute.
LINE_SHARE = 0.05
MAX_LINE_SECONDS = 60.0


class Display(L.Callback):
    """Shows the steps, the losses that `Metrics` measures, and what a run waits for.

    It comes before the other callbacks, so that it can show after a validation that they are at
    work.
    """

    def __init__(self, unit: str, deadline: Deadline | None = None) -> None:
        self.unit = unit  # of the tokens, such as "character"
        self.deadline = deadline  # of a run with a time limit
        self.bar: Any = None  # of tqdm, only in a terminal
        self.waiting: Any = None  # a `Progress`, while something is shown

    def show(self, what: str, total: int = 0) -> None:
        """Show `what` the run is waiting for, such as "validating", in place of the text shown before."""
        self.hide()
        self.waiting = Progress(what, total).__enter__()

    def hide(self) -> None:
        """Remove the text that `show` has displayed, if there is one."""
        if self.waiting is not None:
            self.waiting.__exit__()
            self.waiting = None

    def on_train_start(self, trainer: L.Trainer, pl_module: Any) -> None:
        self.began = self.last_line = time.perf_counter()
        self.first_step = trainer.global_step + 1
        if trainer.is_global_zero and sys.stdout.isatty():
            self.bar = load_tqdm()(
                total=self._steps(trainer),
                initial=trainer.global_step,
                file=sys.stdout,
                dynamic_ncols=True,
                bar_format="step {n_fmt}/{total_fmt} {bar} {desc}",
            )
        self.show("compiling" if pl_module.config.compile == "true" else "the first step")

    def on_train_batch_end(self, trainer: L.Trainer, *_: Any) -> None:
        self.hide()
        if trainer.global_step == self.first_step:
            self.first_ended = time.perf_counter()
        if self.bar is not None:
            self.bar.total = self._steps(trainer)
            self.bar.update(trainer.global_step - self.bar.n)

    def show_step(self, trainer: L.Trainer, loss: float, speed: float | None) -> None:
        """Show the training loss in nats per token, and the tokens per second, None if they are unknown."""
        now = time.perf_counter()
        shown = f"loss {in_nats(loss)}"
        if speed is not None:
            # all steps of this process count, so that a slow one counts little
            steps = max(1, trainer.global_step - self.first_step)
            seconds_per_step = (now - self.first_ended) / steps
            seconds_left = (self._steps(trainer) - trainer.global_step) * seconds_per_step
            shown += f"  {speed:,.0f} {self.unit}s/s  {clock(seconds_left)} left"
        if self.bar is not None:
            self.bar.set_description_str(shown, refresh=False)
            return
        interval = min(MAX_LINE_SECONDS, max(LINE_SECONDS, LINE_SHARE * (now - self.began)))
        if trainer.is_global_zero and now - self.last_line >= interval:
            log.info(f"step {trainer.global_step}/{self._steps(trainer)}  {shown}")
            self.last_line = now

    def on_validation_start(self, trainer: L.Trainer, *_: Any) -> None:
        tokens = trainer.datamodule.num_validated  # type: ignore[attr-defined]
        self.show("validating", tokens // trainer.world_size)

    def on_validation_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, *_: Any
    ) -> None:
        inputs = batch[0]  # (B, T)
        self.waiting.update(inputs.numel())

    def on_validation_end(self, trainer: L.Trainer, pl_module: Any) -> None:
        self.show("saving and sampling")
        if trainer.is_global_zero:
            step = f"step {trainer.global_step}/{self._steps(trainer)}"
            log.info(f"{step}  validation loss {in_nats(pl_module.score.loss)}")
        self.last_line = time.perf_counter()

    def teardown(self, *_: Any, **__: Any) -> None:
        self.hide()
        if self.bar is not None:
            self.bar.close()
            self.bar = None

    on_exception = teardown

    def _steps(self, trainer: L.Trainer) -> int:
        """Return the number of steps of the run, or the estimate of `Deadline` if it has not chosen the number yet."""
        if trainer.max_steps > 0 or self.deadline is None:
            return trainer.max_steps
        return self.deadline.fitting(trainer)
