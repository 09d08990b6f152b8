"""Assemble the parts of a run: the module, the callbacks in their order, the Trainer."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lightning as L
import torch
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.profilers import Profiler

from base import processes
from base.errors import InputError
from base.files import write_text
from conf.compose import make
from conf.schema import to_dict, to_yaml
from data.batches import VALIDATION_CHARACTERS
from data.datamodule import TextDataModule
from data.passages import prompts
from gpt.transfer import init_from
from reports.picture_data import choose_shown
from reports.tensorboard import cut_events
from training.callbacks.checkpoints import Checkpoints
from training.callbacks.metrics import Metrics
from training.callbacks.pictures import Pictures
from training.callbacks.prune import Prune
from training.callbacks.same_start import SameStart
from training.callbacks.samples import Samples
from training.callbacks.stop_signals import StopSignals
from training.callbacks.waiting import Waiting
from training.machine import choose_capture, conditions
from training.module import LitGPT
from training.profiler import StepProfiler, make_profiler
from training.run_plan import RunPlan
from training.strategy import AtomicCheckpointIO, make_environment, make_strategy
from training.study import judge


@dataclass(frozen=True)
class Callbacks:
    """The callbacks of a run. Their order carries meaning, see `in_order`."""

    waits: Waiting
    same_start: SameStart
    watch: Metrics
    step_profiler: StepProfiler | None
    configured: list[L.Callback]
    prune: Prune | None
    pictures: Pictures
    samples: Samples
    checkpoints: Checkpoints
    stops: StopSignals

    def in_order(self) -> list[L.Callback]:
        """Return them as Lightning must call them.

        Waiting first, so that it also shows what the others do after a validation. Metrics before all that save, so
        that what they save is complete. Checkpoints after all whose state it saves. StopSignals last: it leaves when
        all are done.
        """
        order = [
            self.waits, self.same_start, self.watch, self.step_profiler, *self.configured, self.prune,
            self.pictures, self.samples, self.checkpoints, self.stops,
        ]  # fmt: skip
        return [callback for callback in order if callback is not None]


def build_module(plan: RunPlan) -> LitGPT:
    """Build the model with its loss and optimizer, from its initial weights or those of another model."""
    config, text, point = plan.config, plan.text, plan.resume_point
    before = point.contents["conditions"] if point else {}
    asked = {"compile_asked": before["compile_asked"]} if "compile_asked" in before else {}
    looked_into = config.trainer.profiler is not None or config.trainer.detect_anomaly
    module = LitGPT(
        config,
        text.tokenizer,
        data={"name": text.name, "fingerprint": text.fingerprint, "known": text.extra_chars} | to_dict(config)["data"],
        conditions=conditions(config, text, plan.runtime) | asked,
        capture=choose_capture(config.compile, plan.runtime.devices, looked_into),
        fell_back=_fallback(plan),
    )
    if start := plan.init_model:
        tokenizer = text.tokenizer
        places = tokenizer.encode(start.characters) if start.characters else range(tokenizer.size)
        init_from(module.net, start.model, torch.as_tensor(places))
    return module


def _fallback(plan: RunPlan) -> Callable[[str, bool], None]:
    """Return what `LitGPT` calls when compiling or capturing fails, and at the next checkpoint."""

    def fell_back(compiled: str, saved: bool) -> None:
        plan.config.compile = compiled
        if saved and processes.rank() == 0:
            write_text(plan.directory / "config.yaml", to_yaml(plan.config))

    return fell_back


def build_callbacks(plan: RunPlan, stops: StopSignals) -> Callbacks:
    """Build the callbacks."""
    config, text, point, devices = plan.config, plan.text, plan.resume_point, plan.runtime.devices
    trace = config.trainer.profiler == "pytorch" and processes.rank() == 0
    return Callbacks(
        waits=Waiting(min(VALIDATION_CHARACTERS, len(text.validation)) // devices),
        same_start=SameStart(
            conditions(config, text, plan.runtime) | {"run": plan.directory.name, "step": point.step if point else 0},
            config.trainer.timeout,
        ),
        watch=Metrics(
            config.data.batch * config.model.context,
            len(text.train) / text.characters["train"],
            warn=config.minutes is None,
        ),
        step_profiler=StepProfiler(plan.directory / "trace.json") if trace else None,
        configured=make(config.callbacks),
        prune=_build_prune(plan),
        pictures=Pictures(config.watch, choose_shown(text, config.model.context)),
        samples=Samples(prompts(text), text.tokenizer.decode),
        checkpoints=stops.checkpoints,
        stops=stops,
    )


def _build_prune(plan: RunPlan) -> Prune | None:
    trainer, point = plan.config.trainer, plan.resume_point
    if (number := os.environ.get("CHARGPT_TRIAL")) is not None:
        return Prune(judge(plan.directory.parent, int(number), trainer.val_check_interval, trainer.max_steps))
    if point:  # the search is no longer asked about a trial that someone resumes by hand
        point.contents["callbacks"].pop("Prune", None)
    return None


def build_trainer(plan: RunPlan, callbacks: Callbacks) -> L.Trainer:
    """Build the Trainer.

    Raises:
        InputError: Lightning refuses an option, in one line.
    """
    config, point = plan.config, plan.resume_point
    if not plan.fresh and processes.rank() == 0:
        cut_events(plan.directory, point.step if point else -1)
    profiler: Profiler | None = None
    if config.trainer.profiler in ("simple", "advanced") and processes.rank() == 0:
        profiler = make_profiler(config.trainer.profiler, plan.directory)
    options: dict[str, Any] = vars(config.trainer) | {
        "strategy": make_strategy(config.trainer.strategy, plan.runtime.devices),
        "profiler": profiler,
    }
    del options["timeout"]
    try:
        return L.Trainer(
            **options,
            callbacks=callbacks.in_order(),
            logger=make(config.logger, save_dir=str(plan.directory)),
            plugins=[AtomicCheckpointIO(point.contents if point else None), make_environment()],
            max_epochs=-1,
            check_val_every_n_epoch=None,
            inference_mode=False,  # what FSDP gathers in a validation serves training, too
            num_sanity_val_steps=-1 if plan.init_model else 0,  # all: how good it is before the first step
            use_distributed_sampler=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
    except (MisconfigurationException, ValueError) as error:
        raise InputError(f"trainer: {error}") from None


def data_of(plan: RunPlan) -> TextDataModule:
    """Batches and windows of the text."""
    return TextDataModule(plan.text, plan.config.data, plan.config.model.context, plan.config.seed)


def profile_path(plan: RunPlan) -> Path | None:
    """Where the profiler writes."""
    names = {"pytorch": "trace.json", "simple": "fit-profile.txt", "advanced": "fit-profile.txt"}
    kind = plan.config.trainer.profiler
    return plan.directory / names[kind] if kind else None
