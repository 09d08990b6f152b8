"""The errors that end a run early (divergence, a signal, too little memory, a lost process), and how to continue."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager

from base import processes, ranks
from base.errors import InputError, RunFailed, is_out_of_memory
from base.jobs import slurm
from base.jobs.run_directory import Run
from base.log import log
from gpt.optim_config import OptimConfig

LOWER = "out of memory: lower data.micro_batch, data.batch, model.context or model.dim"  # for the activations of a step


class Diverged(RunFailed):
    """Raised when training has diverged: the loss, a gradient or a weight is NaN or infinite."""

    def __init__(self, seen: str) -> None:
        super().__init__(f"{seen}: training has diverged; lower the learning rate")


class Stopped(SystemExit):
    """Raised when a signal stops the run. It is a `SystemExit`, so that no `except Exception` catches it."""

    def __init__(self, number: int, step: int | None = None) -> None:
        super().__init__(128 + number)
        when = "" if step is None else f" after step {step}"
        self.number, self.reason = number, f"stopped by {signal.Signals(number).name}{when}"


def is_lost_process(error: BaseException) -> bool:
    """Return whether `error` means that another process (rank) of the run has died or does not answer."""
    gloo = ("Connection closed by peer", "Connection reset by peer", "Timed out", "timed out", "caused pair closure")
    nccl = ("ncclRemoteError", "NCCL communicator was aborted", "collective operation timeout")
    return isinstance(error, RuntimeError) and any(word in str(error) for word in (*gloo, *nccl))


def resume_hint(run: Run, *changes: str) -> str:
    """Return the end of an error message: the newest checkpoint of a run, and the command that continues from it."""
    if not run.config.exists():
        return "there is no run yet"
    command = processes.command("python", "train.py", f"resume={run}", *changes)
    newest = run.checkpoints / "last.ckpt"
    if newest.exists():
        return f"the newest checkpoint is {newest}: {command}"
    return f"there is no checkpoint yet, so this starts at step 0: {command}"


@contextmanager
def with_advice(run: Run, optim: OptimConfig, devices: int) -> Iterator[None]:
    """Context manager for training that adds advice to the message of an error that ends the run early.

    If a signal has stopped the run (`Stopped`), log the command that continues the run. If SLURM sent the signal
    because the time of the job is up, also requeue the job.
    """
    try:
        yield
    except Stopped as stop:
        log.info(f"{stop.reason}; {resume_hint(run)}")
        if slurm.time_is_up(stop.number) and ranks.rank() == 0:
            slurm.requeue()
        raise
    except Diverged as error:
        error.args = (f"{error}; {resume_hint(run, *_lower_rates(optim))}",)
        raise
    except (RuntimeError, MemoryError) as error:
        if is_out_of_memory(error):
            raise InputError(LOWER) from error
        if devices == 1 or not is_lost_process(error):
            raise
        lost = "another process of this run has died or does not answer"
        raise RunFailed(f"{lost}; {resume_hint(run)}") from error


def _lower_rates(optim: OptimConfig) -> list[str]:
    """Return the `key=value` arguments with which a diverged run continues at half its learning rates."""
    rates = {"optim.lr": max(optim.lr / 2, optim.min_lr)}
    rates |= {"optim.muon_lr": optim.muon_lr / 2} if optim.name == "muon" else {}
    return [*(f"{key}={rate:g}" for key, rate in rates.items()), f"allow=[{','.join(rates)}]"]
