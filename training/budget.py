"""`minutes=N`: choose the model preset, batch and number of steps that fit into a time budget.

This happens once, before step 0: config.yaml has the result, and a resumed run measures nothing.
"""

import math
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import lightning as L
import torch

from base.errors import InputError
from base.log import log
from base.progress import Progress
from conf.keys import presets
from conf.schema import Config
from data.batches import VALIDATION_CHARACTERS
from data.datamodule import TextDataModule
from data.text import Text
from gpt.config import ModelConfig
from gpt.inference.generate import generate
from gpt.model import GPT
from training.callbacks.samples import FINAL_SAMPLE_LENGTH, SAMPLE_LENGTH, TEMPERATURES
from training.module import LitGPT
from training.run_plan import RunPlan

TIMED_SECONDS = 2.0  # seconds of steps to time
UNTIMED_STEPS = 3  # steps before that, which are slower
NUM_SAMPLED = 10  # characters whose generation is timed
NUM_EVALUATED = 2**13  # characters whose evaluation is timed


@dataclass(frozen=True)
class Cost:
    """Seconds that a model takes on this machine."""

    step: float
    per_evaluated: float  # for each character of a split that is evaluated
    per_sampled: float  # for each character that is generated


class _Clock(L.Callback):
    """Time training steps; stop after `TIMED_SECONDS` of them."""

    def __init__(self) -> None:
        self.steps: list[float] = []

    def on_train_batch_start(self, *_: Any) -> None:
        self.started = time.perf_counter()

    def on_train_batch_end(self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, *_: Any) -> None:
        float(outputs["loss"])  # waits for a GPU
        self.steps.append(time.perf_counter() - self.started)
        trainer.should_stop = len(self.steps) > UNTIMED_STEPS and sum(self.steps[UNTIMED_STEPS:]) > TIMED_SECONDS


