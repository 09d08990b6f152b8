"""For a time limit (`minutes=N`), time a step of models of growing size, and predict which reaches the lowest loss."""

import math
import time
from dataclasses import dataclass, replace
from typing import Any

import lightning as L

from base.errors import InputError
from base.progress import Progress
from conf.keys import presets
from conf.schema import Config
from data.datamodule import TextDataModule
from data.text import Text
from gpt.config import ModelConfig
from gpt.model import untrained
from reports.history import History
from training.choosing.hardware import check_memory, choose_compile, compiled_fraction, compiling_seconds
from training.machine import Machine, StartUp
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
        # The first step does not count: on a GPU it starts CUDA and its libraries, which takes seconds.
        trainer.should_stop = sum(self.steps[1:]) > self.limit or sum(self.steps[UNTIMED_STEPS:]) > TIMED_SECONDS


def time_step(config: Config, text: Text, machine: Machine, limit: float) -> float:
    """Train the configured model for a few steps; return the seconds of the fastest.

    The steps after the first take `limit` seconds at most.
    """
    clock = _Clock(limit)
    module = LitGPT(config, text.tokenizer, {}, {}, "", History())
    trainer = L.Trainer(
        accelerator=machine.device,
        devices=machine.local,
        precision=config.trainer.precision,  # type: ignore[arg-type]
        deterministic=config.trainer.deterministic,
        barebones=True,
        callbacks=[clock],
        max_steps=10**6,  # the clock stops it
        max_epochs=-1,
        limit_val_batches=0,
        use_distributed_sampler=False,
    )
    with Progress("timing"):
        trainer.fit(module, TextDataModule(text, config.data, config.model.context, config.seed))
    return min(clock.steps)


@dataclass(frozen=True)
class Fitting:
    """A model and a batch with which a run fits into its time limit."""

    model: ModelConfig
    batch: int
    steps: float  # how many steps fit into the time
    step_seconds: float


def fit_into_minutes(
    config: Config, default: Config, text: Text, most: float, machine: Machine, startup: StartUp
) -> Fitting:
    """Choose model size and batch, where `config` has `auto`, so that the loss is lowest when the time is over.

    In `default` each `auto` is replaced by a default. No more than `most` steps are needed.
    """
    batch = default.data.batch
    tokens_per_step = batch * default.model.context
    lowest = math.inf
    for model in candidates(config, default):
        weights = untrained(model, text.tokenizer.size).num_parameters()
        is_large = model.dim > ModelConfig.dim and config.model.dim == "auto"
        if is_large and len(text.train) < TEXT_PER_WEIGHT * weights:
            break
        try:
            fitting = fit_model(model, config, default, text, most, machine, startup)
        except InputError:
            if lowest < math.inf:  # a smaller model fits into the memory
                break
            raise
        tokens_seen = min(fitting.steps, most) * tokens_per_step
        loss = predicted_loss(weights, tokens_seen)
        if loss > WORSE * lowest or (is_large and tokens_seen < CHARACTERS_PER_WEIGHT * weights):
            break
        if loss < lowest:
            lowest = loss
            best = fitting
    best = replace(best, steps=max(1.0, best.steps))
    epochs = best.steps * tokens_per_step / len(text.train)
    if config.data.batch == "auto" and best.steps >= DOUBLED_FROM and epochs <= EPOCHS:
        best = replace(best, batch=2 * batch, steps=best.steps / 2, step_seconds=2 * best.step_seconds)
    return best


def candidates(config: Config, default: Config) -> list[ModelConfig]:
    """Return the models of which one is chosen, from small to large."""
    if not config.model.layers == config.model.heads == config.model.dim == "auto":
        return [default.model]
    sizes = [*SMALLER, *presets()]
    return [replace(default.model, layers=each.layers, heads=each.heads, dim=each.dim) for each in sizes]


def fit_model(
    model: ModelConfig, config: Config, default: Config, text: Text, most: float, machine: Machine, startup: StartUp
) -> Fitting:
    """Time a step of a model, and return how many steps fit into the time left, compiled if that pays."""
    candidate = replace(default, model=model, compile="false")
    batch = default.data.batch
    largest_batch = 2 * batch if config.data.batch == "auto" else batch  # it may be doubled
    check_memory(replace(candidate, data=replace(default.data, batch=largest_batch)), text.tokenizer.size, machine)
    minutes = config.minutes or 0.0
    step_seconds = time_step(candidate, text, machine, TIMING * startup.seconds_left(minutes))
    seconds = TRAINING * startup.seconds_left(minutes)
    fraction = compiled_fraction(default.trainer.precision, machine.device)
    saved = (1 - fraction) * min(seconds, most * step_seconds)
    cost = compiling_seconds(candidate, machine, startup.import_seconds)
    if choose_compile(config.compile, machine.device, saved, cost)[0] == "true":
        step_seconds *= fraction
        seconds -= cost
    return Fitting(model, batch, max(1e-3, seconds) / step_seconds, step_seconds)
