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
from gpt.config import ModelConfig
from gpt.model import untrained
from training.choosing import hardware
from training.choosing.hardware import check_memory, choose_compile, choose_precision, choose_threads
from training.choosing.time_budget import EPOCHS, TRAINING, fit_into_minutes, schedule_for
from training.launch import Machine, rows_per_device

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


@dataclass(frozen=True)
class Choice:
    """A configuration in which each `auto` is replaced by a value, and lines to log about the choices."""

    config: Config
    machine: str  # the device, the precision and whether the model is compiled, with the reasons
    notes: tuple[str, ...] = ()


def choose(config: Config, text: Text, machine: Machine, started: float, loaded: float = hardware.LOADED) -> Choice:
    """Choose a value for each `auto` in `config` that suits the text, machine and time limit, and return a `Choice`.

    With `minutes=N`, steps and validation interval may stay `auto`: `Deadline` chooses them while the run trains.
    """
    why, adapted = dict[str, str](), list[str]()
    model, data, optim = (_with_defaults(each) for each in (config.model, config.data, config.optim))
    precision, why["precision"] = choose_precision(config.trainer.precision, machine.device)
    threads, why["threads"] = choose_threads(config.threads)
    trainer = replace(config.trainer, precision=precision)
    trainer = replace(trainer, num_nodes=1) if trainer.num_nodes == "auto" else trainer
    seconds_left = lambda: started + 60 * (config.minutes or 0) - time.perf_counter()  # noqa: E731
    tokens, vocabulary, pretrained = len(text.train), text.tokenizer.size, config.init_from is not None
    short = tokens < WHOLE and data.overfit is None
    usual = steps_for(tokens, pretrained) if short else TrainerConfig.max_steps
    steps: float = usual if config.trainer.max_steps == "auto" else config.trainer.max_steps
    by_clock, notes = config.minutes is not None and config.trainer.max_steps == "auto", list[str]()
    if by_clock and machine.devices > 1:
        raise InputError(f"minutes={config.minutes:g}: needs one device; use trainer.devices=1 or trainer.max_steps=N")
    loaded = hardware.LOADED if config.minutes is None else max(1.0, loaded)  # without a limit, the same everywhere

    def compiling(model: ModelConfig, seconds: float) -> tuple[tuple[str, str], float]:
        """Return what `choose_compile` returns for `seconds` of uncompiled training, and the seconds of compiling."""
        marker = hardware.compiled_marker(model, trainer, rows_per_device(data, machine.devices))
        cached = config.minutes is not None and marker.exists()
        cost = loaded * (hardware.WARM if cached else hardware.COLD)
        saved = (1 - hardware.COMPILED[precision]) * seconds
        return choose_compile(config.compile, machine.device, saved, cost), cost

    open_keys = (config.model.layers, config.model.dropout, config.data.batch, config.optim.lr, config.optim.warmup)
    if by_clock and "auto" in open_keys:
        default = replace(config, model=model, data=data, optim=optim, trainer=trainer)
        check_memory(replace(default, compile="false"), vocabulary, machine)  # the steps that are timed
        most = usual if short else math.inf
        model, data, fitting, notes = fit_into_minutes(config, default, text, most, seconds_left, compiling)
        by_clock = not short or steps > SURE * fitting  # a short text may need less than all the time
        steps = fitting if by_clock else steps
        optim = schedule_for(config.optim, steps) if by_clock else optim
    net = untrained(model, vocabulary)
    weights, flops = net.num_parameters(), net.flops_per_token()
    if config.model.dropout == "auto" and (short or by_clock) and not pretrained and data.overfit is None:
        model = replace(model, dropout=dropout_for(weights, tokens, steps * data.batch * model.context))
        adapted += [f"dropout {model.dropout:g}"] if model.dropout else []
    if config.trainer.max_steps == "auto" and not by_clock:
        trainer = replace(trainer, max_steps=int(steps))
        adapted.insert(0, f"{steps} steps")
    if config.trainer.val_check_interval == "auto" and not by_clock:
        interval = interval_for(tokens, pretrained, int(steps)) if short else TrainerConfig.val_check_interval
        trainer = replace(trainer, val_check_interval=interval)
        adapted += [f"validation every {interval}"] if interval < TrainerConfig.val_check_interval else []
    if short and adapted:
        notes.append(f"short text {tokens:,} training {text.tokenizer.unit}s: {', '.join(adapted)}")
    seconds = flops * steps * data.batch * model.context / LAPTOP_FLOPS
    seconds = seconds if config.minutes is None else TRAINING * seconds_left()
    (compiled, why["compile"]), _ = compiling(model, seconds)
    chosen = replace(
        config, threads=threads, compile=compiled, model=model, data=data, optim=optim, trainer=trainer,
        callbacks=_with_patience(config.callbacks, PATIENCE if short and config.trainer.max_steps == "auto" else None),
    )  # fmt: skip
    check_memory(chosen, vocabulary, machine)
    return Choice(chosen, ", ".join([machine.device, *_reasons(chosen, why)]), tuple(notes))


def _reasons(chosen: Config, why: dict[str, str]) -> Iterator[str]:
    values = {"precision": chosen.trainer.precision}
    values |= {"compile": "not compiled" if chosen.compile == "false" else "compiled"}
    values |= {"threads": count(int(chosen.threads), "thread")} if why["threads"] else {}
    for key, value in values.items():
        yield f"{value} ({why[key] or 'as configured'})"


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


def _with_defaults(config: Any) -> Any:
    """Return a copy of `config` in which each `auto` is replaced by the default of its field."""
    chosen = (each for each in fields(config) if each.metadata["auto"] and getattr(config, each.name) == "auto")
    return replace(config, **{each.name: each.default for each in chosen})
