"""Report how training ended: in summary.json, in the log, and as an error that says what to change."""

import shlex
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path

import lightning as L

from base import processes
from base.errors import InputError, is_out_of_memory, one_line
from base.log import log
from conf.defaults import overrides
from conf.merge import typed_again
from conf.schema import Config
from gpt.checkpoint import CheckpointError
from reports.terminal import out_of_memory
from training.assemble import Callbacks
from training.devices import rows_per_device
from training.endings import Diverged, RunFailed, Stopped, is_lost_process
from training.module import LitGPT
from training.run_plan import RunPlan
from training.summary import Summary, write_summary


def way_on(run: Path, config: Config) -> str:
    """Return the part of a message that names a run's newest checkpoint and the command that continues from it."""
    if not (run / "config.yaml").exists():
        return "there is no run yet"
    command = f"{processes.command('python')} {shlex.join(['train.py', f'resume={run}', *typed_again(config)])}"
    newest = max((run / "checkpoints").glob("step-*.ckpt"), default=None)
    found = f"the newest checkpoint is {newest}" if newest else "there is no checkpoint yet, it starts again at step 0"
    return f"{found}: {command}"


@contextmanager
def explaining_out_of_memory(plan: RunPlan) -> Iterator[None]:
    """When memory runs out, raise an `InputError` with the key to lower and the command of a new run."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        config, vocabulary = plan.config, plan.text.tokenizer.size
        line, lower = out_of_memory(config.model, vocabulary, rows_per_device(config, plan.runtime.devices))
        again = [each for each in overrides(config) if not each.startswith(lower.partition("=")[0] + "=")]
        if config.minutes is not None and not any(each.startswith("trainer.max_steps=") for each in again):
            again.append(f"minutes={config.minutes:g}")  # memory ran out before `minutes` was turned into steps
        raise InputError(f"{line}: {processes.command('python')} {shlex.join(['train.py', *again, lower])}") from error


@contextmanager
def recording(plan: RunPlan, callbacks: Callbacks, trainer: L.Trainer) -> Iterator[Summary]:
    """Write into summary.json how training ended, even by an error.

    Yield the summary; its fields about training are set when the context has ended. Raise a `CheckpointError` if the
    error came from restoring a checkpoint that does not fit the run.
    """
    summary = Summary("failed")
    stops, point = callbacks.stops, plan.resume_point
    try:
        with explaining_out_of_memory(plan):
            yield summary
    except (Stopped, Diverged) as error:
        summary.status = "interrupted" if isinstance(error, Stopped) else "diverged"
        raise
    except (AttributeError, KeyError, RuntimeError, TypeError, ValueError) as error:
        if stops.received and not stops.training:  # torch re-raises `Stopped` as another error while it copies weights
            summary.status = "interrupted"
            raise Stopped(stops.received) from error
        module = trainer.lightning_module
        restoring = isinstance(module, LitGPT) and module.restoring
        if point is None or not restoring or isinstance(error, InputError) or is_lost_process(error):
            raise
        reason = f"{type(error).__name__}: {one_line(error)}"[:200]
        raise CheckpointError(f"{point.path}: does not fit this run ({reason})") from error
    else:
        # "finished" only after the evaluation, which pruned trials do not get
        summary.status = "pruned" if callbacks.prune and callbacks.prune.pruned else "interrupted"
    finally:
        callbacks.waiting.end()
        summary.set_training(plan, trainer.global_step, callbacks.metrics.state_dict())
        # If an error has ended the run, raise that one rather than an error in writing the summary.
        with suppress(OSError) if summary.status == "failed" else nullcontext():
            if processes.rank() == 0:
                write_summary(plan.directory, summary)


@contextmanager
def explaining_the_end(plan: RunPlan) -> Iterator[None]:
    """Add the command that continues the run to the errors that end it early.

    `Stopped` is logged with the command and raised; a `RuntimeError` from a lost rank becomes a `RunFailed`.
    """
    try:
        yield
    except (Stopped, Diverged) as error:
        line = f"{error}; {way_on(plan.directory, plan.config)}"
        if isinstance(error, Diverged):
            raise Diverged(line) from None
        log.info(line)
        raise
    except RuntimeError as error:
        if plan.runtime.devices == 1 or not is_lost_process(error):
            raise
        line = f"another process of this run has died or does not answer; {way_on(plan.directory, plan.config)}"
        raise RunFailed(line) from error
