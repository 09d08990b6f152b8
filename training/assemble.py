"""Create the callbacks and Lightning's Trainer of a run, and compile its training step."""

import pkgutil
from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from typing import Any

import lightning as L
import torch
from lightning.fabric.plugins.environments import LightningEnvironment, TorchElasticEnvironment
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.strategies import DDPStrategy

from base import ranks
from base.errors import InputError, is_out_of_memory, one_line
from base.jobs.run_directory import Run
from base.progress import Progress
from data.datamodule import ENDLESS
from training.callbacks.checkpoints import AtomicCheckpointIO, Checkpoints
from training.callbacks.deadline import Deadline
from training.callbacks.display import Display
from training.callbacks.metrics import Metrics
from training.callbacks.watch import Watch
from training.errors import Signals
from training.module import LitGPT
from training.profiler import StepProfiler
from training.resume import ResumePoint


def build_trainer(
    run: Run, module: LitGPT, point: ResumePoint | None, callbacks: list[L.Callback]
) -> L.Trainer:
    """Return Lightning's Trainer for a run."""
    config = module.config
    machine = module.machine
    options: dict[str, Any] = vars(config.trainer).copy()
    # not options of `L.Trainer`; `StepProfiler` replaces its `profiler`
    del options["timeout"], options["checkpoint_minutes"], options["profiler"]
    more = options.pop("more")
    options |= {
        "max_epochs": -1,
        "check_val_every_n_epoch": None,  # val_check_interval counts steps, not epochs
        # -1: a whole validation of the model to start from, before the first step
        "num_sanity_val_steps": -1 if config.init_from is not None and point is None else 0,
        "enable_model_summary": False,
        "accelerator": machine.device,
        "devices": machine.local,
        "num_nodes": machine.nodes,
    } | more
    if options["max_steps"] == "auto":
        options["max_steps"] = -1  # until `Deadline` has chosen
    if options["val_check_interval"] == "auto":
        options["val_check_interval"] = ENDLESS  # `Deadline` chooses when to validate
    timeout = timedelta(seconds=config.trainer.timeout)
    options["strategy"] = "auto" if machine.devices == 1 else DDPStrategy(timeout=timeout)
    environment = TorchElasticEnvironment() if ranks.launched() else LightningEnvironment()
    loggers = config.logger.copy()
    if "tensorboard" in loggers:
        # hides what a killed process logged after its last checkpoint
        purge_step = point.step + 1 if point else 0
        loggers["tensorboard"] = loggers["tensorboard"] | {"purge_step": purge_step}
    try:
        return L.Trainer(
            **options,
            callbacks=callbacks,
            logger=instantiate("logger", loggers, save_dir=str(run)),
            plugins=[AtomicCheckpointIO(point), environment],
            use_distributed_sampler=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
        )
    except (MisconfigurationException, ValueError) as error:
        raise InputError(f"trainer: {error}") from None


def build_callbacks(
    run: Run, module: LitGPT, point: ResumePoint | None, steps_needed: float, signals: Signals
) -> tuple[Display, list[L.Callback]]:
    """Return the callback that shows progress, and all callbacks in the order in which Lightning must call them.

    The display comes first, so that it announces the work of the other callbacks after a
    validation. `Watch` comes before `MovingAverage`, which restores the weights. `Checkpoints`
    comes last: it saves the state of all others, and after a signal it ends the run. With
    `minutes`, the run takes at most `steps_needed` steps.
    """
    config = module.config
    text = module.text
    checkpoints = Checkpoints(run.checkpoints, config.trainer.checkpoint_minutes, signals)
    deadline = None
    if config.trainer.max_steps == "auto":
        deadline = Deadline(run, module, steps_needed, checkpoints)
    display = Display(text.tokenizer.unit, deadline)
    callbacks: list[L.Callback] = [display, Metrics(config, text, display)]
    if config.trainer.profiler and ranks.rank() == 0:
        callbacks.append(StepProfiler(run.directory / "trace.json", deadline))
    if deadline:
        callbacks.append(deadline)
    callbacks.append(Watch(config.watch, text))
    users_callbacks = instantiate("callbacks", config.callbacks)
    if point:
        point.change_callbacks(config.callbacks, users_callbacks)
    return display, [*callbacks, *users_callbacks, checkpoints]


def instantiate(group: str, plugins: Mapping[str, Mapping[str, Any]], **more: Any) -> list[Any]:
    """Create the plug-ins of `group`, `callbacks` or `logger`; each constructor also receives `more`."""
    instances = []
    for name, arguments in plugins.items():
        options = {**arguments, **more}
        try:
            create = pkgutil.resolve_name(options.pop("_target_"))
            instances.append(create(**options))
        except Exception as error:
            reason = one_line(error)[:300] or type(error).__name__
            if isinstance(error, ModuleNotFoundError) and "wandb" in reason:
                reason = "needs wandb: pip install -c constraints.txt -e '.[wandb]'"
            raise InputError(f"{group}={name}: cannot be created: {reason}") from None
    return instances


def compile_step(module: LitGPT, trainer: L.Trainer, asked: str, why: str) -> str:
    """Compile the training step of `module` unless `compile=false`, and return what was done, and why.

    If `auto` was `asked` for and compiling fails, the run continues without it.
    """
    config = module.config
    if config.compile == "false":
        return f"not compiled ({why})"
    device = trainer.strategy.root_device
    # so that a compiled run draws the same random numbers
    same_random = torch.random.fork_rng([device.index] if device.type == "cuda" else [])
    try:
        with Progress("compiling, about 20 seconds the first time"), same_random:
            # as `fit` does later
            trainer.precision_plugin.convert_module(module).to(device)
            with trainer.precision_plugin.train_step_context():
                module.compile_training_step(config.data.rows(module.machine.devices))
    except (OSError, RuntimeError) as error:
        if is_out_of_memory(error):
            raise
        what = f"compiling failed ({type(error).__name__}: {one_line(error)[:200]})"
        if asked == "true":
            raise InputError(
                f"compile=true: {what}; use compile=false, and 'allow=[compile]' to resume with it"
            ) from error
        module.zero_grad()
        module.config = replace(config, compile="false")
        module.conditions |= {"compile": "false"}
        return f"not compiled, because {what}"
    return f"compiled ({why})"
