"""Create the LightningModule, the callbacks and the Trainer of a run, and compile its training step."""

import pkgutil
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import lightning as L
import torch
from lightning.fabric.plugins.environments import LightningEnvironment, TorchElasticEnvironment
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.callbacks import WeightAveraging
from lightning.pytorch.strategies import DDPStrategy

from base import ranks
from base.errors import InputError, is_out_of_memory, one_line
from base.progress import Progress
from data.datamodule import ENDLESS
from reports.history import History
from training.callbacks.checkpoints import AtomicCheckpointIO, Checkpoints
from training.callbacks.deadline import Deadline
from training.callbacks.display import Display
from training.callbacks.metrics import Metrics
from training.callbacks.stop_signals import StopSignals
from training.callbacks.watch import Watch
from training.choosing.hardware import compiled_marker
from training.module import LitGPT
from training.profiler import StepProfiler
from training.run_plan import RunPlan


def build_module(plan: RunPlan) -> LitGPT:
    """Return the LightningModule of the run that `plan` describes."""
    text = plan.text
    point = plan.resume_point
    # about the text, for checkpoints
    data = {key: getattr(text, key) for key in ("name", "fingerprint", "extra_chars", "texts")}
    # how the text is divided into documents, or None
    data["divided"] = text.documents and vars(text.documents.rule)
    start_step = point.step if point else 0
    module = LitGPT(
        plan.config,
        text.tokenizer,
        data=data,
        conditions=plan.conditions,
        # compared between the ranks, which must all train the same run from the same step
        start=f"{plan.run.directory.name}, step {start_step}",
        history=point.history if point else History(),
    )
    if init_model := plan.init_model:
        init_model.copy_into(module.net, text.tokenizer)
    return module


def build_callbacks(plan: RunPlan, stops: StopSignals) -> tuple[Display, list[L.Callback]]:
    """Return the callback that shows progress, and all callbacks in the order in which Lightning must call them.

    The display comes first, so that it announces the work of the other callbacks after a
    validation. `Watch` comes before `MovingAverage`, which restores the weights. `Checkpoints`
    comes after all callbacks whose state it saves, and `stops` comes last.
    """
    config, text = plan.config, plan.text
    checkpoints = Checkpoints(plan.run.checkpoints, config.trainer.checkpoint_minutes, stops)
    deadline = Deadline(plan, checkpoints) if config.trainer.max_steps == "auto" else None
    display = Display(text.tokenizer.unit, deadline)
    callbacks: list[L.Callback] = [display, Metrics(config, text, display)]
    if config.trainer.profiler and ranks.rank() == 0:
        callbacks.append(StepProfiler(plan.run.directory / "trace.json", deadline))
    if deadline:
        callbacks.append(deadline)
    callbacks.append(Watch(config.watch, text))
    users_callbacks = instantiate("callbacks", config.callbacks)
    if plan.resume_point:
        plan.resume_point.change_arguments(config.callbacks, users_callbacks)
        if not any(isinstance(callback, WeightAveraging) for callback in users_callbacks):
            plan.resume_point.drop_average()
    callbacks += users_callbacks
    callbacks += [checkpoints, stops]
    return display, callbacks


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


def build_trainer(plan: RunPlan, callbacks: list[L.Callback]) -> L.Trainer:
    """Return Lightning's Trainer for a run."""
    config = plan.config
    point = plan.resume_point
    options: dict[str, Any] = vars(config.trainer).copy()
    # not options of `L.Trainer`; `StepProfiler` replaces its `profiler`
    del options["timeout"], options["checkpoint_minutes"], options["profiler"]
    more = options.pop("more")
    options |= {
        "max_epochs": -1,
        "check_val_every_n_epoch": None,  # val_check_interval counts steps, not epochs
        # -1: a whole validation before the first step
        "num_sanity_val_steps": -1 if plan.init_model else 0,
        "enable_model_summary": False,
        "accelerator": plan.machine.device,
        "devices": plan.machine.local,
        "num_nodes": plan.machine.nodes,
    } | more
    if options["max_steps"] == "auto":
        options["max_steps"] = -1  # until `Deadline` has chosen
    if options["val_check_interval"] == "auto":
        options["val_check_interval"] = ENDLESS  # `Deadline` chooses when to validate
    timeout = timedelta(seconds=config.trainer.timeout)
    options["strategy"] = "auto" if plan.machine.devices == 1 else DDPStrategy(timeout=timeout)
    environment = TorchElasticEnvironment() if ranks.launched() else LightningEnvironment()
    loggers = config.logger.copy()
    # purge_step hides what a killed process logged after its last checkpoint
    if "tensorboard" in loggers:
        loggers["tensorboard"] = loggers["tensorboard"] | {
            "purge_step": point.step + 1 if point else 0
        }
    try:
        return L.Trainer(
            **options,
            callbacks=callbacks,
            logger=instantiate("logger", loggers, save_dir=str(plan.run)),
            plugins=[AtomicCheckpointIO(point), environment],
            use_distributed_sampler=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
        )
    except (MisconfigurationException, ValueError) as error:
        raise InputError(f"trainer: {error}") from None


def compile_step(plan: RunPlan, module: LitGPT, trainer: L.Trainer) -> None:
    """Compile the training step of `module` with torch.compile unless `compile=false`."""
    if plan.config.compile == "false":
        return
    device = trainer.strategy.root_device
    # so that a compiled run draws the same random numbers
    same_random = torch.random.fork_rng([device.index] if device.type == "cuda" else [])
    try:
        with Progress("compiling, about 20 seconds the first time"), same_random:
            # as `fit` does later
            trainer.precision_plugin.convert_module(module).to(device)
            with trainer.precision_plugin.train_step_context():
                module.compile_training_step(plan.config.data.rows(plan.machine.devices))
        # so that later runs know that the compiled code is in the cache
        marker = compiled_marker(plan.config, plan.machine)
        marker.parent.mkdir(parents=True, exist_ok=True)
        marker.touch()
    except (OSError, RuntimeError) as error:
        if is_out_of_memory(error):
            raise
        first_line = next(iter(str(error).strip().splitlines()), "")
        what = one_line(first_line)[:200]
        raise InputError(
            f"compiling failed ({type(error).__name__}: {what}); use compile=false"
        ) from error
