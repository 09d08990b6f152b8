"""Before the first step, replace each `auto` in the configuration by a value, which config.yaml then stores."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from typing import Any

from base import processes
from base.progress import count
from conf.schema import Config, TrainerConfig
from data.config import DataConfig
from data.text import Text
from gpt.config import ModelConfig, OptimConfig
from gpt.facts import rounded
from gpt.model import untrained
from reports.log_lines import MIN_STEPS
from training.choosing import hardware
from training.choosing.scaling_law import LEARNED
from training.choosing.time_budget import (
    SHORT_TEXT,
    START_SHARE,
    TRAINING_SHARE,
    Fitting,
    fit_into_minutes,
    fit_model,
    lowest_loss,
)
from training.machine import Machine, describe

# The choices for the default model, by training characters; docs/experiments/short_texts.csv lists
# the runs.
#   characters     16,000    54,000    180,000    690,000 and more
#   steps             230       420        770    1,500
#   dropout           0.2       0.2          0    0
# So steps grow with the square root of the length.
MANY_WEIGHTS = 3.0  # per training token
FEW_WEIGHTS = 0.5  # per training token; with fewer, a model cannot memorise the text
DROPOUT = 0.2  # of a model with more than `MANY_WEIGHTS`
LITTLE_DROPOUT = 0.1  # of a model between the two limits
DROPOUT_FROM_EPOCHS = 10.0  # a short text that is read less often needs no dropout
# training tokens; the law of `scaling_law.py`, fitted on longer texts, has a shorter one learned
# too early, and by too small a model (docs/experiments.md)
PREDICTABLE = 50_000
# of a run on a short text, or with a time limit
MIN_VALIDATIONS = 12
MAX_VALIDATIONS = 40
PATIENCE = MIN_VALIDATIONS // 3
# In few steps the learning rate is higher, and the warm-up shorter (docs/experiments.md).
RAISED_BELOW = 1300  # steps
HIGHEST_RATE = 5.0  # times the default rate
SHORT_WARMUP = 6  # the warm-up is at most the steps divided by this
AS_CONFIGURED = "as configured"


@dataclass(frozen=True)
class Choice:
    """A configuration in which each `auto` is replaced by a value, and lines to log about the choices."""

    config: Config
    machine: str  # the device, the precision and whether the model is compiled, with the reasons
    notes: tuple[str, ...] = ()
    steps_needed: float = math.inf  # with `minutes`: more steps would not lower the loss


def choose(config: Config, text: Text, machine: Machine) -> Choice:
    """Choose a value for each `auto` in `config` that suits the text, machine and time limit, and return a `Choice`.

    With `minutes=N`, steps and validation interval stay `auto`: `Deadline` chooses them while the
    run trains, at most `steps_needed`.
    """
    precision, why_precision = hardware.choose_precision(config.trainer.precision, machine)
    threads, why_threads = hardware.choose_threads(config.threads)
    default = with_constants(config, precision, threads)
    length = choose_length(config, default, text, machine)
    model = replace(length.model, dropout=choose_dropout(config, length, text))
    chosen = replace(
        default,
        model=model,
        data=replace(default.data, batch=length.batch),
        callbacks=choose_callbacks(config, length.is_short),
    )
    if length.fitting:
        # A text that is learned before the time is over is learned better at the default rate
        # (docs/experiments.md).
        if not length.fitting.learns_in_time:
            optim = schedule_for(config.optim, length.fitting.steps_in_time)
            chosen = replace(chosen, optim=optim)
    else:
        trainer = fill(default.trainer, max_steps=length.steps, val_check_interval=length.interval)
        chosen = replace(chosen, trainer=trainer)
    compiled, why_compiled = choose_compiling(config, chosen, length, text, machine)
    chosen = replace(chosen, compile=compiled)
    hardware.check_memory(chosen, text.tokenizer.size, machine)

    compiling = "not compiled" if compiled == "false" else "compiled"
    choices = [describe(machine, chosen), f"{precision} ({why_precision or AS_CONFIGURED})"]
    choices.append(f"{compiling} ({why_compiled or AS_CONFIGURED})")
    if why_threads:
        choices.append(f"{count(int(threads), 'thread')} ({why_threads})")
    notes = [*length.notes, *describe_short(config, chosen, length, text)]
    steps_needed = length.fitting.steps_needed if length.fitting else math.inf
    return Choice(chosen, ", ".join(choices), tuple(notes), steps_needed)


def with_constants(config: Config, precision: str, threads: int | str) -> Config:
    """Return `config` with the precision, the threads, and each default that does not depend on the text."""
    return replace(
        config,
        model=with_defaults(config.model),
        data=with_defaults(config.data),
        optim=with_defaults(config.optim),
        trainer=replace(config.trainer, precision=precision),
        threads=threads,
    )


@dataclass(frozen=True)
class Length:
    """How long a run trains, and the model and batch with which it does."""

    steps: int  # 0 with a time limit, until `Deadline` chooses them
    model: ModelConfig
    batch: int
    is_short: bool  # whether the text is so short that a run is adapted to it
    interval: int = TrainerConfig.val_check_interval  # between two validations
    fitting: Fitting | None = None  # with a time limit: what was chosen for it
    notes: tuple[str, ...] = ()

    @property
    def tokens_seen(self) -> float:
        return self.steps * self.batch * self.model.context


def choose_length(config: Config, default: Config, text: Text, machine: Machine) -> Length:
    """Choose the steps by the length of the text or, with `minutes`, also model and batch by the time that is left."""
    is_short = len(text.train) < SHORT_TEXT and config.data.overfit is None
    if config.minutes is not None and config.trainer.max_steps == "auto":
        return choose_timed_length(config, default, text, machine, is_short)
    steps = choose_steps(config, text, is_short)
    length = Length(steps, default.model, default.data.batch, is_short)
    if is_short:
        interval = interval_for(len(text.train), share_of_steps(config), steps)
        return replace(length, interval=interval)
    return length


def choose_steps(config: Config, text: Text, is_short: bool) -> int:
    """Return the number of steps of a run without a time limit."""
    if config.trainer.max_steps != "auto":
        return config.trainer.max_steps
    if is_short:
        return steps_for(len(text.train), share_of_steps(config))
    return TrainerConfig.max_steps


def choose_timed_length(
    config: Config, default: Config, text: Text, machine: Machine, is_short: bool
) -> Length:
    """Choose the model with the lowest loss within the time limit; a run that has learned the text ends earlier."""
    assert config.minutes
    fitting = fit_recipe(config, default, text, machine)
    needs_text = fitting is not None and config.model.dim == "auto"
    if fitting is None:
        fitting = fit_into_minutes(config, default, text, machine)
        if len(text.train) < PREDICTABLE:
            least = recipe_steps(config, default, text)
            fitting = replace(fitting, steps_needed=max(least, fitting.steps_needed))
        # Neither more steps nor a larger model would lower the loss.
        needs_text = (
            config.model.dim == "auto"
            and fitting.learns_in_time
            and fitting.loss <= lowest_loss(config, default, text) + LEARNED
        )
    return Length(
        0,
        fitting.model,
        fitting.batch,
        is_short,
        fitting=fitting,
        notes=tuple(describe_time(config.minutes, fitting, needs_text)),
    )


def fit_recipe(config: Config, default: Config, text: Text, machine: Machine) -> Fitting | None:
    """Return what a run without a time limit chooses, if the text is too short to predict losses and it fits."""
    if len(text.train) >= PREDICTABLE or config.data.overfit is not None:
        return None
    model = default.model
    steps = recipe_steps(config, default, text)
    fitting = fit_model(model, config, default, text, machine)
    if steps > fitting.steps_in_time:
        return None
    if config.model.dropout == "auto" and config.init_from is None:
        weights = untrained(model, text.tokenizer.size).num_parameters()
        tokens_seen = steps * default.data.batch * model.context
        model = replace(model, dropout=dropout_for(weights, len(text.train), tokens_seen))
    return replace(fitting, model=model, steps_needed=steps)


def recipe_steps(config: Config, default: Config, text: Text) -> float:
    """Return the steps that read as much as those of a run without a time limit with the default batch and context."""
    steps = steps_for(len(text.train), share_of_steps(config))
    usual_tokens = DataConfig.batch * ModelConfig.context  # of a step
    return steps * usual_tokens / (default.data.batch * default.model.context)


def describe_time(minutes: float, fitting: Fitting, needs_text: bool) -> Iterator[str]:
    """Yield lines about the time limit. If the run `needs_text`, not even a larger model would lower its loss."""
    if fitting.learns_in_time:
        seconds = (
            processes.elapsed() + fitting.steps_needed * fitting.step_seconds / TRAINING_SHARE
        )
        duration = count(round(seconds), "second")
        if seconds >= 90:
            duration = count(round(seconds / 60), "minute")
        learned = f"this model learns the text in about {duration} (a larger one needs more time)"
        if needs_text:
            learned = f"this text is learned in about {duration} (more text would help)"
        yield f"minutes    {minutes:g}: {learned}"
        return
    yield f"minutes    {minutes:g}: a step takes about {rounded(1000 * fitting.step_seconds, 3)} ms here"
    if fitting.steps_in_time < MIN_STEPS:
        few = count(int(fitting.steps_in_time), "step")
        yield f"minutes={minutes:g}: {few} will learn next to nothing; allow more time"


def share_of_steps(config: Config) -> float:
    return 1.0 if config.init_from is None else START_SHARE


def choose_dropout(config: Config, length: Length, text: Text) -> float:
    if length.fitting:  # the dropout was chosen with the size of the model
        return length.model.dropout
    if config.model.dropout != "auto" or config.init_from or not length.is_short:
        return length.model.dropout
    weights = untrained(length.model, text.tokenizer.size).num_parameters()
    return dropout_for(weights, len(text.train), length.tokens_seen)


def choose_compiling(
    config: Config, chosen: Config, length: Length, text: Text, machine: Machine
) -> tuple[str, str]:
    """Return whether the training step is compiled, `true` or `false`, and the reason, "" if it is set."""
    precision = chosen.trainer.precision
    if config.minutes is None:
        flops = untrained(chosen.model, text.tokenizer.size).flops_per_token() * length.tokens_seen
        seconds = flops / hardware.estimated_flops(machine, precision)
    else:
        seconds = TRAINING_SHARE * (60 * config.minutes - processes.elapsed())
    if length.fitting:  # the run may end earlier
        seconds *= length.fitting.chosen_steps / length.fitting.steps_in_time
    saved = (1 - hardware.compiled_fraction(precision, machine.device)) * seconds
    cost = hardware.compiling_seconds(chosen, machine)
    return hardware.choose_compile(config.compile, machine.device, saved, cost)


def describe_short(config: Config, chosen: Config, length: Length, text: Text) -> list[str]:
    """Return a line that says what was chosen for a short text in place of the usual values, if anything was."""
    if not length.is_short:
        return []
    adapted = ", ".join(_adapted(config, chosen))
    if not adapted:
        return []
    unit = text.tokenizer.unit
    return [f"short text {len(text.train):,} training {unit}s: {adapted}"]


def fill(config: Any, **values: Any) -> Any:
    """Return a copy of `config` in which `values` replace those of its fields that are `auto`."""
    return replace(
        config, **{key: value for key, value in values.items() if getattr(config, key) == "auto"}
    )


def with_defaults(config: Any) -> Any:
    return fill(
        config, **{field.name: field.default for field in fields(config) if field.metadata["auto"]}
    )


def schedule_for(optim: OptimConfig, steps: float) -> OptimConfig:
    """Return `optim` with the learning rate `lr` and the warm-up of a run of `steps` steps where they are `auto`.

    With Muon, `lr` is the rate of the weights that Muon leaves to AdamW, and a short run needs a
    higher one.
    """
    times = 1.0
    if optim.name == "muon":
        times = min(HIGHEST_RATE, max(1.0, RAISED_BELOW / steps))
    rate = float(f"{times * OptimConfig.lr:.2g}")
    warmup = min(OptimConfig.warmup, int(steps / SHORT_WARMUP))
    return fill(optim, lr=rate, warmup=warmup)


def _adapted(config: Config, chosen: Config) -> Iterator[str]:
    """Yield what was chosen for a short text in place of the usual value."""
    if config.trainer.max_steps != chosen.trainer.max_steps:
        yield f"{chosen.trainer.max_steps} steps"
    if config.model.dropout == "auto" and chosen.model.dropout:
        yield f"dropout {chosen.model.dropout:g}"
    interval = chosen.trainer.val_check_interval
    usual = TrainerConfig.val_check_interval
    # With a time limit, both may still be `auto`, which must not be compared with a number.
    if interval != config.trainer.val_check_interval and interval < usual:
        yield f"validation every {interval}"


def steps_for(tokens: int, share: float) -> int:
    """Return the number of steps for a text of `tokens` training tokens, a multiple of 10.

    `share` is the fraction of the steps that the run needs, as `share_of_steps` returns it.
    """
    scale = min(1.0, tokens / SHORT_TEXT) ** 0.5
    steps = TrainerConfig.max_steps * scale * share
    return max(1, round(steps / 10)) * 10


def dropout_for(weights: int, tokens: int, tokens_seen: float) -> float:
    """Return the dropout that keeps a model from memorising a text of `tokens` tokens.

    `tokens_seen` counts a token each time that it is read.
    """
    if tokens_seen <= DROPOUT_FROM_EPOCHS * tokens or weights < FEW_WEIGHTS * tokens:
        return 0.0
    return DROPOUT if weights > MANY_WEIGHTS * tokens else LITTLE_DROPOUT


def interval_for(tokens: int, share: float, steps: int) -> int:
    """Return the number of steps between two validations of a run on a short text (fewer than `SHORT_TEXT` tokens)."""
    rising = min(steps, steps_for(tokens, share))  # the loss may rise from about here on
    for_minimum = -(-rising // MIN_VALIDATIONS)  # about MIN_VALIDATIONS by then; rounded up
    for_maximum = steps // MAX_VALIDATIONS  # about MAX_VALIDATIONS in all
    return min(TrainerConfig.val_check_interval, max(for_minimum, for_maximum))


def choose_callbacks(config: Config, short: bool) -> dict[str, Any]:
    """Return the configured callbacks; one with `patience: auto` stays only if a short text has chosen the steps.

    With a time limit, the run ends when the text is learned; its best model is kept anyway.
    """
    chooses_steps = config.trainer.max_steps == "auto" and config.minutes is None
    callbacks = {}
    for name, callback in config.callbacks.items():
        if callback.get("patience") != "auto":
            callbacks[name] = callback
        elif short and chooses_steps:
            callbacks[name] = callback | {"patience": PATIENCE}
    return callbacks
