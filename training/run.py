"""Train one run: choose every open setting and the checkpoint to resume from, fit the model and write the results."""

import os
import time
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from base import processes, ranks
from base.errors import InputError, printable
from base.jobs import run_lock
from base.jobs.run_directory import Run
from base.log import log
from base.progress import Progress
from conf.keys import with_folders
from conf.overrides import Command
from conf.schema import Config, to_yaml
from training.errors import stoppable, with_advice
from training.launch import check_launch, launch
from training.machine import StartUp, find_machine
from training.resume import (
    InitModel,
    ResumePoint,
    check_resumed,
    find_point,
    find_run,
    is_debug,
    load_init_model,
)

if TYPE_CHECKING:
    from data.text import Text
    from training.run_plan import RunPlan


def main(command: Command, config: Config, started: float) -> int:
    """Train and evaluate a run, write its report, and return the exit status of the process.

    `config` is composed from the arguments of the `command`. If the run uses one device, it
    trains in this process. If it uses several devices, this process starts another process for
    each device and waits for them.
    """
    is_named = config.name is not None
    (arguments,) = command.runs()
    config, run, resumed = find_run(arguments, config)
    ranks_to_start = check_launch(config)
    if ranks_to_start:
        run_lock.release()  # because rank 0, another process, locks the run
        settled = list[str]()  # each rank finds the run by its name
        if not is_named:
            settled = [f"resume={run}" if resumed else f"name={run.name}"]
        return launch(ranks_to_start, settled, run)
    with stoppable(run):
        plan = settle(command, config, run, resumed, started)
        from training.fit import fit  # loads what evaluates and reports

        fit(plan)
    return 0


def show(arguments: list[str], config: Config) -> str:
    """Return as YAML what a command line would train; `config` is composed from its `arguments`."""
    if config.resume is not None:
        config, _, _ = find_run(arguments, config)
    return to_yaml(config)


def settle(command: Command, config: Config, run: Run, resumed: bool, started: float) -> "RunPlan":
    """Return the plan of a run: text, devices, checkpoint, and a configuration without `auto`."""
    not_kept = ("name", "resume", "allow")  # because `arguments` repeat the run under another name
    arguments = [text for key, text in command.arguments.items() if key not in not_kept]
    # a resumed run that takes all settings of its data from its config.yaml
    same_data = resumed and not any(argument.startswith("data") for argument in arguments)
    with Progress("checking checkpoints"):
        point = find_point(run, config) if resumed else None
    init_model = None
    with Progress("loading the model to start from"):
        if config.init_from is not None and point is None:
            init_model = load_init_model(config)
    text, importing = open_run_text(config, point or init_model, run if same_data else None)
    with Progress("loading PyTorch and Lightning"):
        startup = StartUp(started, import_seconds=importing.result())
        from training.choosing.choose import choose, with_defaults
        from training.quiet_lightning import quiet_lightning
        from training.run_plan import RunPlan

    processes.keep_freed_memory()
    machine = find_machine(config)
    # with_advice, because with `minutes` the choice trains a few steps to time them
    optim = with_defaults(config.optim)
    with quiet_lightning(), with_advice(run, optim, machine.devices):
        # config.yaml stores the name of the run, but not how this command resumes it
        to_store = replace(config, name=run.name, resume=None, allow=[])
        choice = choose(to_store, text, machine, startup)
    plan = RunPlan(
        run,
        choice,
        text,
        machine,
        init_model,
        point,
        resumed,
        new=config.resume is None,
        debug=not resumed and is_debug(list(command.arguments)),
        arguments=with_folders(arguments),
        startup=startup,
    )
    if resumed and ranks.rank() == 0:  # if this fails, the launcher ends the other ranks, too
        check_resumed(run, plan.conditions, point, config.allow)
    if config.resume == "auto":
        what = f"continuing {run}" if resumed else f"{run} does not exist yet, starting it"
        log.info(f"resume: {printable(what)}")
    return plan


def load_training(cache: Path) -> float:
    """Import PyTorch, Lightning and what trains, and return the seconds that it took."""
    # Cache compiled kernels beside the encoded texts, for later runs; Inductor reads this when it
    # is loaded.
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(cache.absolute() / "compiled"))
    # Have Inductor test only AMX, VNNI and bf16: testing all vector extensions takes a second in
    # each process.
    os.environ.setdefault("TORCHINDUCTOR_VEC_ISA_OK", "1")
    begun = time.perf_counter()
    import_module("training.fit")
    return time.perf_counter() - begun


def open_run_text(
    config: Config, origin: ResumePoint | InitModel | None, stored: Run | None
) -> tuple["Text", Future[float]]:
    """Open the text of a run, whose vocabulary contains that of `origin`, the checkpoint or model it starts from.

    While the text is read, a thread imports PyTorch: the second result is its future
    (`load_training`). `stored` is the run whose config.yaml names the text, or None if the command
    line does.
    """
    from data.find import find
    from data.text import open_corpus

    try:
        corpus = find(config.data)
        importing = ThreadPoolExecutor(1).submit(load_training, corpus.cache)
        text = open_corpus(
            corpus, config.data, config.model.context, origin.extra_chars if origin else ""
        )
        if origin:
            text = text.read_before(origin.texts)  # lists what the weights were trained on before
        return text, importing
    except InputError as error:
        if stored is None:
            raise
        raise InputError(
            f"{error} (from {stored.config}; set data.path= if the text has moved)"
        ) from None
