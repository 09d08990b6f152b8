"""Profile a few steps of training with `torch.profiler`."""

import os
from pathlib import Path
from typing import Any

import lightning as L
import torch
from torch.profiler import profile

from base.log import log
from training.callbacks.deadline import Deadline

SKIPPED_STEPS = 10  # the first steps are slower and may compile
NUM_STEPS = 3  # recorded steps
NUM_ROWS = 20  # operators in the table


class StepProfiler(L.Callback):
    """Profiles `NUM_STEPS` training steps, logs a table of the operators and writes a trace that Perfetto can display.

    A validation or the end of the run ends the profiling early. This callback must come before
    callbacks that save checkpoints, so that saving is not profiled, and before the `deadline`,
    whose estimate begins anew after the profiled steps.
    """

    def __init__(self, path: Path, deadline: Deadline | None) -> None:
        # torch's profiler writes to stderr otherwise
        os.environ.setdefault("KINETO_LOG_LEVEL", "99")
        self.path = path
        self.deadline = deadline
        self.recorder: profile | None = None

    def on_train_start(self, trainer: L.Trainer, *_: Any) -> None:
        self.first_step = trainer.global_step
        self.recorded_steps = 0

    def on_train_batch_start(self, trainer: L.Trainer, *_: Any) -> None:
        first = self.first_step + SKIPPED_STEPS
        # With `minutes`, the number of steps is chosen later. A shorter run profiles its last steps.
        if trainer.max_steps > 0:
            first = min(first, trainer.max_steps - NUM_STEPS)
        if self.recorder is None and not self.recorded_steps and trainer.global_step >= first:
            self.recorder = profile(record_shapes=True)
            self.recorder.start()

    def on_train_batch_end(self, trainer: L.Trainer, pl_module: Any, *_: Any) -> None:
        if self.recorder:
            self.recorded_steps += 1
        if self.recorded_steps == NUM_STEPS:
            self._end(trainer, pl_module)

    def on_train_end(self, trainer: L.Trainer, pl_module: Any) -> None:
        self._end(trainer, pl_module)
        if not self.recorded_steps:
            log.info(f"profile    nothing: the run ended within its first {SKIPPED_STEPS} steps")

    def _end(self, trainer: Any, pl_module: Any, *_: Any, **__: Any) -> None:
        recorder, self.recorder = self.recorder, None
        if recorder:
            recorder.stop()
            recorder.export_chrome_trace(str(self.path))
            order = f"self_{'cuda' if torch.cuda.is_available() else 'cpu'}_time_total"
            log.info(
                recorder.key_averages().table(
                    sort_by=order, row_limit=NUM_ROWS, max_name_column_width=40
                )
            )
            # writing the trace and the table is not part of the time of a step
            pl_module.history.begin_step()
            if self.deadline:
                self.deadline.begin_timing()

    on_validation_start = on_exception = _end
