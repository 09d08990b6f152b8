"""Train one run: settle its configuration, assemble its parts, fit, finish."""

import os
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from base import processes, run_directory
from base.errors import printable
from base.log import log, to_file
from base.progress import Progress
from conf.merge import RULES, merge_started
from conf.schema import Config, to_yaml
from data.downloads import cache_dir
from training.devices import share_out
from training.init_from import load_init_model
from training.resume import check_resumed, find_point, resolve

if TYPE_CHECKING:
    from data.text import Text
    from training.run_plan import RunPlan


def main(typed: Config, keys: list[str], started: float) -> float | None:
    """Train, evaluate and report the run of the configuration `typed`, in which `keys` were typed.

    `started` is `time.perf_counter()` when the process began. Return the validation loss of the best checkpoint in nats
    per token; None on ranks other than 0 and for a pruned run.
    """
    plan = settle(typed, keys, started)
    if plan.is_over:
        from training.finish import finish_again

        return finish_again(plan)
    return fit(plan)


def settle(typed: Config, keys: list[str], started: float) -> "RunPlan":
    """Settle a run before it begins: resume, devices, text, machine, compiling, `minutes`. Nothing changes later."""
    config, resumed = resolve(typed, keys)
    config = share_out(config, keys)
    resume, allow = config.resume, config.allow
    name = run_directory.name_of(resumed) if resumed else config.name or run_directory.new_name(to_yaml(config))
    run = resumed or run_directory.RUNS / name
    share_compiled(config)
    with Progress("checking checkpoints"):
        point = find_point(run, str(resume)) if resumed else None
    with Progress("loading the model to start from"):
        start = load_init_model(config.init_from) if config.init_from is not None and not point else None
    if start:
        given = list(RULES) if resumed else keys  # all keys are given by the config.yaml of a resumed run
        config = merge_started(config, given, vars(start.model.config), start.meta["vocabulary"]["kind"])
    known = point.extra_chars if point else start.characters if start else ""
    text = open_run_text(config, keys, known, resumed, as_before=resumed is not None and "text" not in allow)
    with Progress("loading PyTorch"):
        from training.machine import choose
        from training.run_plan import RunPlan

        config, runtime = choose(config, text)
    config = replace(config, name=name, resume=None, allow=[])
    plan = RunPlan(run, config, keys, text, runtime, start, point, resumed is not None, resume is None, started)
    if resumed and processes.rank() == 0:  # before the other ranks start, or are ended with it
        check_resumed(run, plan.conditions, point, allow)
    if resume == "auto":
        what = f"continuing {run}" if resumed else f"there is no run {run} yet, starting it"
        log.info(f"resume: {printable(what)}")
    return plan if plan.is_over else settle_by_trial(plan)


def share_compiled(config: Config) -> None:
    """Cache compiled kernels beside the cached texts, for later runs. Call this before torch is loaded."""
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(cache_dir(config.data).absolute() / "compiled"))
    # Have Inductor test only AMX, VNNI and bf16: testing all vector extensions takes a second in each process.
    os.environ.setdefault("TORCHINDUCTOR_VEC_ISA_OK", "1")


def settle_by_trial(plan: "RunPlan") -> "RunPlan":
    """Train a throwaway model for a few steps, to learn whether they compile and what fits into `minutes`."""
    with Progress("loading Lightning"):
        from training.budget import MIN_STEPS, settle_minutes, too_few
        from training.callbacks.stop_signals import StopSignals
        from training.outcome import explaining_out_of_memory, explaining_the_end
        from training.quiet_lightning import quiet_lightning
        from training.trial import try_compiling

    if processes.started_by_another_rank():
        processes.end_with(int(os.environ["CHARGPT_PARENT"]))
    else:
        processes.set_parent()
    processes.keep_freed_memory()
    steps, start = plan.config.trainer.max_steps, plan.init_model
    if start:
        plan = replace(plan, notes=(start.describe(plan.text.tokenizer.vocabulary),))
    with quiet_lightning(), StopSignals(), explaining_the_end(plan), explaining_out_of_memory(plan):
        if plan.config.minutes is not None and not plan.resumed:
            return settle_minutes(plan)
        if steps < MIN_STEPS and not plan.resume_point and not start:
            enough = f"{MIN_STEPS} would be enough to begin with, or minutes=1"
            note = f"trainer.max_steps={steps}: {too_few(steps)}; {enough}"
            plan = replace(plan, notes=(note,))
        return try_compiling(plan)


def open_run_text(config: Config, keys: list[str], known: str, resumed: Path | None, as_before: bool) -> "Text":
    """Open the text of a run; if a resumed run does not find it, name the key to type."""
    from data.corpus import DataError
    from data.open_text import open_text

    try:
        return open_text(config.data, config.model.context, extra_chars=known, as_before=as_before)
    except DataError as error:
        if resumed is None or "data.path" in keys:
            raise
        raise DataError(f"{error} (from {resumed / 'config.yaml'}; type data.path= if the text has moved)") from None


def fit(plan: "RunPlan") -> float | None:
    """Train and finish a run; return what `main` returns."""
    from data.datamodule import TextDataModule
    from training import assemble
    from training.callbacks.stop_signals import StopSignals
    from training.finish import conclude
    from training.outcome import explaining_out_of_memory, explaining_the_end, recording
    from training.prepare_directory import open_directory
    from training.quiet_lightning import quiet_lightning

    config, point = plan.config, plan.resume_point
    to_file(plan.directory / "train.log")
    with quiet_lightning(), StopSignals() as stops, explaining_the_end(plan):
        with explaining_out_of_memory(plan):
            module = assemble.build_module(plan)
        callbacks = assemble.build_callbacks(plan, stops)
        with closing(callbacks.pictures):
            trainer = assemble.build_trainer(plan, callbacks)
            if processes.rank() == 0:
                open_directory(plan, trainer, module.net.num_parameters())
            with recording(plan, callbacks, trainer) as summary:
                callbacks.waiting.show("waiting for the other processes" if plan.runtime.devices > 1 else "setting up")
                data = TextDataModule(plan.text, config.data, config.model.context, config.seed)
                trainer.fit(module, data, ckpt_path=point.path if point else None, weights_only=True)
            return conclude(plan, callbacks, summary, module)
