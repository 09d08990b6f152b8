"""Train a throwaway model before the run has a directory, to learn whether compiling works on this machine."""

import os
from dataclasses import replace
from typing import Any

import lightning as L
import torch
from lightning.fabric.plugins.environments import LightningEnvironment
from torch.utils.data import DataLoader

from base.errors import InputError, is_out_of_memory, one_line
from base.log import log
from base.progress import Progress
from conf.schema import WatchConfig
from training.assemble import build_module
from training.captured_step import WARMUP_STEPS
from training.run_plan import RunPlan


def try_compiling(plan: RunPlan) -> RunPlan:
    """Compile, or capture, a step with the run's shapes; the run's first step then finds the kernels in the cache.

    If this fails, return the plan with `compile=false`, or raise an `InputError` if `compile=` was typed.
    """
    config, runtime = plan.config, plan.runtime
    if config.compile == "false":
        return plan
    try:
        with Progress("compiling, about 20 seconds the first time"):
            _take_steps(plan, WARMUP_STEPS + 1 if config.compile == "graph" else 1)
    except (OSError, RuntimeError) as error:
        if is_out_of_memory(error):
            raise
        what = one_line(next(iter(str(error).strip().splitlines()), ""))[:200]
        reason = f"compile={config.compile}: failed ({type(error).__name__}: {what})"
        if not runtime.auto_compile:
            raise InputError(f"{reason}; use compile=false") from error
        log.warning(f"{reason}; the run is not compiled")
        runtime = replace(runtime, compile="false", why_compiled="compiling failed")
        return replace(plan, config=replace(config, compile="false"), runtime=runtime)
    return plan


def _take_steps(plan: RunPlan, steps: int) -> None:
    """Train a model of one layer as the run does, on this rank's device alone. All blocks share their compiled code."""
    config, trainer, device = plan.config, plan.config.trainer, plan.runtime.device
    devices: Any = trainer.devices if plan.runtime.devices == 1 else 1
    if plan.runtime.devices > 1 and device == "cuda":
        local = int(os.environ.get("LOCAL_RANK", "0"))
        devices = [trainer.devices[local] if isinstance(trainer.devices, list) else local]
    small = replace(config, model=replace(config.model, layers=1), watch=WatchConfig())
    rows = torch.zeros(config.data.batch // plan.runtime.devices, config.model.context + 1, dtype=torch.int64)
    batches: DataLoader = DataLoader([rows] * steps, batch_size=None)  # type: ignore[arg-type]
    same: dict[str, Any] = {key: getattr(trainer, key) for key in ("accelerator", "precision", "deterministic")}
    L.Trainer(
        **same, devices=devices, max_steps=steps, plugins=[LightningEnvironment()], barebones=True, max_epochs=-1,
        limit_val_batches=0, use_distributed_sampler=False,
    ).fit(build_module(replace(plan, config=small, init_model=None)), batches, batches)  # fmt: skip
