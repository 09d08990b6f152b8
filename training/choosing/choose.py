"""Before the first step, replace each `auto` in the configuration by a value, which config.yaml then stores."""

import math
import time
from dataclasses import dataclass, field, fields, replace
from functools import partial
from typing import Any

from base.errors import InputError
from base.progress import count
from conf.schema import Config, TrainerConfig
from data.text import Text
from gpt.config import ModelConfig
from gpt.model import untrained
from training.choosing import hardware
from training.choosing.hardware import check_memory, choose_compile, choose_precision, choose_threads, compile_seconds
from training.choosing.text_length import PATIENCE, WHOLE, dropout_for, interval_for, steps_for
from training.choosing.time_budget import TRAINING, fit_into_minutes, schedule_for
from training.launch import Machine, rows_per_device

LAPTOP_FLOPS = 1.5e11  # FLOP/s of two laptop cores; a constant, so that every machine makes the same choice
SURE = 0.7  # fraction of the estimated steps in `minutes` that a run is sure to reach


@dataclass(frozen=True)
class Choice:
    """A configuration in which each `auto` is replaced by a value, and the reasons for these values."""

    config: Config  # the configuration
    # The reasons for automatic choices of `precision`, `compile` and `threads`, by key.
    why: dict[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()  # lines to log about other choices

    def describe(self, machine: Machine) -> str:
        """Return a line for the log: the device, the precision and whether the model is compiled, with the reasons."""
        config, configured = self.config, "as configured"
        compiled = "not compiled" if config.compile == "false" else "compiled"
        parts = [
            machine.device,
            f"{config.trainer.precision} ({self.why.get('precision', configured)})",
            f"{compiled} ({self.why.get('compile', configured)})",
        ]
        if "threads" in self.why:
            parts.append(f"{count(config.threads, 'thread')} ({self.why['threads']})")
        return ", ".join(parts)


def choose(config: Config, text: Text, machine: Machine, started: float, loaded: float = hardware.LOADED) -> Choice:
    """Choose a value for each `auto` in `config` that suits the text, machine and time limit, and return a `Choice`.

    If the run has a time limit (`minutes=N`), two keys may stay `auto`: `trainer.max_steps`, which the callback
    `Deadline` chooses when the learning rate must begin to fall, and `trainer.val_check_interval`, because validations
    are then equally spaced in time. `started` is the value of `time.perf_counter()` when the process began.
    """
    asked, why, adapted = config.trainer, dict[str, str](), list[str]()
    precision, why["precision"] = choose_precision(asked.precision, machine.device)
    threads, why["threads"] = choose_threads(config.threads)
    trainer = replace(asked, precision=precision, num_nodes=1 if asked.num_nodes == "auto" else asked.num_nodes)
    model, data, optim = (_with_defaults(group) for group in (config.model, config.data, config.optim))
    seconds_left = lambda: started + 60 * (config.minutes or 0) - time.perf_counter()  # noqa: E731
    tokens, vocabulary, pretrained = len(text.train), text.tokenizer.size, config.init_from is not None
    short = tokens < WHOLE and data.overfit is None
    usual = steps_for(tokens, pretrained) if short else TrainerConfig.max_steps
    steps: float = usual if asked.max_steps == "auto" else asked.max_steps
    by_clock, notes = config.minutes is not None and asked.max_steps == "auto", list[str]()
    if by_clock and machine.devices > 1:
        raise InputError(f"minutes={config.minutes:g}: needs one device; use trainer.devices=1 or trainer.max_steps=N")
    loaded = hardware.LOADED if config.minutes is None else max(1.0, loaded)  # without a limit, the same everywhere

    def compiling(rows: int, model: ModelConfig, seconds: float) -> tuple[tuple[str, str], float]:
        """Return what `choose_compile` returns for `seconds` of uncompiled training, and the seconds of compiling."""
        cached = config.minutes is not None and hardware.compiled_marker(model, trainer, rows).exists()
        cost, saved = compile_seconds(loaded, cached), (1 - hardware.step_ratio(precision)) * seconds
        return choose_compile(config.compile, machine.device, saved, cost), cost

    rows = rows_per_device(data, machine.devices)
    asked_model = (config.model.layers, config.model.dropout, config.data.batch)
    if by_clock and "auto" in (*asked_model, config.optim.lr, config.optim.warmup):
        default = replace(config, model=model, data=data, optim=optim, trainer=trainer)
        check_memory(replace(default, compile="false"), vocabulary, machine, rows)  # the steps that are timed
        most, costs = usual if short else math.inf, partial(compiling, rows)
        model, data, fitting, notes = fit_into_minutes(config, default, text, most, seconds_left, costs)
        by_clock = not short or steps > SURE * fitting  # a short text may need less than all the time
        steps = fitting if by_clock else steps
        optim = schedule_for(config.optim, steps) if by_clock else optim
        rows = rows_per_device(data, machine.devices)
    net = untrained(model, vocabulary)
    weights, flops = net.num_parameters(), net.flops_per_token()
    if config.model.dropout == "auto" and (short or by_clock) and not pretrained and data.overfit is None:
        model = replace(model, dropout=dropout_for(weights, tokens, steps * data.batch * model.context))
        adapted += [f"dropout {model.dropout:g}"] if model.dropout else []
    if asked.max_steps == "auto" and not by_clock:
        trainer = replace(trainer, max_steps=int(steps))
        adapted.insert(0, f"{steps} steps")
    if asked.val_check_interval == "auto" and not by_clock:
        interval = interval_for(tokens, pretrained, int(steps)) if short else TrainerConfig.val_check_interval
        trainer = replace(trainer, val_check_interval=interval)
        adapted += [f"validation every {interval}"] if interval < TrainerConfig.val_check_interval else []
    if short and adapted:
        notes.append(f"short text {tokens:,} training {text.tokenizer.unit}s: {', '.join(adapted)}")
    seconds = flops * steps * data.batch * model.context / LAPTOP_FLOPS
    seconds = seconds if config.minutes is None else TRAINING * seconds_left()
    (compiled, why["compile"]), _ = compiling(rows, model, seconds)
    chosen = replace(
        config, threads=threads, compile=compiled, model=model, data=data, optim=optim, trainer=trainer,
        callbacks=_with_patience(config.callbacks, PATIENCE if short and asked.max_steps == "auto" else None),
    )  # fmt: skip
    check_memory(chosen, vocabulary, machine, rows)
    automatic = {"precision": asked.precision == "auto", "compile": config.compile == "auto", "threads": why["threads"]}
    return Choice(chosen, {key: why[key] for key in why if automatic[key]}, tuple(notes))


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
