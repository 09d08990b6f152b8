"""For a time limit (`minutes=N`), time a step of models of growing size, and predict which reaches the lowest loss."""

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import lightning as L

from base.progress import Progress, count
from conf.keys import presets
from conf.schema import Config
from data.config import DataConfig
from data.datamodule import TextDataModule
from data.text import Text
from gpt.config import ModelConfig
from gpt.model import untrained
from gpt.optim_config import OptimConfig
from training.choosing.hardware import COMPILED
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
# Below so many steps the learning rate is higher, at most so many times, and the warm-up takes a part of the steps
# (docs/experiments.md).
RAISED_BELOW, HIGHEST_RATE, SHORT_WARMUP = 1300, 5.0, 6
TRAINING = 0.85  # fraction of the seconds left that are training steps; the rest is for validations and the end
TIMED_SECONDS, UNTIMED_STEPS = 0.4, 2  # seconds of steps to time, after this many slower ones
TIMING = 0.03  # max fraction of the seconds left that timing one model may use

Compiling = Callable[[ModelConfig, float], tuple[tuple[str, str], float]]


def schedule_for(optim: OptimConfig, steps: float) -> OptimConfig:
    """Return `optim` with AdamW's learning rate and the warm-up of a run of `steps` steps where they are `auto`."""
    times = min(HIGHEST_RATE, max(1.0, RAISED_BELOW / steps)) if optim.name == "muon" else 1.0
    lr = float(f"{times * OptimConfig.lr:.2g}") if optim.lr == "auto" else optim.lr
    warmup = min(OptimConfig.warmup, int(steps / SHORT_WARMUP)) if optim.warmup == "auto" else optim.warmup
    return replace(optim, lr=lr, warmup=warmup)


def predicted_loss(weights: int, read: float) -> float:
    """Return a number that grows with the loss that a model reaches, to compare sizes."""
    # N^-a + c D^-b for N weights and D tokens of training: Hoffmann et al. 2022 (arXiv:2203.15556), equation 2, without
    # the loss of an ideal model. docs/experiments.md lists the runs from which a, b and c come.
    return weights**-0.5 + 44 * read**-0.7


def sizes(config: ModelConfig, text: Text) -> Iterator[tuple[ModelConfig, int]]:
    """Yield (`config` with another size, its number of weights), from small to large, for sizes that suit `text`."""
    for size in (*SMALLER, *presets()):
        model = replace(config, layers=size.layers, heads=size.heads, dim=size.dim)
        weights = untrained(model, text.tokenizer.size).num_parameters()
        if size.dim <= ModelConfig.dim or len(text.train) >= TEXT_PER_WEIGHT * weights:
            yield model, weights


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


def time_step(config: Config, text: Text, seconds_left: float) -> float:
    """Train the configured model for a few steps without torch.compile, and return the seconds of the fastest step."""
    clock = _Clock(TIMING * seconds_left)
    module = LitGPT(replace(config, compile="false"), text.tokenizer, {}, {}, "")
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
    config: Config, default: Config, text: Text, most: float, seconds_left: Callable[[], float], compiling: Compiling
) -> tuple[ModelConfig, DataConfig, float, list[str]]:
    """Choose model size and batch for a time limit; return them, the steps that fit, and notes."""
    assert config.minutes is not None
    minutes, model, data, ratio = config.minutes, default.model, default.data, COMPILED[default.trainer.precision]

    def fit(model: ModelConfig) -> tuple[float, float]:
        """Return the seconds of a training step, and how many steps fit into the time left."""
        step = time_step(replace(default, model=model), text, seconds_left())
        seconds = TRAINING * seconds_left()
        compiled, cost = compiling(model, seconds)
        if compiled[0] == "true":
            step, seconds = ratio * step, seconds - cost
        return step, max(1e-3, seconds) / step

    if config.model.layers == config.model.heads == config.model.dim == "auto":
        lowest = math.inf
        for candidate, weights in sizes(model, text):
            step, fitting = fit(candidate)
            read = min(fitting, most) * data.batch * model.context
            loss, larger = predicted_loss(weights, read), candidate.dim > ModelConfig.dim
            if loss > WORSE * lowest or larger and read < CHARACTERS_PER_WEIGHT * weights:
                break
            if loss < lowest:
                lowest, best = loss, (candidate, step, fitting)
    else:
        best = model, *fit(model)
    model, step, fitting = best[0], best[1], max(1.0, best[2])
    read = fitting * data.batch * model.context
    if config.data.batch == "auto" and fitting >= DOUBLED_FROM and read <= EPOCHS * len(text.train):
        data, step, fitting = replace(data, batch=2 * data.batch), 2 * step, fitting / 2
    notes = [f"minutes    {minutes:g}: a step takes about {1000 * step:.3g} ms here"]
    if fitting < MIN_STEPS:
        notes.append(f"minutes={minutes:g}: {count(int(fitting), 'step')} will learn next to nothing; allow more time")
    return model, data, fitting, notes
