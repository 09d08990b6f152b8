"""The errors that end a run early (divergence, a signal, too little memory, a lost process), and how to continue."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager

from base import processes, ranks
from base.errors import InputError, RunFailed, is_out_of_memory
from base.jobs import slurm
from base.jobs.run_directory import Run
from base.log import log
from conf.keys import with_folders
from gpt.config import OptimConfig

FAR_ABOVE = 10.0  # times its default: so high a learning rate ruins the weights in its first steps
# for the activations of a step
LOWER = "out of memory: lower data.micro_batch, data.batch, model.context or model.dim"


class Diverged(RunFailed):
    """Raised when training has diverged: a value is NaN or infinite, or the model is worse than guessing.

    `ruined` says that no checkpoint is worth continuing from.
    """

    def __init__(self, seen: str, *, ruined: bool = False) -> None:
        self.what = f"{seen}: training has diverged"
        self.ruined = ruined
        super().__init__(f"{self.what}; lower the learning rate")


class Stopped(SystemExit):
    """Raised when a signal stops the run. It is a `SystemExit`, so that no `except Exception` catches it."""

    def __init__(self, number: int, step: int | None = None) -> None:
        super().__init__(128 + number)
        when = "" if step is None else f" after step {step}"
        self.number = number
        self.reason = f"stopped by {signal.Signals(number).name}{when}"


def is_lost_process(error: BaseException) -> bool:
    """Return whether `error` means that another process (rank) of the run has died or does not answer."""
    gloo = (
        "Connection closed by peer",
        "Connection reset by peer",
        "Timed out",
        "timed out",
        "caused pair closure",
    )
    nccl = ("ncclRemoteError", "NCCL communicator was aborted", "collective operation timeout")
    return isinstance(error, RuntimeError) and any(word in str(error) for word in (*gloo, *nccl))


def resume_hint(run: Run, *changes: str) -> str:
    """Return the end of an error message: the newest checkpoint of a run, and the command that continues from it."""
    if not run.config.exists():
        return "there is no run yet"
    command = processes.command("python", "train.py", *with_folders([f"resume={run}", *changes]))
    newest = run.checkpoints / "last.ckpt"
    if newest.exists():
        return f"the newest checkpoint is {newest}: {command}"
    return f"there is no checkpoint yet, so this starts at step 0: {command}"


@contextmanager
def stoppable(run: Run) -> Iterator[None]:
    """Context manager that raises `Stopped` after a signal, and logs the command that continues the run.

    If SLURM sent the signal because the time of the job is up, also requeue the job. While a run
    trains, the callback `StopSignals` decides when `Stopped` is raised.
    """

    def stop(number: int, _: object) -> None:
        raise Stopped(number)

    previous = {number: signal.signal(number, stop) for number in slurm.STOPS}
    try:
        yield
    except Stopped as stopped:
        log.info(f"{stopped.reason}; {resume_hint(run)}")
        if slurm.time_is_up(stopped.number) and ranks.rank() == 0:
            slurm.requeue()
        raise
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


@contextmanager
def with_advice(run: Run, optim: OptimConfig, devices: int) -> Iterator[None]:
    """Context manager for training that adds advice to the message of an error that ends the run early."""
    try:
        yield
    except Diverged as error:
        if error.ruined or _far_above(optim):
            usual = " ".join(_usual_rates(optim))
            error.args = (f"{error.what}; start again with lower rates, usually {usual}",)
        else:
            error.args = (f"{error}; {resume_hint(run, *_lower_rates(optim))}",)
        raise
    except (RuntimeError, MemoryError) as error:
        if is_out_of_memory(error):
            raise InputError(LOWER) from error
        if devices == 1 or not is_lost_process(error):
            raise
        lost = "another process of this run has died or does not answer"
        raise RunFailed(f"{lost}; {resume_hint(run)}") from error


def _rates(optim: OptimConfig) -> dict[str, tuple[float, float]]:
    """Return each peak learning rate of the optimizer with its default, by key."""
    rates = {"optim.lr": (optim.lr, OptimConfig.lr)}
    if optim.name == "muon":
        rates["optim.muon_lr"] = (optim.muon_lr, OptimConfig.muon_lr)
    return rates


def _far_above(optim: OptimConfig) -> bool:
    return any(rate > FAR_ABOVE * usual for rate, usual in _rates(optim).values())


def _usual_rates(optim: OptimConfig) -> list[str]:
    return [f"{key}={usual:g}" for key, (_, usual) in _rates(optim).items()]


def _lower_rates(optim: OptimConfig) -> list[str]:
    """Return the `key=value` arguments with which a diverged run continues at half its learning rates."""
    halves = {key: rate / 2 for key, (rate, _) in _rates(optim).items()}
    halves["optim.lr"] = max(halves["optim.lr"], optim.min_lr)  # `OptimConfig` refuses a lower one
    lowered = [f"{key}={rate:g}" for key, rate in halves.items()]
    return [*lowered, f"allow=[{','.join(halves)}]"]
