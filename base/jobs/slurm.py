"""Requeue a SLURM job that is about to reach its time limit. This module does not load torch."""

import os
import signal
import subprocess

from base.errors import one_line
from base.log import log


def stops() -> list[signal.Signals]:
    """Return the signals that stop a run or a sweep.

    SLURM sends SIGUSR1 before the time limit of a job. A terminal that closes sends SIGHUP, which
    `nohup` has a program ignore.
    """
    names = ["SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1"]
    found = [getattr(signal, name) for name in names if hasattr(signal, name)]
    return [
        stop for stop in found if stop.name != "SIGHUP" or signal.getsignal(stop) != signal.SIG_IGN
    ]


def time_is_up(signal_number: int | None) -> bool:
    """Return whether a signal (None: no signal) announces the time limit of a SLURM job."""
    return signal_number == getattr(signal, "SIGUSR1", 0) and "SLURM_JOB_ID" in os.environ


def requeue() -> None:
    """Ask SLURM to restart this job; logged first, because SLURM then ends all its processes."""
    job = os.environ["SLURM_JOB_ID"]
    if "SLURM_ARRAY_JOB_ID" in os.environ:
        job = f"{os.environ['SLURM_ARRAY_JOB_ID']}_{os.environ['SLURM_ARRAY_TASK_ID']}"
    log.info(f"SLURM job {job} is requeued, to continue this run")
    try:
        subprocess.run(
            ["scontrol", "requeue", job], check=True, capture_output=True, text=True, timeout=60
        )
    except (OSError, subprocess.SubprocessError) as error:
        reason = one_line(getattr(error, "stderr", None) or error)
        log.error(f"SLURM job {job} could not be requeued: {reason}")
