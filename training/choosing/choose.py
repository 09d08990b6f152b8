"""Before the first step, replace each `auto` in the configuration by a value, which config.yaml then stores."""

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from typing import Any

from base.errors import InputError
from base.progress import count
from conf.schema import Config, TrainerConfig
from data.text import Text
from gpt.model import untrained
from training.choosing import hardware
from training.choosing.hardware import LOADED, check_memory, choose_compile, choose_precision, choose_threads
from training.choosing.time_budget import EPOCHS, TRAINING, fit_into_minutes, schedule_for
from training.launch import Machine

LAPTOP_FLOPS = 1.5e11  # FLOP/s of two laptop cores; a constant, so that every machine makes the same choice
SURE = 0.7  # fraction of the estimated steps in `minutes` that a run is sure to reach

# The choices for the default model, by training characters; docs/experiments/short_texts.csv lists the runs.
#   characters     16,000    54,000    180,000    690,000 and more
#   steps             230       420        770    1,500
#   dropout           0.2       0.2          0    0
# So steps grow with the square root of the length.
WHOLE = 690_000  # training tokens of the shortest text for which nothing is adapted
DROPOUT, LITTLE_DROPOUT = 0.2, 0.1  # above `MANY_WEIGHTS`, and between the two limits
MANY_WEIGHTS, FEW_WEIGHTS = 3.0, 0.5  # per training token; with fewer than the latter, a model cannot memorise the text
START_SHARE = 0.25  # fraction of the steps for a run that starts from a trained model
VALIDATIONS = 12  # in a run on a short text, so that one of them is near the lowest loss
MOST_VALIDATIONS = 40  # in a run with more steps than the text needs
PATIENCE = VALIDATIONS // 3
AS_CONFIGURED = "as configured"


@dataclass(frozen=True)
class Choice:
    """A configuration in which each `auto` is replaced by a value, and lines to log about the choices."""

    config: Config
    machine: str  # the device, the precision and whether the model is compiled, with the reasons
    notes: tuple[str, ...] = ()


def choose(config: Config, text: Text, machine: Machine, started: float, loaded: float = LOADED) -> Choice:
    """Choose a value for each `auto` in `config` that suits the text, machine and time limit, and return a `Choice`.

    With `minutes=N`, steps and validation interval may stay `auto`: `Deadline` chooses them while the run trains.
    """
    precision, why_precision = choose_precision(config.trainer.precision, machine.device)
    threads, why_threads = choose_threads(config.threads)
    chosen = replace(
        config, threads=threads, model=with_defaults(config.model), data=with_defaults(config.data),
        optim=with_defaults(config.optim), trainer=fill(config.trainer, precision=precision, num_nodes=1),
    )  # fmt: skip
    tokens, pretrained = len(text.train), config.init_from is not None
    short = tokens < WHOLE and config.data.overfit is None
    steps, notes = steps_needed(config, short, tokens), list[str]()
    net, ends_at = untrained(chosen.model, text.tokenizer.size), started + 60 * (config.minutes or 0)
    compiling = hardware.COMPILING * (LOADED if config.minutes is None else max(1.0, loaded))
    seconds = TRAINING * (ends_at - time.perf_counter())
    if config.minutes is None:
        seconds = net.flops_per_token() * steps * chosen.data.batch * chosen.model.context / LAPTOP_FLOPS
    saved = (1 - hardware.COMPILED[precision]) * seconds
    compiled, why_compile = choose_compile(config.compile, machine.device, saved, compiling)
    chosen = replace(chosen, compile=compiled)
    by_clock = config.minutes is not None and config.trainer.max_steps == "auto"
    check_memory(replace(chosen, compile="false") if by_clock else chosen, text.tokenizer.size, machine)
    if by_clock:
        if machine.devices > 1:
            way = "use trainer.devices=1 or trainer.max_steps=N"
            raise InputError(f"minutes={config.minutes:g}: needs one device; {way}")
        chosen, fitting, notes = fit_into_minutes(config, chosen, text, steps, ends_at, compiling)
        net = untrained(chosen.model, text.tokenizer.size)
        by_clock = steps > SURE * fitting  # a short text may need less than all the time
        if by_clock:
            steps = fitting
            chosen = replace(chosen, optim=schedule_for(config.optim, steps))
    if (short or by_clock) and config.model.dropout == "auto" and not pretrained and config.data.overfit is None:
        read = steps * chosen.data.batch * chosen.model.context
        chosen = replace(chosen, model=replace(chosen.model, dropout=dropout_for(net.num_parameters(), tokens, read)))
    if not by_clock:
        interval = interval_for(tokens, pretrained, int(steps)) if short else TrainerConfig.val_check_interval
        chosen = replace(chosen, trainer=fill(chosen.trainer, max_steps=int(steps), val_check_interval=interval))
    patience = PATIENCE if short and config.trainer.max_steps == "auto" else None
    chosen = replace(chosen, callbacks=_with_patience(config.callbacks, patience))
    if short and (adapted := ", ".join(_adapted(config, chosen))):
        notes.append(f"short text {tokens:,} training {text.tokenizer.unit}s: {adapted}")
    reasons = [machine.device, f"{precision} ({why_precision or AS_CONFIGURED})"]
    reasons.append(f"{'not ' * (compiled == 'false')}compiled ({why_compile or AS_CONFIGURED})")
    reasons += [f"{count(int(threads), 'thread')} ({why_threads})"] if why_threads else []
    return Choice(chosen, ", ".join(reasons), tuple(notes))


