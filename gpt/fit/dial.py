"""`minutes=N`: the best training that fits into a time, settled once before step 0.

What comes out is an ordinary configuration (a model preset, a batch, a number of steps), which goes into config.yaml;
nothing is measured again when the run is resumed.
"""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import lightning as L
import torch

from gpt.config import ModelConfig
from gpt.fit.module import LitGPT
from gpt.generate import generate
from gpt.model import GPT

MEASURED = 2.0  # seconds of steps that are timed
SKIPPED = 3  # steps before that, which are slower
SAMPLED = 10  # characters of text that are timed
EVALUATED = 2**13  # characters whose evaluation is timed
# A larger preset is worth its time when the run shows it so many characters for each of its weights, of a text
# that has as many characters as it has weights: an estimate, not measured.
CHARACTERS_PER_WEIGHT = 4.0
# With more weights than this for each character of the text, and the text read this often, the model learns it by heart
# and the validation loss rises again. Dropout prevents that. Seen with 0.8 million weights (docs/results.md): 180 KB of
# text were learned by heart, 1 MB were not.
WEIGHTS_PER_CHARACTER, READINGS, DROPOUT = 2.0, 8.0, 0.2
# From so many steps on, half as many of twice the windows learn as much from as many characters and take less time
# (docs/results.md).
DOUBLED_FROM = 4000
VALIDATIONS = 6  # in the whole run, fewer where they would take more than
VALIDATING = 0.25  # of the time
AROUND = 1.5  # seconds to set up and to end a run: Trainer, checkpoints, exit


@dataclass(frozen=True)
class Cost:
    """What a model costs on this machine, in seconds."""

    step: float
    evaluated: float  # a character of a split
    sampled: float  # a character of generated text


@dataclass(frozen=True)
class Plan:
    """What was chosen, and what it costs."""

    model: ModelConfig
    steps: int  # 0 when there is no time for any
    validations: int
    cost: Cost


@dataclass(frozen=True)
class Work:
    """What a run does besides its steps, in characters."""

    validated: int  # at each validation
    finally_evaluated: int
    sampled_per_validation: int
    finally_sampled: int

    def seconds(self, cost: Cost, validations: int) -> float:
        """How long all of it takes."""
        evaluated = validations * self.validated + self.finally_evaluated
        sampled = validations * self.sampled_per_validation + self.finally_sampled
        return AROUND + evaluated * cost.evaluated + sampled * cost.sampled


def plan(
    left: Callable[[], float],
    presets: list[ModelConfig],
    measure: Callable[[ModelConfig], Cost],
    work: Work,
    characters_per_step: Callable[[ModelConfig], int],
    vocabulary: int,
    text: int,
    interval: int | None = None,
) -> Plan:
    """Choose a preset, its dropout, a number of steps and one of validations.

    Args:
        left: seconds until the run should be over, as of now.
        presets: from small to large; a single one is taken as it is.
        measure: times one of them on this machine.
        work: what the run does besides.
        characters_per_step: how many characters a step trains on.
        vocabulary: number of tokens.
        text: characters to train on.
        interval: steps between two validations, where the number of validations is not to be chosen.
    """

    def shape(config: ModelConfig) -> tuple[int, int]:
        with torch.device("meta"):
            model = GPT(config, vocabulary)
        return model.flops_per_token(), model.num_parameters()

    chosen = presets[0]
    cost = measure(chosen)
    flops_per_second = shape(chosen)[0] * characters_per_step(chosen) / cost.step
    for larger in presets[1:]:
        flops, parameters = shape(larger)
        seen = left() * flops_per_second / flops
        if min(seen / CHARACTERS_PER_WEIGHT, text) >= parameters:
            chosen = larger
    flops, parameters = shape(chosen)
    seen = left() * flops_per_second / flops
    if len(presets) > 1 and parameters > WEIGHTS_PER_CHARACTER * text and seen > READINGS * text:
        chosen = replace(chosen, dropout=DROPOUT)
    if chosen is not presets[0]:
        cost = measure(chosen)
    validation, seconds = work.seconds(cost, 1) - work.seconds(cost, 0), left()
    validations = next((n for n in range(VALIDATIONS, 1, -1) if n * validation <= VALIDATING * seconds), 1)
    steps = int((seconds - work.seconds(cost, validations)) / cost.step)
    if interval is not None:
        steps = int((seconds - work.seconds(cost, 1)) / (cost.step + validation / interval))
        validations = max(1, steps // interval)
    return Plan(chosen, max(0, steps), validations, cost)


class _Clock(L.Callback):
    """Times steps and stops when enough have been timed."""

    def __init__(self) -> None:
        self.steps: list[float] = []

    def on_train_batch_start(self, *_: Any) -> None:
        self.started = time.perf_counter()

    def on_train_batch_end(self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, *_: Any) -> None:
        float(outputs["loss"])  # waits for a GPU
        self.steps.append(time.perf_counter() - self.started)
        trainer.should_stop = len(self.steps) > SKIPPED and sum(self.steps[SKIPPED:]) > MEASURED


def measure(module: LitGPT, data: L.LightningDataModule, tokens: torch.Tensor, **trainer: Any) -> Cost:
    """Time a model that nobody needs afterwards, its steps through the trainer that a run uses.

    torch's global generator is as it was afterwards.

    Args:
        module: the model; it is trained.
        data: the run's batches.
        tokens: some text, (N,) int64, of one window at least.
        trainer: arguments of `L.Trainer` that decide where and how a step is computed.

    Raises:
        Diverged: the steps that were timed have ruined the model.
    """
    clock, net = _Clock(), module.net
    context = net.config.context
    count = max(1, min(len(tokens), EVALUATED) // context)
    windows = tokens[: count * context].view(count, context)  # (count, T)
    fitted = L.Trainer(
        **trainer, barebones=True, callbacks=[clock], max_steps=10**6, max_epochs=-1, limit_val_batches=0,
        use_distributed_sampler=False,
    )  # fmt: skip
    device = fitted.strategy.root_device
    with torch.random.fork_rng([device.index] if device.type == "cuda" else []):
        fitted.fit(module, data)
        net.to(device)  # Lightning has moved it away
        windows = windows.to(device)
        net.eval()
        with torch.inference_mode():
            if not net(windows).isfinite().all():  # the first is slower, and not timed
                raise module.diverged("after a few steps the model's outputs are no numbers")
            evaluated = _median_seconds(lambda: float(net(windows).sum()))
            sampled = _median_seconds(lambda: generate(net, windows[0], SAMPLED, seed=0))
    return Cost(statistics.median(clock.steps[SKIPPED:]), evaluated / windows.numel(), sampled / SAMPLED)


def _median_seconds(work: Callable[[], object]) -> float:
    times = []
    for _ in range(3):
        started = time.perf_counter()
        work()
        times.append(time.perf_counter() - started)
    return statistics.median(times)
