"""`minutes=N`: choose the model preset, batch and number of steps that fit into a time budget.

This happens once, before step 0. config.yaml stores the result, so a resumed run measures nothing.
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
from data.batches import EVALUATION_BATCH, num_validated
from data.datamodule import TextDataModule
from data.text import Text
from gpt.config import ModelConfig
from gpt.inference.generate import generate
from training.assemble import build_module
from training.callbacks.samples import FINAL_SAMPLE_LENGTH, SAMPLE_LENGTH, TEMPERATURES
from training.machine import untrained
from training.module import LitGPT
from training.run_plan import RunPlan
from training.trial import try_compiling

TIMED_SECONDS = 2.0  # seconds of steps to time
UNTIMED_STEPS = 3  # slower steps before the timed ones
NUM_SAMPLED = 10  # tokens whose generation is timed
NUM_EVALUATED = EVALUATION_BATCH  # tokens whose evaluation is timed
NUM_TIMED = 8  # calls of evaluation and generation, after a warm-up

MIN_STEPS = 100  # fewer learn next to nothing: the run is made smaller, and says so
MIN_EVALUATED, MIN_SAMPLED = 2**13, 20  # tokens, however short the time is
VALIDATIONS = 6  # per run; fewer if they would take more than `VALIDATION_SHARE`
# Models smaller than every preset, for short budgets.
SMALLER = (ModelConfig(layers=2, dim=64), ModelConfig(layers=1, heads=1, dim=32))
# From this many steps on, half of them with twice the batch reach at least as low a loss (docs/experiments.md).
DOUBLED_FROM = 4000
# Choose a larger preset if the run trains it on this many characters per weight, and the text has at least one
# character per weight: an estimate, not measured.
CHARACTERS_PER_WEIGHT = 4.0
# With more weights per character of the text and more epochs than these, a model without dropout memorises the text
# and its validation loss rises again. Seen with 0.8 million weights on 180 KB, but not on 1 MB (docs/experiments.md).
WEIGHTS_PER_CHARACTER, EPOCHS, DROPOUT = 2.0, 8.0, 0.2

# Fractions of the time that is left.
VALIDATION_SHARE = 0.25  # for validations; also for the last one, which otherwise evaluates a part of the split
SAMPLE_SHARE = 0.1  # for samples; they are shortened to fit
TIMING_SHARE = 0.05  # for timing each of steps, evaluation and generation of a model
# Fractions of `minutes` that may pass before the first timing. After more, the machine is too busy:
COMPILE_SHARE = 0.1  # to compile
BUSY_SHARE = 0.3  # to time a preset
OVERHEAD_SECONDS = 1.5  # to set up and to end a run (Trainer, checkpoints, exit), but at least
OVERHEAD_SHARE = 0.3  # of the seconds from the start of the process to the first timing


@dataclass(frozen=True)
class Cost:
    """Seconds that a model takes on this machine: for a step, and for each token that it evaluates or generates."""

    step: float
    per_evaluated: float
    per_sampled: float


class _Clock(L.Callback):
    """Time `TIMED_SECONDS` of steps. Stop sooner and set `late` if those after compilation take over `limit`."""

    def __init__(self, limit: float, compiling: int) -> None:
        self.steps: list[float] = []
        self.limit, self.compiling = limit, compiling

    def on_train_batch_start(self, *_: Any) -> None:
        self.started = time.perf_counter()

    def on_train_batch_end(self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, *_: Any) -> None:
        float(outputs["loss"])  # waits for a GPU
        self.steps.append(time.perf_counter() - self.started)
        enough = sum(self.steps[UNTIMED_STEPS:]) > TIMED_SECONDS
        # The first step is slower than the others; it is enough if it takes far too long.
        self.late = sum(self.steps[self.compiling :]) > self.limit * (1 if len(self.steps) > 1 else 4)
        trainer.should_stop = enough or self.late


def measure(module: LitGPT, data: L.LightningDataModule, tokens: torch.Tensor, limit: float, **trainer: Any) -> Cost:
    """Time training steps, evaluation and generation; raise `Diverged` if outputs are NaN or infinite after the steps.

    The weights change; torch's global generator is restored. `tokens` is some text, (N,) int64, at least one window.
    After `limit` seconds for one of the three, fewer calls are timed. `trainer` has the arguments of `L.Trainer` that
    decide where and how a step is computed.
    """
    clock, net = _Clock(limit, compiling=int(module.compile_step)), module.net
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
        windows = windows[: 1 if clock.late else count].to(device)
        net.eval()
        with torch.inference_mode():
            if not net(windows[:1]).isfinite().all():
                raise module.diverged("after a few steps the model's outputs are NaN or infinite")
            evaluated = _median_seconds(lambda: float(net(windows).sum()), limit)
            sampled = _median_seconds(lambda: generate(net, windows[0], NUM_SAMPLED, seed=0), limit)
    step = statistics.median(clock.steps[UNTIMED_STEPS:] or clock.steps[-1:])
    return Cost(step, evaluated / windows.numel(), sampled / NUM_SAMPLED)


def _median_seconds(work: Callable[[], object], limit: float) -> float:
    """Return the median seconds of `NUM_TIMED` calls after a warm-up; of fewer if all take more than `limit`."""
    times: list[float] = []
    while len(times) <= NUM_TIMED and sum(times) <= limit:
        started = time.perf_counter()
        work()
        times.append(time.perf_counter() - started)
    return statistics.median(times[1:] or times)


@dataclass(frozen=True)
class Work:
    """What a run does besides its steps."""

    split: int  # tokens of the validation split
    samples: int = 0  # texts at each validation; one more at the end
    overhead: float = OVERHEAD_SECONDS
    before: int = 0  # validations before the first step
    interval: int | None = None  # the typed number of steps between validations
    val_tokens: int | None = None  # as in the configuration
    sample_length: int | None = None  # as in the configuration

    def seconds(self, cost: Cost, validations: int) -> float:
        """Return how long this takes, with the overhead of a run."""
        part, whole = (num_validated(self.split, self.split, last, self.val_tokens) for last in (False, True))
        evaluated = (validations + self.before - 1) * part + whole
        sampled = validations * self.samples * (self.sample_length or SAMPLE_LENGTH)
        sampled += self.sample_length or FINAL_SAMPLE_LENGTH
        return self.overhead + evaluated * cost.per_evaluated + sampled * cost.per_sampled

    def within(self, seconds: float, cost: Cost) -> "Work":
        """Evaluate fewer tokens and shorten samples if they take too much of `seconds`; as far as allowed for 0."""
        seconds = max(0.0, seconds)
        val_tokens, length = self.val_tokens, self.sample_length
        if val_tokens is None and self.split * cost.per_evaluated > VALIDATION_SHARE * seconds:
            most = max(MIN_EVALUATED, int(VALIDATION_SHARE * seconds / cost.per_evaluated))
            val_tokens = most if most < self.split else None
        sampled = VALIDATIONS * self.samples * SAMPLE_LENGTH + FINAL_SAMPLE_LENGTH
        if length is None and sampled * cost.per_sampled > SAMPLE_SHARE * seconds:
            texts = VALIDATIONS * self.samples + 1
            length = max(MIN_SAMPLED, int(SAMPLE_SHARE * seconds / cost.per_sampled / texts))
        return replace(self, val_tokens=val_tokens, sample_length=length)


@dataclass(frozen=True)
class Budget:
    """What `choose_budget` has chosen, and its cost."""

    model: ModelConfig
    steps: int  # 0: there is no time for one
    validations: int
    cost: Cost
    work: Work


def choose_budget(
    left: Callable[[], float],
    models: list[ModelConfig],
    measure_cost: Callable[[ModelConfig], Cost],
    work: Work,
    batch: int,
    vocabulary: int,
    text_length: int,
) -> Budget:
    """Choose a model, its dropout, and the numbers of steps and validations for a text of `text_length` tokens.

    `left` returns the seconds until the run should end. `models` go from small to large; a single one is taken as it
    is. `batch` counts the windows of a step.
    """
    chosen = models[0]
    cost = measure_cost(chosen)
    flops_per_second = untrained(chosen, vocabulary).flops_per_token() * batch * chosen.context / cost.step

    def estimate(model: ModelConfig) -> tuple[int, float]:
        """Return a model's number of parameters and the characters that it can train on in the time left."""
        net = untrained(model, vocabulary)
        return net.num_parameters(), left() * flops_per_second / net.flops_per_token()

    for larger in models[1:]:
        parameters, seen = estimate(larger)
        if min(seen / CHARACTERS_PER_WEIGHT, text_length) >= parameters:
            chosen = larger
    parameters, seen = estimate(chosen)
    if len(models) > 1 and parameters > WEIGHTS_PER_CHARACTER * text_length and seen > EPOCHS * text_length:
        chosen = replace(chosen, dropout=DROPOUT)
    if chosen is not models[0]:
        cost = measure_cost(chosen)
    seconds = left()
    for shared in (seconds, 0.0):  # with 0, as little as possible besides the steps
        less = work.within(shared, cost)
        validation = less.seconds(cost, 1) - less.seconds(cost, 0)
        validations = next((n for n in range(VALIDATIONS, 1, -1) if n * validation <= VALIDATION_SHARE * seconds), 1)
        steps = int((seconds - less.seconds(cost, validations)) / cost.step)
        if work.interval is not None:
            steps = int((seconds - less.seconds(cost, 1)) / (cost.step + validation / work.interval))
            validations = max(1, steps // work.interval)
        if steps >= MIN_STEPS:
            break
    return Budget(chosen, max(0, steps), validations, cost, less)


def settle_minutes(plan: RunPlan) -> RunPlan:
    """Choose model, batch, steps and validation interval to fit into `minutes`.

    Raises:
        InputError: there is more than one device, or `compile=` was typed and fails.
    """
    config, keys, text, minutes = plan.config, plan.keys, plan.text, plan.config.minutes
    assert minutes is not None
    if plan.runtime.devices > 1:
        raise InputError(f"minutes={minutes:g}: needs one device; use trainer.devices=1 or trainer.max_steps=N")

    def left() -> float:
        return plan.started + 60 * minutes - time.perf_counter()

    def measured(model: ModelConfig) -> Cost:
        data = TextDataModule(text, config.data, model.context, config.seed)
        module = build_module(replace(plan, config=replace(config, model=model)))
        where = {key: getattr(config.trainer, key) for key in ("accelerator", "devices", "precision", "deterministic")}
        some = torch.from_numpy(text.train[: max(NUM_EVALUATED, model.context)].astype("int64"))
        return measure(module, data, some, max(0.0, TIMING_SHARE * left()), **where)

    def settle(models: list[ModelConfig]) -> Budget:
        with Progress("timing"):
            return choose_budget(left, models, measured, work, config.data.batch, text.tokenizer.size, len(text.train))

    startup = 60 * minutes - left()
    work = work_besides_steps(config, keys, text, max(OVERHEAD_SECONDS, OVERHEAD_SHARE * startup))
    if "compile" not in keys and startup > COMPILE_SHARE * 60 * minutes:
        config = replace(config, compile="false")
    first = ", after compiling them (about 20 seconds the first time)" if config.compile != "false" else ""
    log.info(f"minutes={minutes:g}: timing a few steps on this machine{first}")
    plan = try_compiling(replace(plan, config=config))
    config = plan.config
    given = config.init_from is not None or any(key.startswith("model.") for key in keys)
    busy = startup > BUSY_SHARE * 60 * minutes  # begin with the smallest; one that fits by its operations is taken
    settled = settle([config.model] if given else [*reversed(SMALLER), *presets()] if busy else presets())
    if settled.steps >= DOUBLED_FROM and "data.batch" not in keys:
        config = replace(config, data=replace(config.data, batch=2 * config.data.batch))
        settled = settle([settled.model])
    if settled.steps < MIN_STEPS and config.compile != "false" and "compile" not in keys:
        config = replace(config, compile="false")
        settled = settle([settled.model])
    for smaller in () if given else SMALLER:
        if settled.steps < MIN_STEPS and smaller.dim < settled.model.dim:
            flops, before = (
                untrained(each, text.tokenizer.size).flops_per_token() for each in (smaller, settled.model)
            )
            if MIN_STEPS * settled.cost.step * flops / before < left() or smaller == SMALLER[-1]:
                settled = settle([smaller])
    if settled.steps < MIN_STEPS:
        seconds = 60 * minutes - left() + work.seconds(settled.cost, 1) + MIN_STEPS * settled.cost.step
        enough = f"minutes={math.ceil(seconds / 6 + 1) / 10:g} would be enough here"
        steps, other = max(1, settled.steps), settled.work.seconds(settled.cost, settled.validations)
        over = 60 * minutes - left() + other + steps * settled.cost.step
        long = f"; the run takes about {over:.0f} s" if over > 66 * minutes else ""
        log.info(f"minutes={minutes:g}: {too_few(steps)}{long}; {enough}")
    return _take(replace(plan, config=config), settled)


def _take(plan: RunPlan, settled: Budget) -> RunPlan:
    """Return the plan with what was chosen, and with a note for the run's introduction."""
    config, work, steps = plan.config, settled.work, max(1, settled.steps)
    smaller = {
        f"{work.val_tokens} tokens per validation": work.val_tokens != config.data.val_tokens,
        f"samples of {work.sample_length} characters": work.sample_length != config.watch.sample_length,
        "not compiled": config.compile != plan.runtime.compile,
        "a model smaller than every preset": settled.model in SMALLER,
    }
    interval = work.interval or -(-steps // settled.validations)
    config = replace(
        config,
        model=settled.model,
        data=replace(config.data, val_tokens=work.val_tokens),
        watch=replace(config.watch, sample_length=work.sample_length),
        trainer=replace(config.trainer, max_steps=steps, val_check_interval=interval),
    )
    chosen = f"model, batch and steps are chosen for {1000 * settled.cost.step:.3g} ms a step"
    said = ", ".join(words for words, applies in smaller.items() if applies)
    note = f"minutes    {config.minutes:g}: {chosen}{f'; to fit, {said}' if said else ''}"
    return replace(plan, config=config, notes=(*plan.notes, note))


def too_few(steps: int) -> str:
    """Return the part of a message that says that a run has too few steps."""
    return f"{steps} {'steps are' if steps > 1 else 'step is'} too few to learn much"


def work_besides_steps(config: Config, keys: list[str], text: Text, overhead: float) -> Work:
    """Return what a run with this configuration evaluates and generates."""
    return Work(
        split=len(text.validation),
        samples=len(TEMPERATURES) if config.logger else 0,
        overhead=overhead,
        before=int(config.init_from is not None),
        interval=config.trainer.val_check_interval if "trainer.val_check_interval" in keys else None,
        val_tokens=config.data.val_tokens,
        sample_length=config.watch.sample_length,
    )
