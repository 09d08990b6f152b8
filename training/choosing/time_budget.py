"""For a time limit (`minutes=N`), time a step of models of growing size, and predict which reaches the lowest loss."""

import math
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import lightning as L
import yaml

from base import processes
from base.errors import InputError
from base.progress import Progress
from conf.keys import CONF
from conf.schema import Config
from data.datamodule import TextDataModule
from data.text import Text
from gpt.config import ModelConfig
from gpt.model import untrained
from training.choosing.hardware import (
    check_memory,
    choose_compile,
    compiled_fraction,
    compiling_seconds,
)
from training.choosing.scaling_law import DROPOUTS, predicted_loss, tokens_needed
from training.machine import Machine
from training.module import LitGPT

# Models smaller than every preset, for short budgets.
SMALLER = [ModelConfig(layers=2, heads=1, dim=64), ModelConfig(dim=64), ModelConfig(dim=96)]
# From this many steps on, half of them with twice the batch reach at least as low a loss; but not
# with a text that is read more often, whose loss is lower with small batches
# (docs/experiments.md).
DOUBLED_FROM = 4000
DOUBLED_UP_TO_EPOCHS = 10.0
# A model larger than the default must read this many tokens per weight, of a text that has half a
# token per weight (docs/experiments.md).
TOKENS_PER_WEIGHT = 6.0
TEXT_PER_WEIGHT = 0.5
WORSE = 1.05  # no larger model is timed if one's predicted loss is this many times the lowest
# fraction of the seconds left that are training steps; the rest is for validations and the end
TRAINING_SHARE = 0.85
UNTIMED_STEPS = 2  # the first steps are slower
TIMED_SECONDS = 0.4  # of the steps after them
TIMING = 0.03  # max fraction of the seconds left that timing one model may use

SHORT_TEXT = 690_000  # a run is adapted to a text of fewer training tokens
# fraction of the steps that a run on a short text needs if it starts from a trained model
START_SHARE = 0.25


class _Clock(L.Callback):
    """Appends the seconds of each training step to the list `steps`, and ends the training after a short time."""

    def __init__(self, limit: float) -> None:
        self.limit = limit  # seconds of all steps but the first
        self.steps = list[float]()

    def on_train_batch_start(self, *_: Any) -> None:
        self.started = time.perf_counter()

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, *_: Any
    ) -> None:
        float(outputs["loss"])  # waits for a GPU
        self.steps.append(time.perf_counter() - self.started)
        # The first step does not count: on a GPU it starts CUDA and its libraries, which takes
        # seconds.
        trainer.should_stop = (
            sum(self.steps[1:]) > self.limit or sum(self.steps[UNTIMED_STEPS:]) > TIMED_SECONDS
        )


def time_step(config: Config, text: Text, machine: Machine, limit: float) -> float:
    """Train the configured model for a few steps, and return the median of their seconds.

    The steps after the first take `limit` seconds at most.
    """
    clock = _Clock(limit)
    module = LitGPT(config, text, machine)
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
    timed = clock.steps[UNTIMED_STEPS:] or [min(clock.steps)]
    return statistics.median(timed)


@dataclass(frozen=True)
class Fitting:
    """A model and a batch with which a run reaches its lowest loss within its time limit."""

    model: ModelConfig
    batch: int
    steps_in_time: float  # how many steps fit into the time
    step_seconds: float
    steps_needed: float  # more steps would not lower the loss
    loss: float  # as predicted

    @property
    def chosen_steps(self) -> float:
        return min(self.steps_in_time, self.steps_needed)

    @property
    def learns_in_time(self) -> bool:
        return self.steps_needed <= self.steps_in_time

    @property
    def tokens_seen(self) -> float:
        return self.chosen_steps * self.batch * self.model.context


def fit_into_minutes(config: Config, default: Config, text: Text, machine: Machine) -> Fitting:
    """Choose model size, dropout and batch, where `config` has `auto`, so that the loss is lowest in the time.

    In `default` each `auto` is replaced by a default.
    """
    best: Fitting | None = None
    for model, weights in candidates(config, default, text):
        try:
            fitting = fit_model(model, config, default, text, machine)
        except InputError:
            if best:  # a smaller model fits into the memory
                break
            raise
        if best and fitting.loss > WORSE * best.loss:
            break
        is_large = model.dim > ModelConfig.dim
        if best and is_large and fitting.tokens_seen < TOKENS_PER_WEIGHT * weights:
            break
        if best is None or fitting.loss < best.loss:
            best = fitting
    assert best
    if config.data.batch == "auto":
        return with_larger_batch(best, len(text.train))
    return best


