"""Train one run, from its command to summary.json."""

import logging
import os
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from base import processes, ranks
from base.errors import printable
from base.jobs import run_lock
from base.jobs.run_directory import Run
from base.log import log
from base.progress import Progress
from conf.schema import Config, to_yaml
from training.begin import find_run, open_directory
from training.errors import Signals, Stopped, watched
from training.launch import check_launch, launch
from training.machine import find_machine
from training.resume import (
    InitModel,
    ResumePoint,
    check_unchanged,
    load_init_model,
    newest_checkpoint,
)

if TYPE_CHECKING:
    from data.text import Text

IMPORTER = "imports PyTorch"  # the name of a thread


def main(arguments: list[str], config: Config) -> int:
    """Train and evaluate a run, and return the exit status of the process.

    `config` is what `compose_command` makes of the `arguments`. A run of one device trains in this
    process. For several devices, this process starts another for each, and waits for them.
    """
    is_named = config.name is not None  # by the user: `find_run` names a restarted job
    run, config, resumed = find_run(arguments, config)
    ranks_to_start = check_launch(config)
    if ranks_to_start:
        run_lock.release()  # because rank 0, another process, locks the run
        # each rank finds the run by its name
        naming = f"resume={run}" if resumed else f"name={run.name}"
        return launch(ranks_to_start, run, [] if is_named else [naming])
    with watched(run) as signals:
        train(run, config, arguments, resumed, signals)
    return 0


def show(arguments: list[str], config: Config) -> str:
    """Return as YAML what a command line would train; `config` is what `compose_command` makes of it."""
    if config.resume is not None:
        _, config, _ = find_run(arguments, config)
    return to_yaml(config)


def train(
    run: Run, config: Config, arguments: Sequence[str], resumed: bool, signals: Signals
) -> None:
    """Train the model of a run, evaluate it, and write the results into the run directory.

    `config` is what the command asks for, `module.config` what is trained: without `auto`.
    """
    # Until `open_directory`, nothing is created but a lock, and the text in the cache.
    with Progress("loading PyTorch and Lightning", patience=0):
        point = newest_checkpoint(run, config.resume) if resumed else None
        initial = None
        if config.init_from is not None and point is None:
            initial = load_init_model(config)
        text, import_seconds = open_text_and_import(config, point or initial)
        machine = find_machine(config, import_seconds)
        # Importing these takes seconds, so a thread has done it while the text was read.
        from data.datamodule import TextDataModule
        from gpt.checkpoint import read_training_checkpoint
        from reports.log_lines import introduce
        from training import results
        from training.assemble import build_callbacks, build_trainer, compile_step
        from training.choosing.choose import choose
        from training.module import LitGPT

    processes.keep_freed_memory()
    # config.yaml stores the name of the run, but not how this command resumes it
    choice = choose(replace(config, name=run.name, resume=None, allow=[]), text, machine)
    module = LitGPT(choice.config, text, machine, point)
    if resumed and ranks.rank() == 0:  # if this fails, the launcher ends the other ranks, too
        check_unchanged(run, module.conditions, point, config.allow)
    if config.resume == "auto":
        what = f"continuing {run}" if resumed else f"{run} does not exist yet, starting it"
        log.info(f"resume: {printable(what)}")
    if point and point.is_over(module.config, module.conditions):
        results.finish(run, module, point)
        return

    notes = [f"GPU        {machine.note}"] if machine.note else []
    if initial:
        notes.append(initial.copy_into(module.net, text.tokenizer))
    if not resumed:
        notes += choice.notes
    display, callbacks = build_callbacks(run, module, point, choice.steps_needed, signals)
    trainer = build_trainer(run, module, point, callbacks)
    compiling = compile_step(module, trainer, config.compile, choice.why_compiled)
    if ranks.rank() == 0:
        open_directory(run, module.config, text, arguments, resumed, trainer.loggers)
        parameters = module.net.num_parameters()
        machine_line = f"{choice.machine}, {compiling}"
        introduce(run, module.config, text, machine_line, parameters, notes)
    data = TextDataModule(text, module.config.data, module.config.model.context, config.seed)
    with results.recording(run, module):
        display.show("setting up" if machine.devices == 1 else "waiting for the other processes")
        trainer.fit(module, data, ckpt_path=point.path if point else None, weights_only=True)
        if signals.received is not None:  # each rank ends by itself after training
            raise Stopped(signals.received, trainer.global_step)
        if ranks.rank() == 0:
            last = read_training_checkpoint(run.checkpoints / "last.ckpt")
            results.write_results(run, module, last)


def open_text_and_import(
    config: Config, origin: ResumePoint | InitModel | None
) -> tuple["Text", float]:
    """Open the text of a run while a thread imports PyTorch and Lightning, and return the seconds that this took.

    The vocabulary contains that of `origin`, the checkpoint or model from which the run starts.
    """
    from data.find import find
    from data.text import open_corpus

    corpus = find(config.data)
    importing = ThreadPoolExecutor(1, IMPORTER)
    import_seconds = importing.submit(import_training, corpus.cache)
    importing.shutdown(wait=False)  # the thread ends with its work
    extra_chars = origin.extra_chars if origin else ""
    text = open_corpus(corpus, config.data, config.model.context, extra_chars)
    if origin:
        text = text.read_before(origin.texts)  # lists what the weights were trained on before
    return text, import_seconds.result()


def import_training(cache: Path) -> float:
    """Import PyTorch, Lightning and what trains, and return the seconds that it took."""
    # Cache compiled kernels beside the encoded texts, for later runs; Inductor reads this when it
    # is loaded.
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(cache.absolute() / "compiled"))
    # Have Inductor test only AMX, VNNI and bf16: testing all vector extensions takes a second in
    # each process.
    os.environ.setdefault("TORCHINDUCTOR_VEC_ISA_OK", "1")
    begun = time.perf_counter()
    import_module("training.assemble")
    import_module("training.results")
    for name in ("lightning.pytorch", "lightning.fabric"):  # hides the tips of Lightning
        logging.getLogger(name).setLevel(logging.WARNING)
    return time.perf_counter() - begun


def is_importing() -> bool:
    """Return whether the thread that imports PyTorch is at work: Python would wait for it at exit."""
    return any(thread.name.startswith(IMPORTER) for thread in threading.enumerate())
