"""For a time limit (`minutes=N`): time a step of the default model, and choose the largest model that reads enough."""

import math
import time
from dataclasses import dataclass, replace
from typing import Any

import lightning as L
import numpy as np
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
from training.choosing import hardware, rules
from training.machine import Machine
from training.module import LitGPT

# Models smaller than every preset, for short budgets.
SMALLER = [ModelConfig(layers=2, heads=1, dim=64), ModelConfig(dim=64), ModelConfig(dim=96)]
# tokens that a model must read for each of its weights: up to the default width, and above it
TOKENS_PER_WEIGHT = (2.4, 6.0)
FLOPS_EXPONENT = 0.7  # the time of a step grows with this power of its FLOPs
# fraction of the seconds left that are training steps; the rest is for validations and the end
TRAINING_SHARE = 0.85
TIMED_SECONDS = 0.6  # of the steps that are timed
TIMING = 0.03  # max fraction of the seconds left that they may take


class _Clock(L.Callback):
    """Keeps when each training step ended, and ends the training after a short time."""

    def __init__(self, limit: float) -> None:
        self.limit = limit  # seconds of all steps but the first
        self.ended = list[float]()

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, *_: Any
    ) -> None:
        float(outputs["loss"])  # waits for a GPU
        self.ended.append(time.perf_counter())
        # The first step does not count: on a GPU it starts CUDA and its libraries, which takes
        # seconds.
        trainer.should_stop = self.ended[-1] - self.ended[0] > self.limit


def time_step(config: Config, text: Text, machine: Machine, limit: float) -> float:
    """Train the configured model for about `limit` seconds, at least two steps, and return the median of a step's.

    So the few that are slow do not count, such as the one in which a GPU records its graph.
    """
    clock = _Clock(max(0.0, limit))
    module = LitGPT(config, text, machine)
    trainer = L.Trainer(
        accelerator=machine.device,
        devices=machine.local,
        precision=config.trainer.precision,  # type: ignore[arg-type]
        deterministic=config.trainer.deterministic,
        barebones=True,
        callbacks=[clock],
        max_epochs=-1,  # the clock stops it
        limit_val_batches=0,
        use_distributed_sampler=False,
    )
    with Progress("timing"):
        trainer.fit(module, TextDataModule(text, config.data, config.model.context, config.seed))
    return float(np.median(np.diff(clock.ended)))


@dataclass(frozen=True)
class Budget:
    """What a run does with its time."""

    config: Config  # without `auto`, except for the steps
    limit: str  # why the model is not larger; "" if its size is set
    why_compiled: str  # or why not
    step_seconds: float
    steps_in_time: float
    steps_needed: float  # more would not lower the loss


def tokens_of_step(config: Config) -> int:
    return config.data.batch * config.model.context


def fit(config: Config, default: Config, text: Text, machine: Machine) -> Budget:
    """Choose what suits the time limit where `config` has `auto`; in `default` a default stands there."""
    assert config.minutes
    tokens = len(text.train)
    model = default.model
    ends_at = 60 * config.minutes
    timed = replace(default, compile="false")
    hardware.check_memory(timed, text.tokenizer.size, machine)
    timing_seconds = min(TIMED_SECONDS, TIMING * (ends_at - processes.elapsed()))
    step_seconds = time_step(timed, text, machine, timing_seconds)
    token_seconds = step_seconds / tokens_of_step(default)
    seconds = TRAINING_SHARE * (ends_at - processes.elapsed())

    training_seconds = min(seconds, tokens_needed(config, model, tokens) * token_seconds)
    compiled, why_compiled = hardware.choose_compile(default, machine, training_seconds)
    if compiled == "true":
        compiling_seconds, fraction = hardware.compiling(default, machine)
        seconds -= compiling_seconds
        token_seconds *= fraction

    limit = ""
    if config.model.layers == config.model.heads == config.model.dim == "auto":
        model, limit = largest_model(default, text, machine, seconds / token_seconds)
        token_seconds *= relative_seconds(model, default.model, text)
    in_time = max(1.0, seconds / token_seconds)
    if config.model.dropout == "auto" and config.data.overfit is None:
        model = replace(model, dropout=rules.dropout_for(model, tokens, in_time))
    needed = tokens_needed(config, model, tokens)
    seen = min(in_time, needed)
    is_long = seen >= rules.DOUBLED_FROM * tokens_of_step(default)
    chosen = replace(default, model=model, compile=compiled)
    if config.data.batch == "auto" and is_long and seen <= rules.FEW_EPOCHS * tokens:
        doubled = replace(chosen, data=replace(chosen.data, batch=2 * chosen.data.batch))
        chosen = doubled if fits(doubled, text, machine) else chosen
    size = tokens_of_step(chosen)
    return Budget(chosen, limit, why_compiled, token_seconds * size, in_time / size, needed / size)


def fits(config: Config, text: Text, machine: Machine) -> bool:
    """Return whether a step of the configured model fits into the memory."""
    try:
        hardware.check_memory(config, text.tokenizer.size, machine)
    except InputError:
        return False
    return True


def largest_model(
    default: Config, text: Text, machine: Machine, tokens_in_time: float
) -> tuple[ModelConfig, str]:
    """Return the largest model that reads enough in the time and suits the text, and why it is not larger.

    The default model reads `tokens_in_time` tokens in the time.
    """
    files = [yaml.safe_load(file.read_text("utf-8")) for file in CONF.glob("model/*.yaml")]
    # the presets that set only the size
    sizes = [ModelConfig(**size) for size in files if size.keys() == {"layers", "heads", "dim"}]
    sizes.sort(key=lambda size: size.layers * size.dim**2)
    chosen, *larger = (
        replace(default.model, layers=size.layers, heads=size.heads, dim=size.dim)
        for size in SMALLER + sizes
    )
    # the weights that a text of this length can use
    usable = 2e6 * (len(text.train) / 1e6) ** 0.36
    for model in larger:
        weights = rules.block_weights(model)
        least = TOKENS_PER_WEIGHT[model.dim > ModelConfig.dim] * weights
        if weights > usable and default.data.overfit is None:
            return chosen, "a larger model needs a longer text"
        if tokens_in_time < least * relative_seconds(model, default.model, text):
            return chosen, "a larger model needs more time"
        if not fits(replace(default, model=model), text, machine):
            return chosen, "a larger model needs more memory"
        chosen = model
    return chosen, "no preset is larger"


def relative_seconds(model: ModelConfig, default: ModelConfig, text: Text) -> float:
    """Return the time of a step of a model, as a multiple of the default model's."""
    flops, flops_of_default = (
        untrained(each, text.tokenizer.size).flops_per_token() for each in (model, default)
    )
    return (flops / flops_of_default) ** FLOPS_EXPONENT


def tokens_needed(config: Config, model: ModelConfig, tokens: int) -> float:
    """Return how many tokens a run reads at most, because more would not lower its loss."""
    if config.data.overfit is not None:  # the model should memorise the text
        return math.inf
    _, epochs = rules.learning(model, tokens)
    return rules.share_of_steps(config, tokens) * epochs * tokens