def measure(module: LitGPT, data: L.LightningDataModule, tokens: torch.Tensor, **trainer: Any) -> Cost:
    """Time training steps, evaluation and generation; torch's global generator is restored.

    Args:
        module: the model; its weights change.
        data: the run's batches.
        tokens: some text, (N,) int64, at least one window.
        trainer: arguments of `L.Trainer` that decide where and how a step is computed.

    Raises:
        Diverged: the model's outputs are NaN or infinite after the timed steps.
    """
    clock, net = _Clock(), module.net
    context = net.config.context
    count = max(1, min(len(tokens), NUM_EVALUATED) // context)
    windows = tokens[: count * context].view(count, context)  # (count, T)
    timing = L.Trainer(
        **trainer, barebones=True, callbacks=[clock], max_steps=10**6, max_epochs=-1, limit_val_batches=0,
        use_distributed_sampler=False,
    )  # fmt: skip
    device = timing.strategy.root_device
    with torch.random.fork_rng([device.index] if device.type == "cuda" else []):
        timing.fit(module, data)
        net.to(device)  # Lightning has moved it to the CPU
        windows = windows.to(device)
        net.eval()
        with torch.inference_mode():
            if not net(windows).isfinite().all():  # also a warm-up: the first call is slower
                raise module.diverged("after a few steps the model's outputs are NaN or infinite")
            evaluated = _median_seconds(lambda: float(net(windows).sum()))
            sampled = _median_seconds(lambda: generate(net, windows[0], NUM_SAMPLED, seed=0))
    return Cost(statistics.median(clock.steps[UNTIMED_STEPS:]), evaluated / windows.numel(), sampled / NUM_SAMPLED)


def _median_seconds(work: Callable[[], object]) -> float:
    times = []
    for _ in range(3):
        started = time.perf_counter()
        work()
        times.append(time.perf_counter() - started)
    return statistics.median(times)


# A larger preset is chosen when the run trains it on this many characters per weight, and the text has at least one
# character per weight: an estimate, not measured.
CHARACTERS_PER_WEIGHT = 4.0
# With more weights per character of the text and more epochs than these, a model without dropout memorises the text;
# its validation loss rises again. Seen with 0.8 million weights on 180 KB, but not on 1 MB (docs/experiments.md).
WEIGHTS_PER_CHARACTER, EPOCHS, DROPOUT = 2.0, 8.0, 0.2
# From this many steps on, half of them with twice the batch reach at least as low a loss (docs/experiments.md).
DOUBLED_FROM = 4000
VALIDATIONS = 6  # per run; fewer if they would take more than `VALIDATION_SHARE`
VALIDATION_SHARE = 0.25  # of the time
MIN_STEPS = 100  # fewer learn next to nothing: a smaller model is taken, and the run says so
SMALLER = (
    ModelConfig(layers=2, dim=64),
    ModelConfig(layers=1, heads=1, dim=32),
)  # than any preset, where time is short
OVERHEAD_SECONDS = 1.5  # to set up and to end a run: Trainer, checkpoints, exit


@dataclass(frozen=True)
class Budget:
    """What `choose_budget` has chosen, and its cost."""

    model: ModelConfig
    steps: int  # 0: there is no time for one
    validations: int
    cost: Cost


@dataclass(frozen=True)
class Work:
    """What a run does besides its steps, in characters."""

    validated: int  # at each validation
    finally_evaluated: int
    sampled_per_validation: int
    finally_sampled: int
    interval: int | None = None  # steps between validations, where it was typed

    def seconds(self, cost: Cost, validations: int) -> float:
        """Return the seconds of all of it, with the overhead of a run."""
        evaluated = validations * self.validated + self.finally_evaluated
        sampled = validations * self.sampled_per_validation + self.finally_sampled
        return OVERHEAD_SECONDS + evaluated * cost.per_evaluated + sampled * cost.per_sampled


def choose_budget(
    left: Callable[[], float],
    presets: list[ModelConfig],
    measure_cost: Callable[[ModelConfig], Cost],
    work: Work,
    batch: int,
    vocabulary: int,
    text_length: int,
) -> Budget:
    """Choose a preset, its dropout, and the numbers of steps and validations.

    Args:
        left: returns the seconds until the run should be over.
        presets: from small to large; a single one is taken as it is.
        measure_cost: times a model on this machine.
        work: what the run does besides its steps.
        batch: windows per step.
        vocabulary: number of tokens.
        text_length: characters to train on.
    """

    def shape(config: ModelConfig) -> tuple[int, int]:
        with torch.device("meta"):
            model = GPT(config, vocabulary)
        return model.flops_per_token(), model.num_parameters()

    chosen = presets[0]
    cost = measure_cost(chosen)
    flops_per_second = shape(chosen)[0] * batch * chosen.context / cost.step
    for larger in presets[1:]:
        flops, parameters = shape(larger)
        seen = left() * flops_per_second / flops
        if min(seen / CHARACTERS_PER_WEIGHT, text_length) >= parameters:
            chosen = larger
    flops, parameters = shape(chosen)
    seen = left() * flops_per_second / flops
    if len(presets) > 1 and parameters > WEIGHTS_PER_CHARACTER * text_length and seen > EPOCHS * text_length:
        chosen = replace(chosen, dropout=DROPOUT)
    if chosen is not presets[0]:
        cost = measure_cost(chosen)
    validation, seconds = work.seconds(cost, 1) - work.seconds(cost, 0), left()
    validations = next((n for n in range(VALIDATIONS, 1, -1) if n * validation <= VALIDATION_SHARE * seconds), 1)
    steps = int((seconds - work.seconds(cost, validations)) / cost.step)
    if work.interval is not None:
        steps = int((seconds - work.seconds(cost, 1)) / (cost.step + validation / work.interval))
        validations = max(1, steps // work.interval)
    return Budget(chosen, max(0, steps), validations, cost)


def settle_minutes(plan: RunPlan, make_module: Callable[[], LitGPT]) -> str:
    """Set the model, batch, steps and validation interval in the configuration to fit into `minutes`.

    Args:
        plan: of the run; its configuration is changed.
        make_module: makes a module of the current configuration.

    Returns:
        A line of the run's introduction.

    Raises:
        InputError: there is more than one device.
    """
    config, keys, text, minutes = plan.config, plan.keys, plan.text, plan.config.minutes
    assert minutes is not None
    if plan.runtime.devices > 1:
        raise InputError(f"minutes={minutes:g}: needs one device; use trainer.devices=1 or trainer.max_steps=N")

    def measured(model: ModelConfig) -> Cost:
        config.model = model
        data = TextDataModule(text, config.data, model.context, config.seed)
        where = {key: getattr(config.trainer, key) for key in ("accelerator", "devices", "precision", "deterministic")}
        some = torch.from_numpy(text.train[: max(NUM_EVALUATED, model.context)].astype("int64"))
        return measure(make_module(), data, some, **where)

    def left() -> float:
        return plan.started + 60 * minutes - time.perf_counter()

    work = work_besides_steps(config, keys, text)
    first = ", after compiling them (about 20 seconds the first time)" if config.compile != "false" else ""
    log.info(f"minutes={minutes:g}: timing a few steps on this machine{first}")

    def settle(models: list[ModelConfig]) -> Budget:
        with Progress("timing"):
            return choose_budget(left, models, measured, work, config.data.batch, text.tokenizer.size, len(text.train))

    given = config.init_from is not None or any(key.startswith("model.") for key in keys)
    settled = settle([config.model] if given else presets())
    if settled.steps >= DOUBLED_FROM and "data.batch" not in keys:
        config.data.batch *= 2
        settled = settle([settled.model])
    if settled.steps < MIN_STEPS and config.compile != "false" and "compile" not in keys:
        config.compile = "false"
        settled = settle([settled.model])
    for smaller in () if given else SMALLER:
        if settled.steps < MIN_STEPS:
            settled = settle([smaller])
    config.model, steps = settled.model, max(1, settled.steps)
    if steps < MIN_STEPS:
        seconds = 60 * minutes - left() + work.seconds(settled.cost, 1) + MIN_STEPS * settled.cost.step
        log.info(
            f"minutes={minutes:g}: {too_few(steps)}; minutes={math.ceil(seconds / 6 + 1) / 10:g} would be enough here"
        )
    config.trainer.max_steps = steps
    if work.interval is None:
        config.trainer.val_check_interval = -(-steps // settled.validations)
    return f"minutes    {minutes:g}: model, batch and steps are chosen for {1000 * settled.cost.step:.3g} ms a step"


def too_few(steps: int) -> str:
    """Say that a run has too few steps."""
    return f"{steps} {'steps are' if steps > 1 else 'step is'} too few to learn much"


def work_besides_steps(config: Config, keys: list[str], text: Text) -> Work:
    """Return what a run with this configuration evaluates and generates."""
    validated = min(VALIDATION_CHARACTERS, len(text.validation))
    return Work(
        validated=validated,
        # The last validation covers the whole split.
        finally_evaluated=len(text.validation) - validated + validated * (config.init_from is not None),
        sampled_per_validation=len(TEMPERATURES) * SAMPLE_LENGTH if config.logger else 0,
        finally_sampled=FINAL_SAMPLE_LENGTH,
        interval=config.trainer.val_check_interval if "trainer.val_check_interval" in keys else None,
    )
