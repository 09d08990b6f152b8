"""Profile a few steps of training with Lightning's profiler."""

import os
from pathlib import Path

import torch
from lightning.pytorch.profilers import PyTorchProfiler
from torch.profiler import profile, schedule

from base.log import log

SKIPPED_STEPS = 10  # the first steps are slower and may compile
NUM_STEPS = 3  # recorded steps
NUM_ROWS = 20  # operators in the table


def step_profiler(path: Path) -> PyTorchProfiler:
    """Return a profiler that logs a table of the operators and writes a trace that Perfetto can display to `path`."""
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # torch's profiler writes to stderr otherwise

    def report(recorded: profile) -> None:
        recorded.export_chrome_trace(str(path))
        order = f"self_{'cuda' if torch.cuda.is_available() else 'cpu'}_time_total"
        log.info(recorded.key_averages().table(sort_by=order, row_limit=NUM_ROWS, max_name_column_width=40))

    steps = schedule(wait=SKIPPED_STEPS - 1, warmup=1, active=NUM_STEPS, repeat=1)
    return PyTorchProfiler(schedule=steps, on_trace_ready=report, record_module_names=False, record_shapes=True)
