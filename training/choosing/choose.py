"""Before the first step, replace each `auto` in the configuration by a value, which config.yaml then stores."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from typing import Any

from base import processes
from base.progress import count
from conf.schema import Config
from data.text import Text
from gpt.config import OptimConfig
from gpt.facts import duration, epochs, rounded
from gpt.model import untrained
from reports.log_lines import MIN_STEPS
from training.choosing import hardware, rules, time_budget
from training.machine import Machine, number_of

AS_CONFIGURED = "as configured"


@dataclass(frozen=True)
class Choice:
    """A configuration in which each `auto` is replaced by a value, and lines to log about the choices."""

    config: Config
    why_compiled: str  # or why not; "" if it is set
    notes: list[str]
    steps_needed: float = math.inf  # with `minutes`: more steps would not lower the loss
    machine: str = ""  # the device, the precision and the threads, with the reasons


def choose(config: Config, text: Text, machine: Machine) -> Choice:
    """Choose a value for each `auto` in `config` that suits the text, machine and time limit, and return a `Choice`.

    With `minutes=N`, steps and validation interval stay `auto`: `Deadline` chooses them while the
    run trains, at most `steps_needed`.
    """
    precision, why_precision = hardware.choose_precision(config.trainer.precision, machine)
    threads, why_threads = hardware.choose_threads(config.threads)
    default = with_constants(config, precision, threads)
    is_short = len(text.train) < rules.SHORT_TEXT and config.data.overfit is None
    if config.minutes is not None and config.trainer.max_steps == "auto":
        choice = choose_by_time(config, default, text, machine)
    else:
        choice = choose_by_text(config, default, text, machine, is_short)
    chosen = replace(choice.config, callbacks=choose_callbacks(config, is_short))
    hardware.check_memory(chosen, text.tokenizer.size, machine)
    device = machine.device
    if machine.gpus > 1:
        device += f" ({number_of(machine.local)} of {machine.gpus} GPUs: trainer.devices)"
    described = f"{device}, {precision} ({why_precision or AS_CONFIGURED})"
    if why_threads:
        described += f", {count(int(threads), 'thread')} ({why_threads})"
    return replace(choice, config=chosen, machine=described)


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


def choose_by_text(
    config: Config, default: Config, text: Text, machine: Machine, is_short: bool
) -> Choice:
    """Choose the steps by the length of the text, and the dropout by how often it is read."""
    tokens = len(text.train)
    trainer, model = default.trainer, default.model
    if is_short:
        usual = rules.steps_for(tokens, rules.share_of_steps(config, tokens))
        trainer = fill(trainer, max_steps=usual)
        trainer = fill(trainer, val_check_interval=rules.interval_for(trainer.max_steps, usual))
    trainer = with_defaults(trainer)
    tokens_seen = trainer.max_steps * default.data.batch * model.context
    if is_short and config.model.dropout == "auto":
        model = replace(model, dropout=rules.dropout_for(model, tokens, tokens_seen))
    flops = untrained(model, text.tokenizer.size).flops_per_token() * tokens_seen
    seconds = flops / hardware.estimated_flops(machine, default.trainer.precision)
    compiled, why_compiled = hardware.choose_compile(default, machine, seconds)
    chosen = replace(default, model=model, trainer=trainer, compile=compiled)
    notes = []
    if is_short:
        steps = (
            f"{count(trainer.max_steps, 'step')}, validation every {trainer.val_check_interval}"
        )
        notes.append(f"short text {tokens:,} training {text.tokenizer.unit}s: {steps}")
    return Choice(chosen, why_compiled, notes)


def choose_by_time(config: Config, default: Config, text: Text, machine: Machine) -> Choice:
    """Choose what trains best within `minutes`; a run that has learned the text ends earlier."""
    budget = time_budget.fit(config, default, text, machine)
    chosen = budget.config
    # A text that is learned before the time is over, or by a trained model, is learned better at
    # the default rate (docs/experiments.md).
    if budget.steps_needed > budget.steps_in_time and not config.init_from:
        rate, warmup = rules.schedule_for(chosen.optim.name, budget.steps_in_time)
        optim = with_defaults(fill(config.optim, lr=rate, warmup=warmup))
        chosen = replace(chosen, optim=optim)
    notes = list(describe_time(config, chosen, budget, len(text.train)))
    return Choice(chosen, budget.why_compiled, notes, budget.steps_needed)


def describe_time(
    config: Config, chosen: Config, budget: time_budget.Budget, tokens: int
) -> Iterator[str]:
    """Yield lines about what was chosen for the time limit, and why."""
    minutes = f"minutes    {config.minutes:g}"
    size = time_budget.tokens_of_step(chosen)
    steps = min(budget.steps_needed, budget.steps_in_time)
    if steps == budget.steps_needed:
        training = budget.steps_needed * budget.step_seconds / time_budget.TRAINING_SHARE
        time, unit = duration(processes.elapsed() + training)
        yield f"{minutes}: this model learns the text in about {time} {unit}"
    else:
        yield f"{minutes}: a step takes about {rounded(1000 * budget.step_seconds, 3)} ms here"
    if budget.limit:
        yield f"size       {chosen.model.dim} wide: {budget.limit}"
    if config.model.dropout == "auto" and chosen.model.dropout:
        yield f"dropout    {chosen.model.dropout:g}, because the run reads {epochs(steps * size / tokens)}"
    if config.optim.lr == "auto" and chosen.optim.lr != OptimConfig.lr:
        yield f"rate       {chosen.optim.lr:g} instead of {OptimConfig.lr:g}, because the steps are few"
    if budget.steps_in_time < MIN_STEPS:
        yield f"{minutes}: {count(int(steps), 'step')} will learn next to nothing; allow more time"


def fill(config: Any, **values: Any) -> Any:
    """Return a copy of `config` in which `values` replace those of its fields that are `auto`."""
    return replace(
        config, **{key: value for key, value in values.items() if getattr(config, key) == "auto"}
    )


def with_defaults(config: Any) -> Any:
    return fill(
        config, **{field.name: field.default for field in fields(config) if field.metadata["auto"]}
    )


def choose_callbacks(config: Config, short: bool) -> dict[str, Any]:
    """Return the configured callbacks; one with `patience: auto` stays only if a short text has chosen the steps.

    With a time limit, the run ends when the text is learned; its best model is kept anyway.
    """
    chooses_steps = config.trainer.max_steps == "auto" and config.minutes is None
    callbacks = {}
    for name, callback in config.callbacks.items():
        if callback.get("patience") == "auto":
            if not (short and chooses_steps):
                continue
            callback = callback | {"patience": rules.MIN_VALIDATIONS // 3}
        callbacks[name] = callback
    return callbacks
