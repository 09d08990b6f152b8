"""`minutes=N`: measure a model's cost here, choose a model and batch by it, and settle how many steps fit.

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
from base.files import write_text
from base.log import log
from base.progress import Progress
from conf.keys import presets
from conf.merge import read_config
from conf.schema import to_yaml
from data.batches import EVALUATION_BATCH, num_validated
from data.datamodule import TextDataModule
from gpt.config import ModelConfig
from gpt.inference.generate import generate
from training.assemble import build_module, compile_or_not
from training.callbacks.metrics import Metrics
from training.callbacks.watch import FINAL_SAMPLE_LENGTH, SAMPLE_LENGTH, TEMPERATURES
from training.errors import diverged
from training.machine import untrained
from training.run_plan import RunPlan
from training.short_text import EPOCHS, WHOLE, dropout_for

MIN_STEPS = 100  # fewer learn next to nothing: the run is made smaller, and says so
MIN_EVALUATED, MIN_SAMPLED = 2**13, 20  # tokens, however short the time is
VALIDATIONS = 6  # per run; fewer if they would take more than `VALIDATION_SHARE`
# Models smaller than every preset, for short budgets.
SMALLER = [ModelConfig(layers=1, heads=1, dim=32), ModelConfig(layers=2, dim=64)]
# From this many steps on, half of them with twice the batch reach at least as low a loss; but not with a text that is
# read over `EPOCHS` times, whose loss is lower with small batches (docs/experiments.md).
DOUBLED_FROM = 4000
# Choose a larger preset if the run trains it on this many characters per weight, and the text has at least half a
# character per weight (docs/experiments.md).
CHARACTERS_PER_WEIGHT, TEXT_PER_WEIGHT = 6.0, 0.5

# Fractions of the time that is left.
VALIDATION_SHARE = 0.25  # for validations; also for the last one, which otherwise evaluates a part of the split
SAMPLE_SHARE = 0.1  # for samples; they are shortened to fit
COMPILE_SHARE = 0.1  # of `minutes`: after a longer start the machine is too busy to compile
# Seconds to set up and to end a run (Trainer, checkpoints, exit): at least these, or a fraction of those to start it.
OVERHEAD_SECONDS, OVERHEAD_SHARE = 1.5, 0.3

TIMED_SECONDS, UNTIMED_STEPS = 2.0, 3  # of steps to time, after slower first ones
NUM_EVALUATED, NUM_SAMPLED = EVALUATION_BATCH, 10  # tokens whose evaluation and generation are timed
NUM_TIMED = 8  # calls of evaluation and generation, after a warm-up
TIMING_SHARE = 0.05  # of the time that is left, for timing each of the three
SETTLE_AT = (0.1, 0.4)  # parts of a run after which its steps are settled again: before a cooldown of half of it
DRIFT = 0.02  # smallest relative change of the number of steps that counts


@dataclass(frozen=True)
class Cost:
    """Seconds that a model takes on this machine: for a step, and for each token that it evaluates or generates."""

    model: ModelConfig
    step: float
    per_evaluated: float
    per_sampled: float

    def of(self, model: ModelConfig, vocabulary: int) -> "Cost":
        """Estimate the cost of another model by its operations."""
        ours, theirs = (untrained(each, vocabulary).flops_per_token() for each in (self.model, model))
        return replace(self.slower(theirs / ours), model=model)

    def slower(self, times: float) -> "Cost":
        """Return the cost if all takes `times` as long."""
        return Cost(self.model, times * self.step, times * self.per_evaluated, times * self.per_sampled)


class _Clock(L.Callback):
    """Time `TIMED_SECONDS` of steps. Stop sooner and set `late` if they take over `limit` seconds."""

    limit, late = 0.0, False

    def __init__(self) -> None:
        self.steps: list[float] = []

    def on_train_batch_start(self, *_: Any) -> None:
        self.started = time.perf_counter()

    def on_train_batch_end(self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, *_: Any) -> None:
        float(outputs["loss"])  # waits for a GPU
        self.steps.append(time.perf_counter() - self.started)
        # The first step is slower than the others; it is enough if it takes far too long.
        self.late = sum(self.steps) > self.limit * (1 if len(self.steps) > 1 else 4)
        trainer.should_stop = self.late or sum(self.steps[UNTIMED_STEPS:]) > TIMED_SECONDS

    def median(self) -> float:
        """Return the median seconds of a step; the first steps, which are slower, do not count."""
        return statistics.median(self.steps[UNTIMED_STEPS:] or self.steps[-1:])


def measure(plan: RunPlan, left: Callable[[], float]) -> tuple[RunPlan, Cost]:
    """Compile the plan's model and time its training steps, evaluation and generation.

    Return the plan, not compiled if that fails, and the cost. Fewer calls are timed if one of the three takes more
    than `TIMING_SHARE` of the seconds `left`. Raises `Diverged` if outputs are NaN or infinite after the steps.
    """
    config, module, clock = plan.config, build_module(plan), _Clock()
    where: dict[str, Any] = {
        key: getattr(config.trainer, key) for key in ("accelerator", "devices", "precision", "deterministic")
    }
    trainer = L.Trainer(
        **where, barebones=True, callbacks=[clock], max_steps=10**6, max_epochs=-1, limit_val_batches=0,
        use_distributed_sampler=False,
    )  # fmt: skip
    plan = compile_or_not(plan, module, trainer)
    net, context, device = module.net, config.model.context, trainer.strategy.root_device
    clock.limit = max(0.0, TIMING_SHARE * left())
    with Progress("timing"):
        trainer.fit(module, TextDataModule(plan.text, config.data, context, config.seed))
        net.to(device).eval()  # Lightning has moved it to the CPU
        count = 1 if clock.late else max(1, min(len(plan.text.train), NUM_EVALUATED) // context)
        tokens = torch.from_numpy(plan.text.train[: count * context].astype("int64"))
        windows = tokens.view(count, context).to(device)  # (count, T)
        with torch.inference_mode():
            if not net(windows[:1]).isfinite().all():
                raise diverged("after a few steps the model's outputs are NaN or infinite", config.optim)
            evaluated = _median_seconds(lambda: float(net(windows).sum()), clock.limit)
            sampled = _median_seconds(lambda: generate(net, windows[0], NUM_SAMPLED, seed=0), clock.limit)
    return plan, Cost(config.model, clock.median(), evaluated / windows.numel(), sampled / NUM_SAMPLED)


def _median_seconds(work: Callable[[], object], limit: float) -> float:
    """Return the median seconds of `NUM_TIMED` calls after a warm-up; of fewer if all take more than `limit`."""
    times: list[float] = []
    while len(times) <= NUM_TIMED and sum(times) <= limit:
        started = time.perf_counter()
        work()
        times.append(time.perf_counter() - started)
    return statistics.median(times[1:] or times)


@dataclass(frozen=True)
class Schedule:
    """What a run does in its time: steps, validations and samples. What is None was not typed and may be chosen."""

    split: int  # tokens of the validation split
    samples: int = 0  # texts at each validation; one more at the end
    overhead: float = OVERHEAD_SECONDS
    before: int = 0  # validations before the first step
    val_tokens: int | None = None
    sample_length: int | None = None
    interval: int = 0  # steps from one validation to the next; 0: to be chosen
    steps: int = 0  # 0: there is no time for one

    def seconds(self, cost: Cost, validations: int) -> float:
        """Return how long all steps and `validations` take, with the samples and the overhead of a run."""
        part, whole = (num_validated(self.split, self.split, last, self.val_tokens) for last in (False, True))
        evaluated = (validations + self.before - 1) * part + whole
        sampled = validations * self.samples * (self.sample_length or SAMPLE_LENGTH)
        sampled += self.sample_length or FINAL_SAMPLE_LENGTH
        return self.overhead + self.steps * cost.step + evaluated * cost.per_evaluated + sampled * cost.per_sampled

    def most_steps(self, seconds: float, cost: Cost, validations: int = 1) -> int:
        """Return how many steps fit beside `validations`; with an interval, beside one more after each interval."""
        once = self.seconds(cost, 1) - self.seconds(cost, 0)
        each = cost.step + (once / self.interval if self.interval else 0.0)
        return max(0, int((seconds - self.seconds(cost, validations)) / each))

    def fill(self, seconds: float, cost: Cost, extent: float = 1.0) -> "Schedule":
        """Return the schedule with as many steps as fit.

        Validations take at most `extent` of their fraction of the time; as little as allowed if steps are fewer than
        `MIN_STEPS`.
        """
        shared = extent * max(0.0, seconds)
        val_tokens, length, validations = self.val_tokens, self.sample_length, 1
        if val_tokens is None and self.split * cost.per_evaluated > VALIDATION_SHARE * shared:
            most = max(MIN_EVALUATED, int(VALIDATION_SHARE * shared / cost.per_evaluated))
            val_tokens = most if most < self.split else None
        texts, for_samples = VALIDATIONS * self.samples, SAMPLE_SHARE * max(0.0, seconds)
        if length is None and (texts * SAMPLE_LENGTH + FINAL_SAMPLE_LENGTH) * cost.per_sampled > for_samples:
            length = max(MIN_SAMPLED, int(for_samples / cost.per_sampled / (texts + 1)))
        less = replace(self, val_tokens=val_tokens, sample_length=length)
        once = less.seconds(cost, 1) - less.seconds(cost, 0)
        if not self.interval:
            validations = next((n for n in range(VALIDATIONS, 1, -1) if n * once <= VALIDATION_SHARE * seconds), 1)
        steps = less.most_steps(seconds, cost, validations)
        if steps < MIN_STEPS and extent:
            return self.fill(seconds, cost, extent=0.0)
        return replace(less, steps=steps, interval=self.interval or max(1, -(-steps // validations)))


class SettleAgain(L.Callback):
    """Choose the number of steps again, at `SETTLE_AT`, by the time that steps have taken so far.

    Until its cooldown the schedule of learning rates does not depend on the number of steps.
    """

    def __init__(self, plan: RunPlan, settled: Schedule, cost: Cost, most: int | None) -> None:
        self.plan, self.settled, self.cost = plan, settled, cost
        self.most = most  # steps for a short text
        until = 1 - plan.config.optim.cooldown if plan.config.optim.schedule == "trapezoid" else 0.0
        self.due = [part for part in SETTLE_AT if part < until]

    def on_train_batch_end(self, trainer: L.Trainer, pl_module: Any, *_: Any) -> None:
        """Settle again when a part of the steps, or of the time for them, is over."""
        metrics = trainer.callbacks[0]  # type: ignore[attr-defined]
        assert isinstance(metrics, Metrics)
        if not self.due or metrics.stepped < UNTIMED_STEPS:
            return
        due = self.due[0] * self.settled.steps
        if metrics.stepped < due and metrics.stepping < due * self.cost.step:
            return
        del self.due[0]
        times = metrics.stepping / metrics.stepped / self.cost.step
        steps = self.steps_now(trainer.global_step, times)
        if abs(steps - self.settled.steps) <= DRIFT * self.settled.steps:
            return
        trainer.fit_loop.epoch_loop.max_steps = pl_module.max_steps = steps
        stored = read_config(self.plan.directory)
        stored = replace(stored, trainer=replace(stored.trainer, max_steps=steps))
        write_text(self.plan.directory / "config.yaml", to_yaml(stored))  # a resumed run has as many steps
        what = f"minutes={stored.minutes:g}: steps take {times:.2g} times as long as timed"
        log.info(f"{what}: {steps:,} steps instead of {self.settled.steps:,}")
        self.settled = replace(self.settled, steps=steps)

    def steps_now(self, taken: int, times: float) -> int:
        """Return the number of steps after `taken` steps, if all takes `times` as long as timed."""
        assert self.plan.config.minutes is not None
        left = self.plan.started + 60 * self.plan.config.minutes - time.perf_counter()
        more = replace(self.settled, steps=0, before=0).most_steps(left, self.cost.slower(times))
        within = math.ceil((taken + 1) / (1 - self.plan.config.optim.cooldown))  # not in the cooldown yet
        return min(max(taken + more, within), self.most or 10**9)


def choose_model(
    models: list[ModelConfig], timed: Cost, seconds: float, schedule: Schedule, step_tokens: int, vocabulary: int,
    text_length: int,
) -> ModelConfig:  # fmt: skip
    """Choose a model for a text of `text_length` tokens.

    The `models` go from small to large. One that is larger than the `timed` one must also see enough characters.
    """
    chosen, enough = models[0], True
    for model in models:
        cost, weights = timed.of(model, vocabulary), untrained(model, vocabulary).num_parameters()
        seen = step_tokens * seconds / cost.step
        if cost.step > timed.step:
            enough = min(seen / CHARACTERS_PER_WEIGHT, text_length / TEXT_PER_WEIGHT) >= weights
        if enough and schedule.fill(seconds, cost).steps >= MIN_STEPS:
            chosen = model
    return chosen


def choose_steps(plan: RunPlan) -> RunPlan:
    """Choose what fits into `minutes`; without `minutes`, note that few steps are too few."""
    steps = plan.config.trainer.max_steps
    if plan.config.minutes is not None and not plan.resumed:
        return fit_into_minutes(plan)
    if steps >= MIN_STEPS or "trainer.max_steps" not in plan.typed or plan.resume_point or plan.init_model:
        return plan
    enough = f"{MIN_STEPS} would be enough to begin with, or minutes=1"
    return replace(plan, notes=(*plan.notes, f"trainer.max_steps={steps}: {too_few(steps)}; {enough}"))


def fit_into_minutes(plan: RunPlan) -> RunPlan:
    """Choose model, batch, steps and validation interval to fit into `minutes`.

    Raises:
        InputError: there is more than one device, or `compile=true` was typed and fails.
    """
    config, text, minutes, typed = plan.config, plan.text, plan.config.minutes, plan.typed
    assert minutes is not None
    if plan.runtime.devices > 1:
        raise InputError(f"minutes={minutes:g}: needs one device; use trainer.devices=1 or trainer.max_steps=N")

    def left() -> float:
        return plan.started + 60 * minutes - time.perf_counter()

    startup = 60 * minutes - left()
    if "compile" not in typed and startup > COMPILE_SHARE * 60 * minutes:
        config = replace(config, compile="false")
    given = config.init_from is not None or any(key.startswith("model.") for key in typed)
    schedule = Schedule(
        split=len(text.validation), samples=len(TEMPERATURES) if config.logger else 0,
        overhead=max(OVERHEAD_SECONDS, OVERHEAD_SHARE * startup), before=int(config.init_from is not None),
        val_tokens=config.data.val_tokens, sample_length=config.watch.sample_length,
        interval=config.trainer.val_check_interval if "trainer.val_check_interval" in typed else 0,
    )  # fmt: skip
    first = ", after compiling them (about 20 seconds the first time)" if config.compile != "false" else ""
    log.info(f"minutes={minutes:g}: timing a few steps on this machine{first}")
    plan, cost = measure(replace(plan, config=config), left)

    config, vocabulary, step_tokens = plan.config, text.tokenizer.size, config.data.batch * config.model.context
    if not given:
        models = [*SMALLER, *presets()]
        model = choose_model(models, cost, left(), schedule, step_tokens, vocabulary, len(text.train))
        config = replace(config, model=model)
        if model.dim < cost.model.dim and "compile" not in typed:
            config = replace(config, compile="false")  # there is little time, and it would have to be compiled, too
    most = config.trainer.max_steps if len(text.train) < WHOLE else None
    steps = schedule.fill(left(), cost.of(config.model, vocabulary)).steps
    read = min(steps, most or steps) * step_tokens
    if "model.dropout" not in typed and config.init_from is None and config.data.overfit is None:
        dropout = dropout_for(config.model, vocabulary, len(text.train), read)
        config = replace(config, model=replace(config.model, dropout=dropout))
    if steps >= DOUBLED_FROM and read <= EPOCHS * len(text.train) and "data.batch" not in typed:
        config = replace(config, data=replace(config.data, batch=2 * config.data.batch))
    if config != plan.config:  # operations alone predict no time to 10 %
        plan, cost = measure(replace(plan, config=config), left)

    settled = schedule.fill(left(), cost)
    if most and settled.steps > most:
        settled = replace(settled, steps=most, interval=config.trainer.val_check_interval)
    steps, passed = max(1, settled.steps), 60 * minutes - left()
    if steps < MIN_STEPS:
        total = passed + replace(settled, steps=steps).seconds(cost, max(1, steps // settled.interval))
        long = f"; the run takes about {total:.0f} s" if total > 66 * minutes else ""
        needed = passed + replace(schedule, steps=MIN_STEPS).seconds(cost, 1)
        enough = f"minutes={math.ceil(needed / 6 + 1) / 10:g} would be enough here"
        log.info(f"minutes={minutes:g}: {too_few(steps)}{long}; {enough}")
    return _take(plan, replace(settled, steps=steps), cost, most)


def _take(plan: RunPlan, settled: Schedule, cost: Cost, most: int | None) -> RunPlan:
    """Return the plan with what was chosen, with a note for the run's introduction, and ready to settle again."""
    config = plan.config
    smaller = {
        f"{settled.val_tokens} tokens per validation": settled.val_tokens != config.data.val_tokens,
        f"samples of {settled.sample_length} characters": settled.sample_length != config.watch.sample_length,
        "not compiled": config.compile != plan.runtime.compile,
        "a model smaller than every preset": replace(config.model, dropout=0.0) in SMALLER,
    }
    said = ", ".join(words for words, applies in smaller.items() if applies)
    chosen = f"model, batch and steps are chosen for {1000 * cost.step:.3g} ms a step"
    note = f"minutes    {config.minutes:g}: {chosen}{f'; to fit, {said}' if said else ''}"
    config = replace(
        config,
        data=replace(config.data, val_tokens=settled.val_tokens),
        watch=replace(config.watch, sample_length=settled.sample_length),
        trainer=replace(config.trainer, max_steps=settled.steps, val_check_interval=settled.interval),
    )
    plan = replace(plan, config=config, notes=(*plan.notes, note))
    return replace(plan, settle_again=SettleAgain(plan, settled, cost, most))


def too_few(steps: int) -> str:
    """Return the part of a message that says that a run has too few steps."""
    return f"{steps} {'steps are' if steps > 1 else 'step is'} too few to learn much"
