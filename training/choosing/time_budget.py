"""For a time limit (`minutes=N`), time a few steps of the default model, and choose the model size and the batch."""

import time
from dataclasses import dataclass, replace
from typing import Any

import lightning as L

from base.progress import Progress
from conf.keys import presets
from conf.schema import Config
from data.datamodule import TextDataModule
from data.text import Text
from gpt.config import ModelConfig
from training.choosing.text_length import EPOCHS
from training.machine import untrained
from training.module import LitGPT

MIN_STEPS = 100  # in fewer, a model learns next to nothing, so a smaller one is chosen, or the run says so
# Models smaller than every preset, for short budgets.
SMALLER = [ModelConfig(layers=1, heads=1, dim=32), ModelConfig(layers=2, dim=64)]
# From this many steps on, half of them with twice the batch reach at least as low a loss; but not with a text that is
# read over `EPOCHS` times, whose loss is lower with small batches (docs/experiments.md).
DOUBLED_FROM = 4000
# Choose a larger preset if the run trains it on this many characters per weight, and the text has at least half a
# character per weight (docs/experiments.md).
CHARACTERS_PER_WEIGHT, TEXT_PER_WEIGHT = 6.0, 0.5
COMPILED = 0.7  # time of a compiled step as a fraction of an uncompiled one's (docs/experiments.md)
TRAINING = 0.85  # fraction of the seconds left that are training steps; the rest is for validations and the end
TIMED_SECONDS, UNTIMED_STEPS = 0.5, 3  # seconds of steps to time, after this many slower ones
TIMING = 0.03  # max fraction of the seconds left that timing may use


class _Clock(L.Callback):
    """Appends the seconds of each training step to the list `steps`, and ends the training after a short time.

    The first `UNTIMED_STEPS` steps are slower. The training ends when the steps after them have taken `TIMED_SECONDS`
    seconds in all, or when all steps together have taken `limit` seconds.
    """

    def __init__(self, limit: float) -> None:
        self.limit, self.steps = limit, list[float]()

    def on_train_batch_start(self, *_: Any) -> None:
        self.started = time.perf_counter()

    def on_train_batch_end(self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, *_: Any) -> None:
        float(outputs["loss"])  # waits for a GPU
        self.steps.append(time.perf_counter() - self.started)
        trainer.should_stop = sum(self.steps) > self.limit or sum(self.steps[UNTIMED_STEPS:]) > TIMED_SECONDS


def time_step(config: Config, text: Text, seconds_left: float) -> float:
    """Train the configured model for a few steps without torch.compile, and return the seconds of the fastest step.

    The training ends after the fraction `TIMING` of `seconds_left` at the latest. If that time is too short for several
    steps, the result is the time of the first step, which is slower than the others.

    Args:
        config: the configuration of the run.
        text: the text to train on.
        seconds_left: the seconds left until the time limit of the run.
    """
    clock = _Clock(TIMING * seconds_left)
    module = LitGPT(replace(config, compile="false"), text.tokenizer, {}, {}, {})
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


@dataclass(frozen=True)
class Budget:
    """Estimates how many training steps of a model fit into the time of a run, and chooses model size and batch.

    Attributes:
        seconds: seconds left for the run.
        step: measured seconds per training step of the model `timed`.
        timed: the configuration of the model whose step was timed, which is the default model.
        batch: the number of sequences in the batch with which the step was timed.
        text: the text of the run.
    """

    seconds: float
    step: float
    timed: ModelConfig
    batch: int
    text: Text

    def step_of(self, model: ModelConfig) -> float:
        """Return the estimated seconds of a training step of `model`.

        The measured time of the timed model is multiplied by the ratio of the two models' FLOPs per token.
        """
        ours, timed = (untrained(each, self.text.tokenizer.size).flops_per_token() for each in (model, self.timed))
        return self.step * ours / timed

    def steps(self, model: ModelConfig) -> float:
        """Return the estimated number of training steps of `model` that fit into the remaining time, at least 1."""
        return max(1.0, TRAINING * self.seconds / self.step_of(model))

    def read(self, model: ModelConfig) -> float:
        """Return the number of tokens on which `model` would be trained in the time left, repetitions included."""
        return self.steps(model) * self.batch * model.context

    def choose_size(self) -> ModelConfig:
        """Return the largest model that the time and the text allow, from `SMALLER` and the presets of `model=`.

        A model is allowed if at least `MIN_STEPS` training steps fit into the time. A model larger than the default
        must also be trained on at least `CHARACTERS_PER_WEIGHT` characters per weight, and the text must have at least
        `TEXT_PER_WEIGHT` characters per weight. If no model is allowed, the smallest one is returned.
        """
        chosen, default = None, self.timed.layers * self.timed.dim**2
        for size in (*SMALLER, *presets()):
            model = replace(self.timed, layers=size.layers, heads=size.heads, dim=size.dim)
            weights = untrained(model, self.text.tokenizer.size).num_parameters()
            seen = min(self.read(model) / CHARACTERS_PER_WEIGHT, len(self.text.train) / TEXT_PER_WEIGHT)
            enough = model.layers * model.dim**2 <= default or seen >= weights
            if chosen is None or (enough and self.steps(model) >= MIN_STEPS):
                chosen = model
        assert chosen
        return chosen

    def choose_batch(self, model: ModelConfig) -> int:
        """Return the number of sequences in a batch of `model`.

        The number is twice the default if at least `DOUBLED_FROM` steps fit into the time and the training text is read
        at most `EPOCHS` times. Otherwise it is the default.
        """
        doubled = self.steps(model) >= DOUBLED_FROM and self.read(model) <= EPOCHS * len(self.text.train)
        return 2 * self.batch if doubled else self.batch
