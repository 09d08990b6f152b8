"""For a time limit (`minutes=N`), time a step of models of growing size, and predict which reaches the lowest loss."""

import math
import time
from dataclasses import replace
from typing import Any

import lightning as L

from base.errors import InputError
from base.progress import Progress, count
from conf.keys import presets
from conf.schema import Config
from data.datamodule import TextDataModule
from data.text import Text
from gpt.config import ModelConfig
from gpt.model import untrained
from training.choosing.hardware import COMPILED, check_memory, choose_compile, compiling_seconds
from training.launch import Machine
from training.module import LitGPT

EPOCHS = 10.0  # a text that is read more often is memorised without dropout
MIN_STEPS = 100  # in fewer, a model learns next to nothing, so the run says so
# Models smaller than every preset, for short budgets.
SMALLER = [ModelConfig(layers=2, heads=1, dim=64), ModelConfig(dim=64), ModelConfig(dim=96)]
# From this many steps on, half of them with twice the batch reach at least as low a loss; but not with a text that is
# read over `EPOCHS` times, whose loss is lower with small batches (docs/experiments.md).
DOUBLED_FROM = 4000
# A model larger than the default must read this many characters per weight, of a text that has half a character per
# weight (docs/experiments.md).
CHARACTERS_PER_WEIGHT, TEXT_PER_WEIGHT = 6.0, 0.5
WORSE = 1.05  # no larger model is timed if one's predicted loss is so many times the lowest
TRAINING = 0.85  # fraction of the seconds left that are training steps; the rest is for validations and the end
TIMED_SECONDS, UNTIMED_STEPS = 0.4, 2  # seconds of steps to time, after this many slower ones
TIMING = 0.03  # max fraction of the seconds left that timing one model may use


def predicted_loss(weights: int, read: float) -> float:
    """Return a number that grows with the loss that a model reaches, to compare sizes."""
    # N^-a + c D^-b for N weights and D tokens of training: Hoffmann et al. 2022 (arXiv:2203.15556), equation 2, without
    # the loss of an ideal model. docs/experiments.md lists the runs from which a, b and c come.
    return weights**-0.5 + 44 * read**-0.7


class _Clock(L.Callback):
    """Appends the seconds of each training step to the list `steps`, and ends the training after a short time."""

    def __init__(self, limit: float) -> None:
        self.limit, self.steps = limit, list[float]()

    def on_train_batch_start(self, *_: Any) -> None:
        self.started = time.perf_counter()

    def on_train_batch_end(self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, *_: Any) -> None:
        float(outputs["loss"])  # waits for a GPU
        self.steps.append(time.perf_counter() - self.started)
        trainer.should_stop = sum(self.steps) > self.limit or sum(self.steps[UNTIMED_STEPS:]) > TIMED_SECONDS


def time_step(config: Config, text: Text, limit: float) -> float:
    """Train the configured model for a few steps, `limit` seconds at most; return the seconds of the fastest."""
    clock = _Clock(limit)
    module = LitGPT(config, text.tokenizer, {}, {}, "")
    where: dict[str, Any] = {
        key: getattr(config.trainer, key) for key in ("accelerator", "devices", "precision", "deterministic")
    }
    trainer = L.Trainer(
        **where, barebones=True, callbacks=[clock], max_steps=10**6, max_epochs=-1, limit_val_batches=0,
        use_distributed_sampler=False,
    )  # fmt: skip
    with Progress("timing"):
        trainer.fit(module, TextDataModule(text, config.data, config.model.context, config.seed))
    return min(clock.steps)


def fit_into_minutes(
    config: Config, default: Config, text: Text, most: float, started: float, machine: Machine, loaded: float
) -> tuple[Config, float, list[str]]:
    """Choose model size and batch, where `config` has `auto`, so that the loss is lowest when the time is over.

    Return `default`, in which each `auto` is a default, with the chosen values, how many steps fit, and notes. No more
    than `most` steps are needed. The process began at `started` and took `loaded` seconds to import PyTorch.
    """
    minutes = config.minutes or 0.0
    left = lambda: started + 60 * minutes - time.perf_counter()  # noqa: E731

    def fit(model: ModelConfig) -> tuple[float, float]:
        """Return the seconds of a training step, and how many steps fit into the time left."""
        candidate = replace(default, model=model, compile="false")
        batch = default.data.batch * (2 if config.data.batch == "auto" else 1)  # it may be doubled below
        check_memory(replace(candidate, data=replace(default.data, batch=batch)), text.tokenizer.size, machine)
        step = time_step(candidate, text, TIMING * left())
        seconds, cost = TRAINING * left(), compiling_seconds(candidate, machine.devices, loaded)
        saved = (1 - COMPILED[default.trainer.precision]) * min(seconds, most * step)
        if choose_compile(config.compile, machine.device, saved, cost)[0] == "true":
            step, seconds = COMPILED[default.trainer.precision] * step, seconds - cost
        return step, max(1e-3, seconds) / step

    batch, lowest, candidates = default.data.batch, math.inf, [default.model]
    if config.model.layers == config.model.heads == config.model.dim == "auto":
        sizes = (*SMALLER, *presets())  # from small to large
        candidates = [replace(default.model, layers=each.layers, heads=each.heads, dim=each.dim) for each in sizes]
    for model in candidates:
        weights = untrained(model, text.tokenizer.size).num_parameters()
        least = weights if len(candidates) > 1 and model.dim > ModelConfig.dim else 0
        if len(text.train) < TEXT_PER_WEIGHT * least:
            break
        try:
            step, fitting = fit(model)
        except InputError:
            if lowest < math.inf:  # a smaller model fits into the memory
                break
            raise
        read = min(fitting, most) * batch * model.context
        loss = predicted_loss(weights, read)
        if loss > WORSE * lowest or read < CHARACTERS_PER_WEIGHT * least:
            break
        if loss < lowest:
            lowest, best = loss, (model, step, fitting)
    model, step, fitting = best[0], best[1], max(1.0, best[2])
    read = fitting * batch * model.context
    if config.data.batch == "auto" and fitting >= DOUBLED_FROM and read <= EPOCHS * len(text.train):
        batch, step, fitting = 2 * batch, 2 * step, fitting / 2
    notes = [f"minutes    {minutes:g}: a step takes about {1000 * step:.3g} ms here"]
    if fitting < MIN_STEPS:
        few = count(int(fitting), "step")
        notes.append(f"minutes={minutes:g}: {few} will learn next to nothing; allow more time")
    return replace(default, model=model, data=replace(default.data, batch=batch)), fitting, notes
