"""The errors that end a run early (divergence, a signal, too little memory, a lost process), and how to continue."""

import os
import re
import signal
import stat
import sys
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from base import ranks
from base.errors import InputError, RunFailed, is_out_of_memory
from base.jobs import slurm
from base.jobs.run_directory import Run
from base.log import log
from base.progress import discard
from conf.keys import train_command
from gpt.config import OptimConfig

FAR_ABOVE = 10.0  # times its default: so high a learning rate ruins the weights in its first steps
# for the activations of a step
LOWER = "out of memory: lower data.micro_batch, data.batch, model.context or model.dim"
IGNORED = (  # the beginnings of warnings that do not concern the user, as regular expressions
    # Said by the line `machine`, and a note about a GPU that PyTorch cannot use.
    "GPU available but not used",
    # Raised by Lightning 2.6.6 with torch 2.13.
    r"`isinstance\(treespec, LeafSpec\)` is deprecated",
    # Intended: fp32 runs compute in fp32, not TF32.
    "TensorFloat32 tensor cores for float32 matrix multiplication available",
    # A run in a single process does not need srun.
    "The `srun` command is available on your system but is not used",
    # Building a batch is a single gather, so worker processes would be slower.
    r"The '\w+' does not have many workers",
    "Your `IterableDataset` has `__len__` defined",
    # Batch k is a function of (seed, k), so the loader has no state to restore.
    "You're resuming from a checkpoint that ended before",
    # A run that stopped early continues with callbacks=[], which it says itself.
    "Be aware that when using `ckpt_path`, callbacks",
)

# what gloo and NCCL say when another process (rank) of the run has died or does not answer
LOST_RANK = (
    "Connection (closed|reset) by peer|[Tt]imed out|caused pair closure"
    "|ncclRemoteError|NCCL communicator was aborted|collective operation timeout"
)


class Diverged(RunFailed):
    """Raised when training has diverged: a value is NaN or infinite, or the model is worse than guessing.

    `ruined` says that no checkpoint is worth continuing from.
    """

    def __init__(self, seen: str, optim: OptimConfig, *, ruined: bool = False) -> None:
        # peak learning rates with their defaults
        rates = {"optim.lr": (optim.lr, OptimConfig.lr)}
        if optim.name == "muon":
            rates["optim.muon_lr"] = (optim.muon_lr, OptimConfig.muon_lr)
        far_above = any(rate > FAR_ABOVE * usual for rate, usual in rates.values())
        self.changes = list[str]()  # the arguments with which the run continues at half its rates
        if ruined or far_above:
            usual_rates = " ".join(f"{key}={usual:g}" for key, (_, usual) in rates.items())
            advice = f"start again with lower rates, usually {usual_rates}"
        else:
            advice = "lower the learning rate"
            halves = {key: rate / 2 for key, (rate, _) in rates.items()}
            halves["optim.lr"] = max(halves["optim.lr"], optim.min_lr)  # a lower one is refused
            self.changes = [f"{key}={rate:g}" for key, rate in halves.items()]
            self.changes.append(f"allow=[{','.join(halves)}]")
        super().__init__(f"{seen}: training has diverged; {advice}")


class Stopped(SystemExit):
    """Raised when a signal stops the run. It is a `SystemExit`, so that no `except Exception` catches it."""

    def __init__(self, number: int, step: int | None = None) -> None:
        self.status = 128 + number
        super().__init__(self.status)
        when = "" if step is None else f" after step {step}"
        self.number = number
        self.reason = f"stopped by {signal.Signals(number).name}{when}"


def resume_hint(run: Run, *changes: str) -> str:
    """Return the end of an error message: the newest checkpoint of a run, and the command that continues from it."""
    if not run.config.exists():
        return "there is no run yet"
    command = train_command(f"resume={run}", *changes)
    newest = run.checkpoints / "last.ckpt"
    if newest.exists():
        return f"the newest checkpoint is {newest}: {command}"
    return f"there is no checkpoint yet, so this starts at step 0: {command}"


class Signals:
    """The signals that ask a run to stop: `slurm.stops`.

    While a run trains, the callback `Checkpoints` stops it after a step, which is saved. Before and
    after training there is nothing to save, so the signal itself raises `Stopped`.
    """

    def __init__(self) -> None:
        self.received: int | None = None
        self.training = False  # also during the validation before the first step

    def catch(self) -> dict[int, Any]:
        """Install the handler, and return the previous handlers by signal."""
        return {number: signal.signal(number, self._receive) for number in slurm.stops()}

    def _receive(self, number: int, frame: Any) -> None:
        # A terminal that has closed takes no more lines.
        if number == getattr(signal, "SIGHUP", 0):
            for out in (sys.stdout, sys.stderr):
                with suppress(OSError):  # in tests a stream may have no file descriptor
                    if stat.S_ISCHR(os.fstat(out.fileno()).st_mode):
                        discard(out)
        if not self.training:
            self.received = number
            raise Stopped(number)
        if self.received is not None and number == signal.SIGINT:
            os._exit(128 + number)  # a second Ctrl-C does not wait for the save
        self.received = number


@contextmanager
def watched(run: Run) -> Iterator[Signals]:
    """Context manager for a run: signals stop it, an error that ends it early says how to continue.

    If SLURM sent a signal because the time of the job is up, it also requeues the job. Messages of
    Lightning and torch that do not concern the user are hidden.
    """
    signals = Signals()
    previous = signals.catch()
    previous_hook = threading.excepthook
    threading.excepthook = hide_failed_writes
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "|".join(IGNORED))
            yield signals
    except Stopped as stopped:
        log.info(f"{stopped.reason}; {resume_hint(run)}")
        if slurm.time_is_up(stopped.number) and ranks.rank() == 0:
            slurm.requeue()
        raise
    except Diverged as error:
        if error.changes:
            error.args = (f"{error}; {resume_hint(run, *error.changes)}",)
        raise
    except (RuntimeError, MemoryError) as error:
        if is_out_of_memory(error):
            raise InputError(LOWER) from error
        if not ranks.launched() or not re.search(LOST_RANK, str(error)):
            raise
        raise RunFailed(
            f"another process of this run has died or does not answer; {resume_hint(run)}"
        ) from error
    finally:
        threading.excepthook = previous_hook
        for number, handler in previous.items():
            signal.signal(number, handler)


def hide_failed_writes(failure: "threading.ExceptHookArgs") -> None:
    """Print the error that has ended a thread, unless it is a failed write of TensorBoard."""
    is_writer = type(failure.thread).__module__ == "tensorboard.summary.writer.event_file_writer"
    if not (is_writer and issubclass(failure.exc_type, OSError)):
        threading.__excepthook__(failure)
