"""Build the parts of a run: the module, the callbacks in their order, the Trainer."""

import os
from dataclasses import dataclass
from functools import partial
from typing import Any

import lightning as L
import torch
from lightning.fabric.utilities.exceptions import MisconfigurationException

from base import processes
from base.errors import InputError
from conf.plugins import make
from conf.schema import to_dict
from data.passages import prompts
from gpt.transfer import copy_weights
from reports.picture_data import choose_passage
from training.callbacks.checkpoints import Checkpoints
from training.callbacks.metrics import Metrics
from training.callbacks.pictures import Pictures
from training.callbacks.prune import Prune
from training.callbacks.same_start import SameStart
from training.callbacks.samples import Samples
from training.callbacks.stop_signals import StopSignals
from training.callbacks.waiting import Waiting
from training.captured_step import CapturedLitGPT, choose_capture
from training.checkpoint_io import AtomicCheckpointIO
from training.module import LitGPT
from training.profiler import StepProfiler
from training.run_plan import RunPlan
from training.strategy import make_environment, make_strategy
from training.study import make_pruner


@dataclass(frozen=True)
class Callbacks:
    """The callbacks of a run; Lightning must call them in the order of the fields.

    `waiting` comes first: it shows what the others do after a validation. `metrics` precedes all callbacks that save,
    so that its state is complete, and `checkpoints` follows all whose state it saves. `stops` is last: it ends the run.
    """

    waiting: Waiting
    same_start: SameStart
    metrics: Metrics
    step_profiler: StepProfiler | None
    configured: list[L.Callback]
    prune: Prune | None
    pictures: Pictures
    samples: Samples
    checkpoints: Checkpoints
    stops: StopSignals

    def in_order(self) -> list[L.Callback]:
        """Return those that the run has, as Lightning takes them."""
        groups = [each if isinstance(each, list) else [each] for each in vars(self).values()]
        return [callback for group in groups for callback in group if callback is not None]


def build_module(plan: RunPlan) -> LitGPT:
    """Build the model with its loss and optimizer, from its initial weights or those of another model."""
    config, text = plan.config, plan.text
    inspected = config.trainer.profiler is not None or config.trainer.detect_anomaly
    capture = choose_capture(config.compile, plan.runtime.devices, inspected)
    make_module = partial(CapturedLitGPT, capture=capture) if capture else LitGPT
    module = make_module(
        config,
        text.tokenizer,
        data={"name": text.name, "fingerprint": text.fingerprint, "known": text.extra_chars} | to_dict(config)["data"],
        conditions=plan.conditions,
    )
    if start := plan.init_model:
        ids = text.tokenizer.encode(start.characters) if start.characters else range(text.tokenizer.size)
        copy_weights(module.net, start.model, torch.as_tensor(ids))
    return module


def build_callbacks(plan: RunPlan, stops: StopSignals) -> Callbacks:
    """Build the callbacks, except `stops`, which handles signals already."""
    config, text, point = plan.config, plan.text, plan.resume_point
    trace = config.trainer.profiler and processes.rank() == 0
    return Callbacks(
        waiting=Waiting(),
        same_start=SameStart(
            plan.conditions | {"run": plan.directory.name, "step": point.step if point else 0}, config.trainer.timeout
        ),
        metrics=Metrics(
            config.data.batch * config.model.context, len(text.train) / text.characters["train"], text.tokenizer.unit
        ),
        step_profiler=StepProfiler(plan.directory / "trace.json") if trace else None,
        configured=make("callbacks", config.callbacks),
        prune=_build_prune(plan),
        pictures=Pictures(config.watch, choose_passage(text, config.model.context)),
        samples=Samples(prompts(text), text.tokenizer.decode, config.watch.sample_length),
        checkpoints=Checkpoints(plan.directory / "checkpoints", 60 * config.trainer.checkpoint_minutes, stops),
        stops=stops,
    )


def _build_prune(plan: RunPlan) -> Prune | None:
    trainer, point = plan.config.trainer, plan.resume_point
    if (number := os.environ.get("CHARGPT_TRIAL")) is not None:
        return Prune(make_pruner(plan.directory.parent, int(number), trainer.val_check_interval, trainer.max_steps))
    if point:  # a trial resumed by hand is not pruned; Lightning would warn that this state has no callback
        point.contents["callbacks"].pop("Prune", None)
    return None


def build_trainer(plan: RunPlan, callbacks: Callbacks) -> L.Trainer:
    """Build the Trainer; raise an `InputError` if Lightning refuses an option."""
    config, point = plan.config, plan.resume_point
    options: dict[str, Any] = vars(config.trainer).copy()
    del options["timeout"], options["checkpoint_minutes"], options["profiler"]
    options["strategy"] = make_strategy(config.trainer.strategy, plan.runtime.devices)
    loggers = make("logger", config.logger, save_dir=str(plan.directory))
    try:
        return L.Trainer(
            **options,
            callbacks=callbacks.in_order(),
            logger=loggers,
            plugins=[AtomicCheckpointIO(point.contents if point else None), make_environment()],
            max_epochs=-1,
            check_val_every_n_epoch=None,
            inference_mode=False,  # FSDP reuses the tensors of a validation in training
            num_sanity_val_steps=-1 if plan.init_model else 0,  # -1: a whole validation before the first step
            use_distributed_sampler=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
    except (MisconfigurationException, ValueError) as error:
        raise InputError(f"trainer: {error}") from None
