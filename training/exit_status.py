"""Run one configuration, and turn how it ended into a message and an exit status."""

import os
import platform
import signal
import sys
import time
import traceback
from typing import Any

from base import processes, run_directory, run_lock
from base.errors import InputError, one_line
from conf.schema import Config
from training.errors import Diverged, RunFailed, Stopped
from training.run import main

REFUSAL_SECONDS = 5.0  # seconds that rank 0 has to say first what is wrong


def run_one(typed: Config, keys: list[str], started: float) -> int:
    """Run one configuration and turn how it ended into an exit status."""
    status = 1
    try:
        main(typed, keys, started)
        status = 0
    except InputError as error:
        status = refuse(error)
    except Exception as error:
        known = explain(error)
        if known is None:
            traceback.print_exc() if processes.started_by_another_rank() else None  # before this process is ended
            raise
        status = known
    finally:
        run_directory.forget_name()
        run_lock.release()
        if status and processes.started_by_another_rank() and "lightning" in sys.modules:
            from training.strategy import end_parent

            end_parent()
    return status


def requeue_before_start() -> None:
    """On SLURM's SIGUSR1, requeue the job: its time is up before there is anything to save."""

    def requeue(number: int, _: Any) -> None:
        if processes.rank() == 0:
            processes.requeue()
        os._exit(128 + number)

    if "SLURM_JOB_ID" in os.environ and hasattr(signal, "SIGUSR1"):
        signal.signal(signal.SIGUSR1, requeue)


def refuse(error: Exception) -> int:
    """Answer wrong input in one line, which of several processes the first writes."""
    where = ""
    if not isinstance(error, processes.JobError) and processes.launched() and processes.rank():
        time.sleep(REFUSAL_SECONDS)  # what is wrong for all, rank 0 has said, and all are ended
        where = f"rank {processes.rank()} on {platform.node()}: "
    print(f"train.py: {where}{one_line(error)}", file=sys.stderr)
    return 2


def fail(error: OSError) -> int:
    """Answer a file, terminal or network that failed in one line."""
    print(f"train.py: {one_line(error)}", file=sys.stderr)
    return 1


def explain(error: Exception) -> int | None:
    """Answer what went wrong in the world; None for a failure of our own."""
    if isinstance(error, OSError):
        return fail(error)
    if isinstance(error, Diverged | RunFailed):
        if processes.first_here():  # it is much the same for all
            print(f"train.py: {error}", file=sys.stderr)
        return 1
    if not isinstance(error, Stopped):
        return None
    if error.number == getattr(signal, "SIGUSR1", None) and "SLURM_JOB_ID" in os.environ and processes.rank() == 0:
        processes.requeue()
    # What rank 0 leaves with counts; it must not be taken for one whose processes fail.
    return 0 if processes.started_by_another_rank() else 128 + error.number