def fill(config: Any, **values: Any) -> Any:
    """Return a copy of `config` in which `values` replace those of its fields that are `auto`."""
    return replace(config, **{key: value for key, value in values.items() if getattr(config, key) == "auto"})


def with_defaults(config: Any) -> Any:
    """Return a copy of `config` in which each `auto` is replaced by the default of its field."""
    return fill(config, **{each.name: each.default for each in fields(config) if each.metadata["auto"]})


def _adapted(config: Config, chosen: Config) -> Iterator[str]:
    """Yield what was chosen for a short text in place of the usual value."""
    trainer = chosen.trainer
    if config.trainer.max_steps != trainer.max_steps:
        yield f"{trainer.max_steps} steps"
    if config.model.dropout == "auto" and chosen.model.dropout:
        yield f"dropout {chosen.model.dropout:g}"
    if config.trainer.val_check_interval != trainer.val_check_interval < TrainerConfig.val_check_interval:
        yield f"validation every {trainer.val_check_interval}"


def steps_needed(config: Config, short: bool, tokens: int) -> float:
    """Return the number of steps after which a run ends, infinity if `minutes` alone decides."""
    if config.trainer.max_steps != "auto":
        return config.trainer.max_steps
    if short:
        return steps_for(tokens, config.init_from is not None)
    return TrainerConfig.max_steps if config.minutes is None else math.inf


def steps_for(tokens: int, started: bool) -> int:
    """Return the number of training steps for a training text with `tokens` tokens."""
    share = min(1.0, tokens / WHOLE) ** 0.5 * (START_SHARE if started else 1)
    return max(1, round(TrainerConfig.max_steps * share / 10)) * 10


def dropout_for(weights: int, tokens: int, read: float) -> float:
    """Return the dropout that keeps a model from memorising a text of `tokens` tokens, of which it reads `read`."""
    if read <= EPOCHS * tokens or weights < FEW_WEIGHTS * tokens:
        return 0.0
    return DROPOUT if weights > MANY_WEIGHTS * tokens else LITTLE_DROPOUT


def interval_for(tokens: int, started: bool, steps: int) -> int:
    """Return the number of steps between two validations of a run on a short text (fewer than `WHOLE` tokens)."""
    rising = min(steps, steps_for(tokens, started))  # the loss may rise from about here on
    return min(TrainerConfig.val_check_interval, max(-(-rising // VALIDATIONS), steps // MOST_VALIDATIONS))


def _with_patience(callbacks: dict[str, Any], patience: int | None) -> dict[str, Any]:
    """Return the configured callbacks, with the argument `patience: auto` of early stopping replaced by `patience`."""
    chosen = {}
    for name, arguments in callbacks.items():
        if arguments.get("patience") != "auto":
            chosen[name] = arguments
        elif patience is not None:
            chosen[name] = arguments | {"patience": patience}
    return chosen