def with_larger_batch(fitting: Fitting, text_tokens: int) -> Fitting:
    """Return `fitting` with half as many steps of twice the batch, if that reaches at least as low a loss."""
    epochs = fitting.tokens_seen / text_tokens
    if fitting.chosen_steps < DOUBLED_FROM or epochs > DOUBLED_UP_TO_EPOCHS:
        return fitting
    return replace(
        fitting,
        batch=2 * fitting.batch,
        steps_in_time=fitting.steps_in_time / 2,
        step_seconds=2 * fitting.step_seconds,
        steps_needed=fitting.steps_needed / 2,
    )


def presets() -> list[ModelConfig]:
    """Return the presets of `model=` that set only layers, heads and width, from small to large."""
    files = [yaml.safe_load(file.read_text("utf-8")) for file in CONF.glob("model/*.yaml")]
    sizes = [
        ModelConfig(**values) for values in files if values.keys() == {"layers", "heads", "dim"}
    ]
    return sorted(sizes, key=lambda size: size.layers * size.dim**2)


def candidates(config: Config, default: Config, text: Text) -> Iterator[tuple[ModelConfig, int]]:
    """Yield the models of which one is chosen, from small to large, and the number of their weights."""
    is_chosen = config.model.layers == config.model.heads == config.model.dim == "auto"
    models = [default.model]
    if is_chosen:
        models = [
            replace(default.model, layers=size.layers, heads=size.heads, dim=size.dim)
            for size in (*SMALLER, *presets())
        ]
    for model in models:
        weights = untrained(model, text.tokenizer.size).num_parameters()
        is_large = is_chosen and model.dim > ModelConfig.dim
        if is_large and len(text.train) < TEXT_PER_WEIGHT * weights:
            return
        yield model, weights


def lowest_loss(config: Config, default: Config, text: Text) -> float:
    """Return the loss, less E, that the best model and dropout reach if there is enough time."""
    losses = []
    for model, weights in candidates(config, default, text):
        for dropout in dropouts(config, model):
            tokens = useful_tokens(config, text, weights, dropout)
            losses.append(float(predicted_loss(weights, dropout, len(text.train), tokens)))
    return min(losses)


def useful_tokens(config: Config, text: Text, weights: int, dropout: float) -> float:
    """Return how many tokens a run trains on at most, because more would not lower its loss."""
    if config.data.overfit:  # the model should memorise the text
        return math.inf
    tokens = tokens_needed(weights, dropout, len(text.train))
    if config.init_from and len(text.train) < SHORT_TEXT:
        tokens *= START_SHARE
    return tokens


def fit_model(
    model: ModelConfig, config: Config, default: Config, text: Text, machine: Machine
) -> Fitting:
    """Time a step of a model, and choose its dropout for the steps that fit into the time left, compiled if it pays."""
    candidate = replace(default, model=model, compile="false")
    batch = default.data.batch
    largest_batch = 2 * batch if config.data.batch == "auto" else batch  # it may be doubled
    # raises if even this one is too large for the memory
    check_memory(
        replace(candidate, data=replace(default.data, batch=largest_batch)),
        text.tokenizer.size,
        machine,
    )
    minutes = config.minutes or 0.0
    timing_seconds = TIMING * (60 * minutes - processes.elapsed())
    step_seconds = time_step(candidate, text, machine, timing_seconds)  # not compiled
    # fewer seconds than before the timing
    training_seconds = TRAINING_SHARE * (60 * minutes - processes.elapsed())
    fraction = compiled_fraction(default.trainer.precision, machine.device)
    compile_seconds = compiling_seconds(candidate, machine)
    saved_seconds = (1 - fraction) * training_seconds
    compiled, _ = choose_compile(config.compile, machine.device, saved_seconds, compile_seconds)
    if compiled == "true":
        step_seconds *= fraction
        training_seconds -= compile_seconds
    steps = max(1.0, training_seconds / step_seconds)
    fittings = [
        fit_dropout(replace(model, dropout=dropout), config, batch, text, steps, step_seconds)
        for dropout in dropouts(config, model)
    ]
    return min(fittings, key=lambda fitting: fitting.loss)


def dropouts(config: Config, model: ModelConfig) -> tuple[float, ...]:
    """Return the dropouts of which one is chosen."""
    if config.model.dropout != "auto" or config.init_from or config.data.overfit:
        return (model.dropout,)
    return DROPOUTS


def fit_dropout(
    model: ModelConfig, config: Config, batch: int, text: Text, steps: float, step_seconds: float
) -> Fitting:
    """Return the steps that a model with its dropout needs, of the `steps` that fit into the time, and its loss."""
    weights = untrained(model, text.tokenizer.size).num_parameters()
    tokens = useful_tokens(config, text, weights, model.dropout)
    tokens_per_step = batch * model.context
    tokens_seen = min(steps * tokens_per_step, tokens)
    loss = float(predicted_loss(weights, model.dropout, len(text.train), tokens_seen))
    return Fitting(model, batch, steps, step_seconds, tokens / tokens_per_step, loss)
