"""Run one configuration; turn errors into a message and an exit status."""

import platform
import sys
import time
import traceback

from base import processes, run_directory, run_lock, slurm
from base.errors import InputError, describe_os_error, one_line
from base.log import log
from conf.schema import Config
from training.endings import Diverged, RunFailed, Stopped
from training.run import main

REFUSAL_SECONDS = 5.0  # seconds that other ranks wait for rank 0 to print its error first


def run_one(typed: Config, keys: list[str], started: float) -> int:
    """Run one configuration and return the exit status."""
    status = 1
    try:
        main(typed, keys, started)
        status = 0
    except InputError as error:
        status = refuse(error)
    except Exception as error:
        known = explain(error)
        if known is None:
            if processes.started_by_another_rank():
                traceback.print_exc()  # now: `end_parent` ends this process, too
            raise
        status = known
    finally:
        run_directory.forget_name()
        run_lock.release()
        if status and processes.started_by_another_rank() and "lightning" in sys.modules:
            from training.strategy import end_parent

            end_parent()
    return status


def refuse(error: Exception) -> int:
    """Print an error of the user's input in one line and return the exit status."""
    where = ""
    if not isinstance(error, processes.JobError) and processes.launched() and processes.rank():
        time.sleep(REFUSAL_SECONDS)  # if rank 0 has the error as well, it prints it and the launcher ends this rank
        where = f"rank {processes.rank()} on {platform.node()}: "
    log.error(f"train.py: {where}{one_line(error)}")
    return 2


def fail(error: OSError) -> int:
    """Print an error of a file, terminal or network in one line and return the exit status."""
    log.error(f"train.py: {describe_os_error(error)}")
    return 1


def explain(error: Exception) -> int | None:
    """Print an expected error and return the exit status; None for a bug."""
    if isinstance(error, OSError):
        return fail(error)
    if isinstance(error, Diverged | RunFailed):
        if processes.is_local_rank_0():  # the other ranks have nearly the same error
            log.error(f"train.py: {error}")
        return 1
    if not isinstance(error, Stopped):
        return None
    if slurm.time_is_up(error.number) and processes.rank() == 0:
        slurm.requeue()
    # The exit status of rank 0 counts: that of the others must not look like a failure.
    return 0 if processes.started_by_another_rank() else 128 + error.number
