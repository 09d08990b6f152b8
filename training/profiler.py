"""Profile a few steps of training with `torch.profiler`."""

import os
from pathlib import Path
from typing import Any

import lightning as L
import torch
from torch.profiler import profile, schedule

from base.log import log

SKIPPED_STEPS = 10  # the first steps are slower and may compile
NUM_STEPS = 3  # recorded steps
NUM_ROWS = 20  # operators in the table


class StepProfiler(L.Callback):
    """Profiles `NUM_STEPS` training steps, logs a table of the operators and writes a trace that Perfetto can display.

    This callback must come before callbacks that save checkpoints, so that saving is not profiled.
    """

    def __init__(self, path: Path) -> None:
        os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # torch's profiler writes to stderr otherwise
        self.path = path

    def on_train_start(self, *_: Any) -> None:
        steps = schedule(skip_first=SKIPPED_STEPS - 1, wait=0, warmup=1, active=NUM_STEPS, repeat=1)
        self.recorder = profile(schedule=steps, on_trace_ready=self._write, record_shapes=True)
        self.recorder.start()

    def on_train_batch_end(self, *_: Any) -> None:
        self.recorder.step()

    def on_train_end(self, *_: Any) -> None:
        self.recorder.stop()

    def _write(self, recorded: profile) -> None:
        recorded.export_chrome_trace(str(self.path))
        order = f"self_{'cuda' if torch.cuda.is_available() else 'cpu'}_time_total"
        log.info(recorded.key_averages().table(sort_by=order, row_limit=NUM_ROWS, max_name_column_width=40))
