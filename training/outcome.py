"""How a run ends: what summary.json and the log say of it, and errors that a user can mend."""

import shlex
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

import lightning as L

from base import processes
from base.errors import InputError, is_out_of_memory, one_line
from base.log import log
from conf.defaults import typed_again
from conf.schema import Config
from gpt.checkpoint import CheckpointError
from reports.terminal import out_of_memory, python
from training.assemble import Callbacks
from training.devices import rows_per_device
from training.errors import Diverged, RunFailed, Stopped, is_lost_process
from training.run_plan import RunPlan
from training.summary import as_trained, write_summary


def way_on(run: Path, config: Config) -> str:
    """Name the newest checkpoint of a run that has ended early, and the command that continues from it."""
    steps = sorted((run / "checkpoints").glob("step-*.ckpt"))
    if not steps:
        return f"there is no {'checkpoint' if run.exists() else 'run'} yet"
    command = shlex.join(["train.py", f"resume={run}", *typed_again(config)])
    return f"the newest checkpoint is {steps[-1]}: {python()} {command}"


@contextmanager
def naming_what_takes_memory(plan: RunPlan, devices: int) -> Iterator[None]:
    """When memory runs out, name the key to lower in an `InputError`."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        config, vocabulary = plan.config, plan.text.tokenizer.size
        raise InputError(out_of_memory(config.model, vocabulary, rows_per_device(config, devices))) from error


@contextmanager
def recording(plan: RunPlan, callbacks: Callbacks, trainer: L.Trainer) -> Iterator[dict[str, Any]]:
    """Write into summary.json how training ended, whatever ends it.

    Yields:
        The values of summary.json so far; complete when the context has ended.

    Raises:
        Stopped: a signal stopped training.
        CheckpointError: the checkpoint does not fit the run.
        InputError: memory ran out.
    """
    summary: dict[str, Any] = {"status": "failed"}
    stops, point = callbacks.stops, plan.resume_point
    try:
        with naming_what_takes_memory(plan, plan.runtime.devices):
            yield summary
    except Stopped:
        summary["status"] = "interrupted"
        raise
    except Diverged:
        summary["status"] = "diverged"
        raise
    except (AttributeError, KeyError, RuntimeError, TypeError, ValueError) as error:
        if stops.received:  # torch gives what is raised while it copies weights another name
            summary["status"] = "interrupted"
            raise Stopped(stops.received) from None
        elsewhere = isinstance(error, InputError) or is_lost_process(error)
        if point is None or callbacks.waits.restored or elsewhere:
            raise
        reason = f"{type(error).__name__}: {one_line(error)}"[:200]
        raise CheckpointError(f"{point.path}: does not fit this run ({reason})") from error
    else:
        # Until it has been evaluated; what a search gives up is not.
        summary["status"] = "pruned" if callbacks.prune and callbacks.prune.pruned else "interrupted"
    finally:
        callbacks.waits.end()
        summary |= as_trained(plan, trainer.global_step, callbacks.watch.state_dict())
        # Where this cannot be written, what has ended the run is the error to tell.
        with suppress(OSError) if summary["status"] == "failed" else nullcontext():
            if processes.rank() == 0:
                write_summary(plan.directory, summary)


@contextmanager
def explaining_the_end(plan: RunPlan) -> Iterator[None]:
    """Log how a run ended early, with the command that continues it.

    Raises:
        RunFailed: another process has died or is silent.
    """
    try:
        yield
    except Stopped as stop:
        log.info(f"{stop}; {way_on(plan.directory, plan.config)}")
        raise
    except Diverged as error:
        log.info(f"{error}; {way_on(plan.directory, plan.config)}")
        raise Diverged(f"{error}; {way_on(plan.directory, plan.config)}") from None
    except RuntimeError as error:
        if not is_lost_process(error):
            raise
        way = way_on(plan.directory, plan.config)
        raise RunFailed(f"another process of this run has died or is silent; {way}") from error
