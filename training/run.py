"""Train one run: settle its configuration, then fit the model and write the results."""

import os
import shutil
from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from base import processes, run_directory, run_lock
from base.errors import InputError, printable
from base.files import write_text
from base.log import log, to_file
from base.progress import Progress
from conf.keys import leaves
from conf.merge import Layer, merge_started
from conf.schema import Config, to_dict, to_yaml
from data.config import cache_dir
from training.errors import Stopped, explaining, way_on
from training.init_from import load_init_model
from training.launch import count_devices, launch, share_out
from training.resume import check_resumed, find_point, find_run, remove_leftovers

if TYPE_CHECKING:
    import lightning as L

    from data.text import Text
    from training.run_plan import RunPlan


def main(typed: Layer, started: float) -> int:
    """Train, evaluate and report a run, on one device in this process or on several in a process each.

    `started` is `time.perf_counter()` when the process began. Return the exit status.
    """
    config, run = find_run(typed)
    config = share_out(config, typed)
    if not processes.launched() and (devices := count_devices(config)) > 1:
        run_lock.release()  # rank 0 locks it
        name = config.name or run_directory.new_name(to_yaml(config))
        settled = [f"resume={run}" if run else f"name={name}"]
        if typed.get("name") is not None and typed.get("resume") == "auto":
            settled = []  # each rank finds the run by its name
        return launch(devices, settled, partial(way_on, run or run_directory.RUNS / name))
    fit(settle(config, typed, run, started))
    return 0


def settle(config: Config, typed: Layer, resumed: Path | None, started: float) -> "RunPlan":
    """Settle a run before it begins: checkpoint, text, machine, compiling, `minutes`. Nothing changes later."""
    resume, allow = config.resume, config.allow
    name = run_directory.name_of(resumed) if resumed else config.name or run_directory.new_name(to_yaml(config))
    run = resumed or run_directory.RUNS / name
    # Cache compiled kernels beside the encoded texts, for later runs; torch reads this when it is loaded.
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(cache_dir(config.data).absolute() / "compiled"))
    # Have Inductor test only AMX, VNNI and bf16: testing all vector extensions takes a second in each process.
    os.environ.setdefault("TORCHINDUCTOR_VEC_ISA_OK", "1")
    with Progress("checking checkpoints"):
        point = find_point(run, str(resume)) if resumed else None
    with Progress("loading the model to start from"):
        start = load_init_model(config.init_from) if config.init_from is not None and not point else None
    if start:
        given = dict(leaves(to_dict(config))) if resumed else {**typed}  # config.yaml gives all keys
        merged = merge_started(given, vars(start.model.config), start.meta["vocabulary"]["kind"])
        config = replace(merged, trainer=config.trainer)
    extra_chars = point.extra_chars if point else start.characters if start else ""
    text = open_run_text(config, typed, extra_chars, resumed)
    with Progress("loading PyTorch"):
        from training.machine import choose
        from training.run_plan import RunPlan
        from training.short_text import about_short_text, fit_to_text

        notes = [start.describe(text.tokenizer.vocabulary)] if start else []
        if not resumed:
            config, adapted = fit_to_text(config, typed, len(text.train), text.tokenizer.size, start is not None)
            notes += about_short_text(text, adapted, start is not None)
        config, runtime = choose(config, text)
    config, fresh = replace(config, name=name, resume=None, allow=[]), resume is None
    plan = RunPlan(run, config, typed, text, runtime, start, point, resumed is not None, fresh, started, tuple(notes))
    if resumed and processes.rank() == 0:  # before the other ranks start, or are ended with it
        check_resumed(run, plan.conditions, point, allow)
    if resume == "auto":
        what = f"continuing {run}" if resumed else f"there is no run {run} yet, starting it"
        log.info(f"resume: {printable(what)}")
    if plan.is_over:
        return plan
    with Progress("loading Lightning"):
        from training.budget import choose_steps
        from training.callbacks.stop_signals import StopSignals
        from training.memory import check_memory
        from training.quiet_lightning import quiet_lightning

    processes.keep_freed_memory()
    with quiet_lightning(), StopSignals(), explaining(plan):
        check_memory(plan)
        return choose_steps(plan)


def open_run_text(config: Config, typed: Layer, extra_chars: str, resumed: Path | None) -> "Text":
    """Open the text of a run; if a resumed run does not find it, name the key to type."""
    from data.text import open_text

    try:
        return open_text(config.data, config.model.context, extra_chars=extra_chars)
    except InputError as error:
        if resumed is None or "data.path" in typed:
            raise
        raise InputError(f"{error} (from {resumed / 'config.yaml'}; type data.path= if the text has moved)") from None


def fit(plan: "RunPlan") -> None:
    """Train the model and write the results; of a run without steps left, write what is missing."""
    from data.datamodule import TextDataModule
    from training import assemble
    from training.callbacks.stop_signals import StopSignals
    from training.quiet_lightning import quiet_lightning
    from training.results import write_missing, write_results
    from training.summary_file import recording

    if plan.is_over:
        return write_missing(plan)
    point = plan.resume_point
    to_file(plan.directory / "train.log")
    with quiet_lightning(), StopSignals() as stops, explaining(plan):
        module, callbacks = assemble.build_module(plan), assemble.build_callbacks(plan, stops)
        trainer = assemble.build_trainer(plan, callbacks)
        plan = assemble.compile_or_not(plan, module, trainer)
        config, metrics = plan.config, callbacks[0]
        if processes.rank() == 0:
            open_directory(plan, trainer.loggers, module.net.num_parameters())
        with recording(plan, metrics, trainer) as summary:
            metrics.show("waiting for the other processes" if plan.runtime.devices > 1 else "setting up")
            data = TextDataModule(plan.text, config.data, config.model.context, config.seed)
            trainer.fit(module, data, ckpt_path=point.path if point else None, weights_only=True)
            if stops.received is not None:  # each rank ends by itself after training
                raise Stopped(stops.received, trainer.global_step)
        if trainer.max_steps != config.trainer.max_steps:  # `minutes` has settled the steps again
            config = replace(config, trainer=replace(config.trainer, max_steps=trainer.max_steps))
            plan = replace(plan, config=config)
        if processes.rank() == 0:
            saved = trainer.strategy.checkpoint_io.saved  # type: ignore[attr-defined]
            write_results(plan, summary, saved, module.score if saved["global_step"] >= trainer.max_steps else None)


def open_directory(plan: "RunPlan", loggers: "Iterable[L.pytorch.loggers.Logger]", parameters: int) -> None:
    """Make and lock the run directory, write config.yaml and summary.json, log hyperparameters, introduce the run."""
    from reports.log_lines import introduce
    from training.summary_file import Summary, write_summary

    run = plan.directory
    run.mkdir(parents=True, exist_ok=True)
    run_lock.lock(run)  # of two processes with the same name, one gets the directory
    if plan.fresh:
        run_directory.check_free(run_directory.name_of(run))  # again: since then another process may have made a run
        if run_directory.is_debug(run.name):
            for left in set(run.iterdir()) - {run / ".lock"}:
                shutil.rmtree(left) if left.is_dir() and not left.is_symlink() else left.unlink()
    remove_leftovers(run)
    write_text(run / "config.yaml", to_yaml(plan.config))  # from here on the directory is a run
    (run / "checkpoints").mkdir(exist_ok=True)
    write_summary(run, Summary("running", text=plan.text.name))
    for logger in loggers:
        logger.log_hyperparams(dict(leaves(to_dict(plan.config))))
    introduce(run, plan.config, plan.text, plan.runtime.describe(plan.config), parameters, list(plan.notes))
