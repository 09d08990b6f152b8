"""Train one run as its plan says: create its directory, fit the model with Lightning and write the results."""

import json
import shutil
from collections.abc import Iterable

import lightning as L

from base import ranks
from base.errors import InputError, one_line, public
from base.files import write_text
from base.jobs import run_directory, run_lock
from base.jobs.run_directory import Summary
from base.log import log, to_file
from conf.schema import to_yaml
from data.datamodule import TextDataModule
from reports.log_lines import introduce
from training import assemble
from training.callbacks.stop_signals import StopSignals
from training.errors import Stopped, with_advice
from training.loggers import public_settings
from training.quiet_lightning import quiet_lightning
from training.results import recording, write_missing, write_results, write_summary
from training.resume import remove_leftovers
from training.run_plan import RunPlan


def fit(plan: RunPlan) -> None:
    """Train the model of a run as `plan` says, evaluate it and write the results into the run directory."""
    if plan.is_over:
        with with_advice(plan.run, plan.config.optim, plan.machine.devices):
            write_missing(plan)
        return
    point = plan.resume_point
    to_file(plan.run.directory / "train.log")
    with (
        quiet_lightning(),
        StopSignals() as stops,
        with_advice(plan.run, plan.config.optim, plan.machine.devices),
    ):
        module = assemble.build_module(plan)
        display, callbacks = assemble.build_callbacks(plan, stops)
        trainer = assemble.build_trainer(plan, callbacks)
        assemble.compile_step(plan, module, trainer)
        if ranks.rank() == 0:
            open_directory(plan, trainer.loggers, module.net.num_parameters())
        with recording(plan, module, display):
            if plan.machine.devices > 1:
                display.show("waiting for the other processes")
            else:
                display.show("setting up")
            config = plan.config
            data = TextDataModule(plan.text, config.data, config.model.context, config.seed)
            trainer.fit(module, data, ckpt_path=point.path if point else None, weights_only=True)
            if stops.received is not None:  # each rank ends by itself after training
                raise Stopped(stops.received, trainer.global_step)
        if trainer.max_steps < 0:  # a callback ended the run before `Deadline` chose the number
            plan = plan.ended_by_callback(trainer.global_step, module.history)
            write_text(plan.run.config, to_yaml(plan.config))
        else:
            plan = plan.with_steps(trainer.max_steps, trainer.val_check_batch)  # type: ignore[arg-type]
        if ranks.rank() == 0:
            saved = trainer.strategy.checkpoint_io.saved  # type: ignore[attr-defined]
            is_validated = saved["history"]["validated_step"] == saved["global_step"]
            write_results(plan, saved, module.score if is_validated else None)


def open_directory(
    plan: RunPlan, loggers: Iterable[L.pytorch.loggers.Logger], parameters: int
) -> None:
    """Create and lock the run directory with config.yaml and summary.json, and describe the run."""
    run = plan.run
    directory = run.directory
    directory.mkdir(parents=True, exist_ok=True)
    # if two processes start runs of the same name, only one gets the directory
    run_lock.lock(directory)
    # Another process may have created the run before this one has locked its directory.
    if plan.new:
        run_directory.check_free(run.name, plan.debug)
        if run.is_debug:
            for entry in set(directory.iterdir()) - {directory / ".lock"}:
                if entry.is_dir() and not entry.is_symlink():
                    shutil.rmtree(entry)
                else:
                    entry.unlink()
            log.info(f"debug      replaces the earlier run in {run}")
    elif not plan.resumed:  # resume=auto, which found no run
        run_directory.check_not_begun(run.name)
    remove_leftovers(run)
    for logger in loggers:
        try:
            logger.log_hyperparams(public_settings(plan.config))
        except OSError:  # such as a full disk, which is no fault of the logger
            raise
        # whatever the library of a logger raises, such as W&B without a key
        except Exception as error:
            if plan.new:
                shutil.rmtree(directory)
            raise InputError(
                f"logger: {type(logger).__name__} cannot start: {one_line(error)}"
            ) from None
    arguments = [*(run.arguments or ()), *plan.arguments]  # of a key that is set twice, the last
    by_key = {argument.partition("=")[0]: public(argument) for argument in arguments}
    write_text(run.overrides, json.dumps(list(by_key.values()), ensure_ascii=False, indent=1))
    write_text(run.config, to_yaml(plan.config))  # from here on the directory is a run
    run.checkpoints.mkdir(exist_ok=True)
    write_summary(
        run,
        Summary(
            status="running", debug=plan.debug, text=plan.text.name, text_sha256=plan.text.sha256
        ),
    )
    introduce(run, plan.config, plan.text, plan.choice.machine, parameters, plan.notes)
