"""What logs, pages, cards and tables say about a model and its training: each fact is put into words here, once."""

import math

from base.errors import printable
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
    unit = "minutes" if seconds < 3599.5 else "hours"  # `clock` rounds
    return clock(seconds), unit


def origin(summary: Summary) -> str:
    """Return a line on how the run was made: its device, precision, seed, initial model and versions of packages."""
    line = f"{summary.device}, {summary.precision}, seed {summary.seed}"
    if summary.init_from:
        line += f", started from {printable(summary.init_from)}"
    versions = [f"{name} {version}" for name, version in (summary.versions or {}).items()]
    return f"{line}; {', '.join(versions)}"
