"""What logs, pages, cards and tables say about a model and its training: each fact is put into words here, once."""

import math
from collections.abc import Iterator, Mapping
from typing import Any

from base.errors import without_folders
from base.jobs.run_directory import Summary
from base.progress import clock, count
from gpt.config import ModelConfig


def describe_shape(config: ModelConfig) -> str:
    """Return the size of a model, such as `4 layers, 2 heads, 128 wide`."""
    return f"{count(config.layers, 'layer')}, {count(config.heads, 'head')}, {config.dim} wide"


def describe_context(config: ModelConfig, unit: str = "") -> str:
    """Return what a model attends to, such as `context 256, window 64`; `unit` names its tokens."""
    context = f"context {config.context}"
    if unit:
        context += f" {unit}s"
    if config.window:
        context += f", window {config.window}"
    return context


def describe_windows(mode: str, context: int) -> str:
    """Return how a text was read, in the `mode` of an evaluation and windows of `context` tokens."""
    if mode == "documents":
        return f"windows of {context} at documents"
    return f"{mode} windows of {context}"


def figure(number: float | None) -> str:
    """Return a loss, in nats or bits, or "" if it is unknown."""
    if number is None:
        return ""
    return f"{number:.4f}"


def in_bits(nats: float) -> str:
    """Return a loss in bits, such as `2.0270 bits`."""
    return f"{figure(nats / math.log(2))} bits"


def in_nats(nats: float) -> str:
    """Return a loss in both units, such as `1.4050 nats (2.0270 bits)`."""
    return f"{figure(nats)} nats ({in_bits(nats)})"


def rounded(number: float, digits: int) -> str:
    """Return a number with `digits` significant ones, and all those before the point, such as `0.25` or `1,500`."""
    if number >= 10 ** (digits - 1):
        return f"{number:,.0f}"
    return f"{number:.{digits}g}"


def epochs(number: float) -> str:
    """Return how often a text was read, such as `0.25 epochs`."""
    return f"{rounded(number, 2)} epochs"


def share_of(number: int, whole: int) -> str:
    """Return which part of a split was evaluated, such as `500 evenly spaced of 6,874`."""
    if number == whole:
        return f"all {whole:,}"
    return f"{number:,} evenly spaced of {whole:,}"


def duration(seconds: float) -> tuple[str, str]:
    """Return a duration as text and the unit of its first number, such as ("12:05", "minutes")."""
    if seconds < 59.5:  # `clock` rounds
        return f"{seconds:.0f}", "s"
    unit = "minutes" if seconds < 3599.5 else "hours"
    return clock(seconds), unit


def describe_copies(copies: Mapping[str, Any], unit: str) -> str:
    """Return a line about how long the passages are that samples share with the training text."""
    samples = f"{count(copies['samples'], 'sample')}, temperature {copies['temperature']:g}"
    lengths = f"median {copies['median']:g}, maximum {copies['longest']:,} of {count(copies['length'], unit)}"
    return (
        f"the longest passage that a sample shares with the training text: {lengths} ({samples})"
    )


def baselines(summary: Summary) -> list[tuple[str, float]]:
    """Return pairs (name, nats per token) of the baselines and of the best model."""
    losses = {
        "uniform": summary.uniform_loss,
        f"{summary.ngram_order}-grams": summary.ngram_loss,
        "this model": summary.val_loss,
    }
    return [(name, loss) for name, loss in losses.items() if loss is not None]


def describe_baselines(summary: Summary, unit: str) -> str:
    """Return a line with the losses of `baselines`."""
    losses = ", ".join(f"{name} {loss:.2f}" for name, loss in baselines(summary))
    line = f"{losses} nats per {unit}"
    if summary.ngram_loss is None:
        line += "; n-grams left out because the text is too long"
    return line


def facts(summary: Summary, model: ModelConfig, unit: str) -> Iterator[tuple[str, str]]:
    """Yield what is known of the best model of a run as pairs (name, sentence) without full stops.

    Of a model without a run, `summary` has only its loss, its step and the number of its
    parameters. `unit` names its tokens.
    """
    loss = summary.val_loss
    if loss is not None:
        yield "validation loss", f"{in_nats(loss)} per {unit}; lower is better"
        if summary.evaluation:
            characters = summary.evaluation["characters"]
            part = share_of(characters, summary.evaluation.get("split_characters", characters))
            windows = describe_windows(summary.evaluation["mode"], summary.evaluation["context"])
            yield "measured on", f"{part} characters of the validation split in {windows}"
        if summary.last_val_loss not in (None, loss):
            yield "last checkpoint", f"validation loss of {in_nats(summary.last_val_loss)}"
    if summary.test_loss is not None:
        yield "test loss", f"{in_nats(summary.test_loss)} per {unit}"
    if loss is not None and summary.uniform_loss is not None:
        yield "baselines", describe_baselines(summary, unit)
    if summary.copies:
        yield "copied", describe_copies(summary.copies, unit)
    context = describe_context(model, unit)
    yield "shape", f"{describe_shape(model)}, {context}, {model.positions} positions"
    yield "weights", f"{summary.parameters:,}, of step {summary.best_step:,}"
    if summary.steps and summary.characters and summary.epochs and summary.seconds is not None:
        tokens_read = f"{count(summary.characters, unit)} ({epochs(summary.epochs)})"
        training = f"{count(summary.steps, 'step')}, {tokens_read}"
        if summary.characters_per_second:
            training += f", {summary.characters_per_second:,.0f} a second during steps"
        yield "training", training
        yield "time", " ".join(duration(summary.seconds))
        machine = f"{summary.device}, {summary.precision}, seed {summary.seed}"
        if summary.init_from:
            machine += f", started from {without_folders(summary.init_from)}"
        versions = [f"{name} {version}" for name, version in (summary.versions or {}).items()]
        yield "machine", f"{machine}; {', '.join(versions)}"
