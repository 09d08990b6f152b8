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
from data.batches import EVALUATION_BATCH, VALIDATION_CHARACTERS
from data.datamodule import TextDataModule
from data.text import Text
from gpt.config import ModelConfig
from gpt.inference.generate import generate
from gpt.model import GPT
from training.assemble import build_module
from training.callbacks.samples import FINAL_SAMPLE_LENGTH, SAMPLE_LENGTH, TEMPERATURES
from training.module import LitGPT
from training.run_plan import RunPlan
from training.trial import try_compiling

TIMED_SECONDS = 2.0  # seconds of steps to time
UNTIMED_STEPS = 3  # steps before that, which are slower
NUM_SAMPLED = 10  # characters whose generation is timed
NUM_EVALUATED = EVALUATION_BATCH  # characters whose evaluation is timed
NUM_TIMED = 8  # calls of evaluation and generation, after a warm-up


@dataclass(frozen=True)
class Cost:
    """Seconds that a model takes on this machine."""

    step: float
    per_evaluated: float  # for each character of a split that is evaluated
    per_sampled: float  # for each character that is generated


class _Clock(L.Callback):
    """Time training steps; stop after `TIMED_SECONDS` of them, or after `limit` seconds without those that compile."""

    def __init__(self, limit: float, compiling: int) -> None:
        self.steps: list[float] = []
        self.limit, self.compiling = limit, compiling

    def usual(self) -> float:
        """Return the median seconds of a step."""
        return statistics.median(self.steps[UNTIMED_STEPS:] or self.steps[-1:])

    def on_train_batch_start(self, *_: Any) -> None:
        self.started = time.perf_counter()

    def on_train_batch_end(self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, *_: Any) -> None:
        float(outputs["loss"])  # waits for a GPU
        self.steps.append(time.perf_counter() - self.started)
        enough = sum(self.steps[UNTIMED_STEPS:]) > TIMED_SECONDS
        late = len(self.steps) > 1 and sum(self.steps[self.compiling :]) > self.limit
        trainer.should_stop = enough or late


