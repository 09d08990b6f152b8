"""`minutes=N`: the best training that fits into a time, settled once before step 0.

What comes out is an ordinary configuration (a model preset, a batch, a number of steps), which goes into config.yaml;
nothing is measured again when the run is resumed.
"""

import math
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import lightning as L
import torch

from base.errors import InputError
from base.log import log
from base.progress import Progress
from conf.keys import presets
from conf.schema import Config
from data.batches import VALIDATION_CHARACTERS
from data.datamodule import TextDataModule
from gpt.config import ModelConfig
from gpt.inference.generate import generate
from gpt.model import GPT
from training.callbacks.samples import FINAL_SAMPLE_LENGTH, SAMPLE_LENGTH, TEMPERATURES
from training.module import LitGPT
from training.run_plan import RunPlan

if TYPE_CHECKING:
    from data.text import Text
    from training.module import LitGPT

TIMED_SECONDS = 2.0  # seconds of steps that are timed
WARMUP_STEPS = 3  # steps before that, which are slower
NUM_SAMPLED = 10  # characters of text that are timed
NUM_EVALUATED = 2**13  # characters whose evaluation is timed


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
        trainer.should_stop = len(self.steps) > WARMUP_STEPS and sum(self.steps[WARMUP_STEPS:]) > TIMED_SECONDS


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
    count = max(1, min(len(tokens), NUM_EVALUATED) // context)
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
            sampled = _median_seconds(lambda: generate(net, windows[0], NUM_SAMPLED, seed=0))
    return Cost(statistics.median(clock.steps[WARMUP_STEPS:]), evaluated / windows.numel(), sampled / NUM_SAMPLED)


def _median_seconds(work: Callable[[], object]) -> float:
    times = []
    for _ in range(3):
        started = time.perf_counter()
        work()
        times.append(time.perf_counter() - started)
    return statistics.median(times)


# A larger preset is worth its time when the run shows it so many characters for each of its weights, of a text
# that has as many characters as it has weights: an estimate, not measured.
CHARACTERS_PER_WEIGHT = 4.0
# With more weights than this for each character of the text, and the text read this often, the model learns it by heart
# and the validation loss rises again. Dropout prevents that. Seen with 0.8 million weights: 180 KB of text were
# memorised, 1 MB were not (docs/experiments.md).
WEIGHTS_PER_CHARACTER, READINGS, DROPOUT = 2.0, 8.0, 0.2
# From so many steps on, half as many of twice the windows learn as much from as many characters and take less time
# (docs/experiments.md).
DOUBLED_FROM = 4000
VALIDATIONS = 6  # in the whole run, fewer where they would take more than
VALIDATING = 0.25  # of the time
OVERHEAD_SECONDS = 1.5  # seconds to set up and to end a run: Trainer, checkpoints, exit


@dataclass(frozen=True)
class Budget:
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
    interval: int | None = None  # steps between validations, where that is given

    def seconds(self, cost: Cost, validations: int) -> float:
        """How long all of it takes."""
        evaluated = validations * self.validated + self.finally_evaluated
        sampled = validations * self.sampled_per_validation + self.finally_sampled
        return OVERHEAD_SECONDS + evaluated * cost.evaluated + sampled * cost.sampled


def choose_budget(
    left: Callable[[], float],
    presets: list[ModelConfig],
    measure: Callable[[ModelConfig], Cost],
    work: Work,
    batch: int,
    vocabulary: int,
    text: int,
) -> Budget:
    """Choose a preset, its dropout, a number of steps and one of validations.

    Args:
        left: seconds until the run should be over, as of now.
        presets: from small to large; a single one is taken as it is.
        measure: times one of them on this machine.
        work: what the run does besides.
        batch: windows of a step.
        vocabulary: number of tokens.
        text: characters to train on.
    """

    def shape(config: ModelConfig) -> tuple[int, int]:
        with torch.device("meta"):
            model = GPT(config, vocabulary)
        return model.flops_per_token(), model.num_parameters()

    chosen = presets[0]
    cost = measure(chosen)
    flops_per_second = shape(chosen)[0] * batch * chosen.context / cost.step
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
    if work.interval is not None:
        steps = int((seconds - work.seconds(cost, 1)) / (cost.step + validation / work.interval))
        validations = max(1, steps // work.interval)
    return Budget(chosen, max(0, steps), validations, cost)


def settle_minutes(plan: RunPlan, make_module: Callable[[], "LitGPT"]) -> str:
    """Settle what `minutes` leaves open, in the configuration: preset, batch, steps, how often to validate.

    Args:
        plan: of the run; its configuration is changed.
        make_module: makes a module of the configuration as it stands.

    Returns:
        A line that says what was settled and from what.

    Raises:
        InputError: there is more than one device, or no time for a step.
    """
    config, keys, text, minutes = plan.config, plan.keys, plan.text, plan.config.minutes
    assert minutes is not None
    if plan.runtime.devices > 1:
        raise InputError(f"minutes={minutes:g}: is for one device; trainer.devices=1, or trainer.max_steps=N")

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
    config.model = settled.model
    if settled.steps < 1:
        # In hundredths, rounded up; a machine that is busier next time may still refuse it.
        needed = math.ceil((60 * minutes - left() + work.seconds(settled.cost, 1)) / 0.6 + 1) / 100
        raise InputError(f"minutes={minutes:g}: is gone before the first step, must be above {needed:g}")
    config.trainer.max_steps = settled.steps
    if work.interval is None:
        config.trainer.val_check_interval = -(-settled.steps // settled.validations)
    return f"minutes    {minutes:g}: settled before the first step, for {1000 * settled.cost.step:.3g} ms a step"


def work_besides_steps(config: Config, keys: list[str], text: "Text") -> Work:
    """What a run with this configuration evaluates and samples."""
    validated = min(VALIDATION_CHARACTERS, len(text.validation))
    return Work(
        validated=validated,
        finally_evaluated=len(text.validation) + len(text.test) + (validated if config.init_from is not None else 0),
        sampled_per_validation=len(TEMPERATURES) * SAMPLE_LENGTH if config.logger else 0,
        finally_sampled=FINAL_SAMPLE_LENGTH,
        interval=config.trainer.val_check_interval if "trainer.val_check_interval" in keys else None,
    )
