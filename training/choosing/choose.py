"""Before the first step, replace each `auto` in the configuration by a value, which config.yaml then stores."""

import math
from dataclasses import dataclass, fields, replace
from typing import Any

from base import processes
from base.progress import count
from conf.schema import Config, TrainerConfig
from data.text import Text
from gpt.config import OptimConfig
from gpt.facts import duration, epochs, rounded
from gpt.model import untrained
from reports.log_lines import MIN_STEPS
from training.choosing import hardware, rules, time_budget
from training.machine import Machine, number_of


@dataclass(frozen=True)
class Choice:
    """A configuration in which each `auto` is replaced by a value, and lines to log about the choices."""

    config: Config
    why_compiled: str  # or why not
    notes: list[str]
    steps_needed: float = math.inf  # with `minutes`: more steps would not lower the loss
    machine: str = ""  # the device, the precision and the threads, with the reasons


def choose(config: Config, text: Text, machine: Machine) -> Choice:
    """Choose a value for each `auto` in `config` that suits the text, machine and time limit, and return a `Choice`.

    A callback with `patience: auto` stays only if a short text chooses the steps.

    With `minutes=N`, steps and validation interval stay `auto`: `Deadline` chooses them while the
    run trains, at most `steps_needed`.
    """
    precision, why_precision = hardware.choose_precision(config.trainer.precision, machine)
    threads, why_threads = hardware.choose_threads(config.threads)
    default = with_constants(config, precision, threads)
    is_short = len(text.train) < rules.SHORT_TEXT and config.data.overfit is None
    chooses_steps = config.trainer.max_steps == "auto"
    by_time = chooses_steps and config.minutes is not None
    if by_time:
        choice = choose_by_time(config, default, text, machine)
    else:
        choice = choose_by_text(config, default, text, machine, is_short)
    callbacks = {}
    for name, callback in config.callbacks.items():
        if callback.get("patience") != "auto":
            callbacks[name] = callback
        # With a time limit, the run ends when the text is learned; its best model is kept anyway.
        elif is_short and chooses_steps and not by_time:
            callbacks[name] = callback | {"patience": rules.MIN_VALIDATIONS // 3}
    chosen = replace(choice.config, callbacks=callbacks)
    chooses_dropout = config.model.dropout == "auto" and chosen.model.dropout
    if chooses_dropout and config.optim.weight_decay == "auto":
        decay = max(chosen.optim.weight_decay, rules.DECAY_WITH_DROPOUT)
        chosen = replace(chosen, optim=replace(chosen.optim, weight_decay=decay))
    hardware.check_memory(chosen, text.tokenizer.size, machine)
    device = machine.device
    if machine.gpus > 1:
        device += f" ({number_of(machine.local)} of {machine.gpus} GPUs: trainer.devices)"
    described = f"{device}, {precision} ({why_precision})"
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
        steps = trainer.max_steps
        rising = min(steps, usual)  # the loss may rise from about here on
        for_minimum = -(-rising // rules.MIN_VALIDATIONS)  # about this many by then; rounded up
        for_maximum = steps // rules.MAX_VALIDATIONS  # about this many in all
        interval = min(TrainerConfig.val_check_interval, max(for_minimum, for_maximum))
        trainer = fill(trainer, val_check_interval=interval)
    trainer = with_defaults(trainer)
    tokens_seen = trainer.max_steps * default.data.batch * model.context
    if is_short and config.model.dropout == "auto":
        model = replace(model, dropout=rules.dropout_for(model, tokens, tokens_seen))
    flops_per_second = hardware.LAPTOP_FLOPS
    if machine.gpu:
        # a GPU that is not listed is like a T4
        peak = hardware.peak_flops(machine.gpu.name, trainer.precision) or 8.1e12
        flops_per_second = hardware.REACHED * peak * machine.devices
    flops = untrained(model, text.tokenizer.size).flops_per_token() * tokens_seen
    seconds = flops / flops_per_second
    compiled, why_compiled = hardware.choose_compile(default, machine, seconds)
    chosen = replace(default, model=model, trainer=trainer, compile=compiled)
    notes = []
    if is_short:
        taken = f"{count(steps, 'step')}, validation every {trainer.val_check_interval}"
        notes.append(f"short text {tokens:,} training {text.tokenizer.unit}s: {taken}")
    return Choice(chosen, why_compiled, notes)


def choose_by_time(config: Config, default: Config, text: Text, machine: Machine) -> Choice:
    """Choose what trains best within `minutes`; a run that has learned the text ends earlier."""
    budget = time_budget.fit(config, default, text, machine)
    chosen = budget.config
    steps = min(budget.steps_needed, budget.steps_in_time)
    # A short text that is learned before the time is over, or one for a trained model, is learned
    # better at the default rate (docs/experiments.md).
    schedule: dict[str, float] = {}
    chooses_dropout = config.model.dropout == "auto" and chosen.model.dropout
    if chosen.optim.name == "muon" and chooses_dropout and steps >= rules.MANY_STEPS:
        schedule = rules.IN_MANY_STEPS
    elif budget.steps_needed > budget.steps_in_time:
        rate, warmup = rules.schedule_for(chosen.optim.name, steps)
        schedule = {"lr": rate, "warmup": warmup}
    if not config.init_from:
        chosen = replace(chosen, optim=with_defaults(fill(config.optim, **schedule)))

    minutes = f"minutes    {config.minutes:g}"
    if steps == budget.steps_needed:
        training = steps * budget.step_seconds / time_budget.TRAINING_SHARE
        time, unit = duration(processes.elapsed() + training)
        notes = [f"{minutes}: this model learns the text in about {time} {unit}"]
    else:
        milliseconds = rounded(1000 * budget.step_seconds, 3)
        notes = [f"{minutes}: a step takes about {milliseconds} ms here"]
    if budget.limit:
        notes.append(f"size       {chosen.model.dim} wide: {budget.limit}")
    if chooses_dropout:
        read = epochs(steps * time_budget.tokens_of_step(chosen) / len(text.train))
        notes.append(f"dropout    {chosen.model.dropout:g}, because the run reads {read}")
    usual = OptimConfig.lr
    if config.optim.lr == "auto" and chosen.optim.lr != usual:
        reason = "the steps are few" if chosen.optim.lr > usual else "the steps are many"
        notes.append(f"rate       {chosen.optim.lr:g} instead of {usual:g}, because {reason}")
    if budget.steps_in_time < MIN_STEPS:
        taken = count(int(steps), "step")
        notes.append(f"{minutes}: {taken} will learn next to nothing; allow more time")
    return Choice(chosen, budget.why_compiled, notes, budget.steps_needed)


def fill(config: Any, **values: Any) -> Any:
    """Return a copy of `config` in which `values` replace those of its fields that are `auto`."""
    return replace(
        config, **{key: value for key, value in values.items() if getattr(config, key) == "auto"}
    )


def with_defaults(config: Any) -> Any:
    return fill(
        config, **{field.name: field.default for field in fields(config) if field.metadata["auto"]}
    )
