"""Time steps, evaluation and sampling of one model."""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import lightning as L
import torch

from gpt.inference.generate import generate
from training.module import LitGPT

MEASURED = 2.0  # seconds of steps that are timed
SKIPPED = 3  # steps before that, which are slower
SAMPLED = 10  # characters of text that are timed
EVALUATED = 2**13  # characters whose evaluation is timed


@dataclass(frozen=True)
class Cost:
    """What a model costs on this machine, in seconds."""

    step: float
    evaluated: float  # a character of a split
    sampled: float  # a character of generated text


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