def measure(module: LitGPT, data: L.LightningDataModule, tokens: torch.Tensor, limit: float, **trainer: Any) -> Cost:
    """Time training steps, evaluation and generation, each for at most about `limit` seconds.

    The model's weights change; torch's global generator is restored.

    Args:
        module: the model.
        data: the run's batches.
        tokens: some text, (N,) int64, at least one window.
        limit: in seconds.
        trainer: arguments of `L.Trainer` that decide where and how a step is computed.
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
        windows = windows.to(device)
        net.eval()
        with torch.inference_mode():
            if not net(windows[:1]).isfinite().all():
                raise module.diverged("after a few steps the model's outputs are NaN or infinite")
            evaluated = _usual_seconds(lambda: float(net(windows).sum()), limit)
            sampled = _usual_seconds(lambda: generate(net, windows[0], NUM_SAMPLED, seed=0), limit)
    return Cost(clock.usual(), evaluated / windows.numel(), sampled / NUM_SAMPLED)


def _usual_seconds(work: Callable[[], object], limit: float) -> float:
    """Return the median seconds of some calls after a warm-up, of fewer after `limit` seconds."""
    times: list[float] = []
    while len(times) <= NUM_TIMED and sum(times) <= limit:
        started = time.perf_counter()
        work()
        times.append(time.perf_counter() - started)
    return statistics.median(times[1:] or times)


# A larger preset is chosen when the run trains it on this many characters per weight, and the text has at least one
# character per weight: an estimate, not measured.
CHARACTERS_PER_WEIGHT = 4.0
# With more weights per character of the text and more epochs than these, a model without dropout memorises the text;
# its validation loss rises again. Seen with 0.8 million weights on 180 KB, but not on 1 MB (docs/experiments.md).
WEIGHTS_PER_CHARACTER, EPOCHS, DROPOUT = 2.0, 8.0, 0.2
# From this many steps on, half of them with twice the batch reach at least as low a loss (docs/experiments.md).
DOUBLED_FROM = 4000
VALIDATIONS = 6  # per run; fewer if they would take more than `VALIDATION_SHARE`
VALIDATION_SHARE = 0.25  # of the time; also of the last validation, which else evaluates a part of the split
SAMPLE_SHARE = 0.1  # of the time; with more, the samples are shorter
TIMING_SHARE = 0.05  # of the time, for each of the three things that are timed of a model
COMPILE_SHARE = 0.1  # of the time; a run that took more to get here is on a machine too busy to compile on
BUSY_SHARE = 0.3  # of the time; a run that took more to get here has no time to time a model of a preset
MIN_EVALUATED, MIN_SAMPLED = 2**13, 20  # characters, however short the time is
MIN_STEPS = 100  # fewer learn next to nothing: a smaller model is taken, and the run says so
SMALLER = (ModelConfig(layers=2, dim=64), ModelConfig(layers=1, heads=1, dim=32))  # than every preset
OVERHEAD_SECONDS = 1.5  # to set up and to end a run: Trainer, checkpoints, exit; at least, or
OVERHEAD_SHARE = 0.3  # of the seconds from the start of the process to the first timing: more on a busy machine


@dataclass(frozen=True)
class Work:
    """What a run does besides its steps, in characters."""

    validated: int  # at each validation
    finally_evaluated: int
    sampled_per_validation: int
    finally_sampled: int
    interval: int | None = None  # steps between validations, where it was typed
    overhead: float = OVERHEAD_SECONDS
    before: int = 0  # validations before the first step
    val_tokens: int | None = None  # as in the configuration
    sample_length: int | None = None  # as in the configuration

    def seconds(self, cost: Cost, validations: int) -> float:
        """Return the seconds of all of it, with the overhead of a run."""
        evaluated = (validations + self.before) * self.validated + self.finally_evaluated
        sampled = validations * self.sampled_per_validation + self.finally_sampled
        return self.overhead + evaluated * cost.per_evaluated + sampled * cost.per_sampled

    def within(self, seconds: float, cost: Cost) -> "Work":
        """Return the work with fewer characters evaluated, and with shorter samples, if they would take too long.

        At 0 seconds they are as few and as short as they may be.
        """
        work, seconds = self, max(0.0, seconds)
        split = self.validated + self.finally_evaluated
        free = split > MIN_EVALUATED and self.val_tokens is None
        if free and split * cost.per_evaluated > VALIDATION_SHARE * seconds:
            most = max(MIN_EVALUATED, int(VALIDATION_SHARE * seconds / cost.per_evaluated))
            validated = min(self.validated, most)
            work = replace(work, validated=validated, finally_evaluated=most - validated, val_tokens=most)
        sampled = (VALIDATIONS * self.sampled_per_validation + self.finally_sampled) * cost.per_sampled
        if sampled > SAMPLE_SHARE * seconds and self.sample_length is None:
            texts = self.sampled_per_validation // SAMPLE_LENGTH
            length = max(MIN_SAMPLED, int(SAMPLE_SHARE * seconds / cost.per_sampled / (VALIDATIONS * texts + 1)))
            work = replace(work, sampled_per_validation=texts * length, finally_sampled=length, sample_length=length)
        return work


@dataclass(frozen=True)
class Budget:
    """What `choose_budget` has chosen, and its cost."""

    model: ModelConfig
    steps: int  # 0: there is no time for one
    validations: int
    cost: Cost
    work: Work


def _shape(config: ModelConfig, vocabulary: int) -> tuple[int, int]:
    """Return the floating-point operations per token and the number of parameters of a model."""
    with torch.device("meta"):
        model = GPT(config, vocabulary)
    return model.flops_per_token(), model.num_parameters()


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
    chosen = presets[0]
    cost = measure_cost(chosen)
    flops_per_second = _shape(chosen, vocabulary)[0] * batch * chosen.context / cost.step
    for larger in presets[1:]:
        flops, parameters = _shape(larger, vocabulary)
        seen = left() * flops_per_second / flops
        if min(seen / CHARACTERS_PER_WEIGHT, text_length) >= parameters:
            chosen = larger
    flops, parameters = _shape(chosen, vocabulary)
    seen = left() * flops_per_second / flops
    if len(presets) > 1 and parameters > WEIGHTS_PER_CHARACTER * text_length and seen > EPOCHS * text_length:
        chosen = replace(chosen, dropout=DROPOUT)
    if chosen is not presets[0]:
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
    """Choose model, batch, steps and validation interval to fit into `minutes`."""
    config, keys, text, minutes = plan.config, plan.keys, plan.text, plan.config.minutes
    assert minutes is not None
    if plan.runtime.devices > 1:
        raise InputError(f"minutes={minutes:g}: needs one device; use trainer.devices=1 or trainer.max_steps=N")

    def measured(model: ModelConfig) -> Cost:
        data = TextDataModule(text, config.data, model.context, config.seed)
        module = build_module(replace(plan, config=replace(config, model=model)))
        where = {key: getattr(config.trainer, key) for key in ("accelerator", "devices", "precision", "deterministic")}
        some = torch.from_numpy(text.train[: max(NUM_EVALUATED, model.context)].astype("int64"))
        return measure(module, data, some, max(0.0, TIMING_SHARE * left()), **where)

    def left() -> float:
        return plan.started + 60 * minutes - time.perf_counter()

    startup = 60 * minutes - left()
    work = replace(work_besides_steps(config, keys, text), overhead=max(OVERHEAD_SECONDS, OVERHEAD_SHARE * startup))
    if config.compile != "false" and "compile" not in keys and startup > COMPILE_SHARE * 60 * minutes:
        config = replace(config, compile="false")
    first = ", after compiling them (about 20 seconds the first time)" if config.compile != "false" else ""
    log.info(f"minutes={minutes:g}: timing a few steps on this machine{first}")
    plan = try_compiling(replace(plan, config=config))
    config = plan.config

    def settle(models: list[ModelConfig]) -> Budget:
        with Progress("timing"):
            return choose_budget(left, models, measured, work, config.data.batch, text.tokenizer.size, len(text.train))

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
        flops, before = (_shape(model, text.tokenizer.size)[0] for model in (smaller, settled.model))
        promising = MIN_STEPS * settled.cost.step * flops / before < left()
        possible = smaller.dim < settled.model.dim and (promising or smaller == SMALLER[-1])
        if settled.steps < MIN_STEPS and possible:
            settled = settle([smaller])
    if settled.steps < MIN_STEPS:
        seconds = 60 * minutes - left() + work.seconds(settled.cost, 1) + MIN_STEPS * settled.cost.step
        enough = f"minutes={math.ceil(seconds / 6 + 1) / 10:g} would be enough here"
        log.info(f"minutes={minutes:g}: {too_few(max(1, settled.steps))}; {enough}")
    return _take(replace(plan, config=config), settled)


def _take(plan: RunPlan, settled: Budget) -> RunPlan:
    """Return the plan with what was chosen, and a note that says so."""
    config, work, steps = plan.config, settled.work, max(1, settled.steps)
    smaller = {
        f"{work.val_tokens} tokens per validation": work.val_tokens != config.data.val_tokens,
        f"samples of {work.sample_length} characters": work.sample_length != config.watch.sample_length,
        "not compiled": config.compile != plan.runtime.compile,
        "a model smaller than every preset": settled.model in SMALLER,
    }
    config = replace(
        config,
        model=settled.model,
        data=replace(config.data, val_tokens=work.val_tokens),
        watch=replace(config.watch, sample_length=work.sample_length),
        trainer=replace(
            config.trainer, max_steps=steps, val_check_interval=work.interval or -(-steps // settled.validations)
        ),
    )
    chosen = f"model, batch and steps are chosen for {1000 * settled.cost.step:.3g} ms a step"
    said = ", ".join(words for words, applies in smaller.items() if applies)
    note = f"minutes    {config.minutes:g}: {chosen}{f'; to fit, {said}' if said else ''}"
    return replace(plan, config=config, notes=(*plan.notes, note))


def too_few(steps: int) -> str:
    """Say that a run has too few steps."""
    return f"{steps} {'steps are' if steps > 1 else 'step is'} too few to learn much"


def work_besides_steps(config: Config, keys: list[str], text: Text) -> Work:
    """Return what a run with this configuration evaluates and generates."""
    split, length = min(len(text.validation), config.data.val_tokens or 10**12), config.watch.sample_length
    validated = min(VALIDATION_CHARACTERS, split)
    return Work(
        validated=validated,
        finally_evaluated=split - validated,  # the last validation covers the whole split
        sampled_per_validation=len(TEMPERATURES) * (length or SAMPLE_LENGTH) if config.logger else 0,
        finally_sampled=length or FINAL_SAMPLE_LENGTH,
        before=int(config.init_from is not None),
        val_tokens=config.data.val_tokens,
        sample_length=length,
        interval=config.trainer.val_check_interval if "trainer.val_check_interval" in keys else None,
    )
