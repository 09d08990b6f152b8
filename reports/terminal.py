"""What a run says: while it goes on, when it ends, and when memory runs out."""

import shlex
import sys
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING

from base.log import log
from conf.schema import Config
from gpt.config import ModelConfig
from gpt.evaluation import Score

if TYPE_CHECKING:
    from data.text import Text

WIDTH = 40  # characters of a sparkline
BLOCKS, ASCII = "▁▂▃▄▅▆▇█", ".:-=+*#%"
FIRST_PAGE = "http://localhost:6006/#custom_scalars&_smoothingWeight=0"  # TensorBoard's page of reports/tensorboard.py


def python() -> str:
    """How to call the Python that runs this, as one would type it here."""
    local = Path(".venv") / ("Scripts" if sys.platform == "win32" else "bin") / "python"
    return str(local) if local.exists() and Path(sys.prefix) == local.parent.parent.absolute() else "python"


def describe_score(name: str, score: Score, context: int, which: str) -> str:
    """One line with an exact loss and how it was measured."""
    bits = f"{score.bpc:.4f} bits per character"
    if score.bytes != score.characters:
        bits += f", {score.bpb:.4f} bits per byte"
    return (
        f"{name:10} loss {score.loss:.4f} nats, {bits} "
        f"({which}; all {score.characters:,} characters, disjoint windows of {context})"
    )


def sparkline(values: Sequence[float], marks: str) -> str:
    """Draw a series in one line of at most `WIDTH` characters, each the mean of its share of the values.

    Args:
        values: at least one.
        marks: from low to high.
    """
    width = min(WIDTH, len(values))
    borders = [len(values) * place // width for place in range(width + 1)]
    means = [fmean(values[begin:end]) for begin, end in pairwise(borders)]
    low, high = min(means), max(means)
    return "".join(marks[round((mean - low) / (high - low or 1) * (len(marks) - 1))] for mean in means)


def describe_training(losses: Sequence[float], speed: float | None) -> list[str]:
    """How the loss fell and how fast training was, a line each.

    Args:
        losses: of training, in their order.
        speed: characters per second; None where it was not measured.
    """
    try:
        BLOCKS.encode(sys.stdout.encoding or "ascii")
        marks = BLOCKS
    except UnicodeEncodeError:
        marks = ASCII
    lines = [f"training   {sparkline(losses, marks)}  loss {losses[0]:.4f} to {losses[-1]:.4f}"] if losses else []
    return lines + ([f"speed      {speed:,.0f} characters/s"] if speed else [])


def farewell(run: Path, sample: str, watched: bool, reported: Path | None) -> None:
    """Show a sample, where everything is, and the commands that come next."""
    log.info("sample     of the best checkpoint, going on from lines in the middle of the validation text")
    log.info("")
    log.info(sample)
    log.info("")
    log.info(f"kept in    {run}: checkpoints/best.safetensors, config.yaml, summary.json, train.log")
    if reported:
        log.info(f"report     {reported}")
    log.info(f"more text  {python()} sample.py {shlex.quote(str(run))}")
    board = str(Path(python()).with_name("tensorboard")) if "/" in python() else "tensorboard"
    if watched:
        log.info(f"watch      {board} --logdir {shlex.quote(str(run.parent))}")
        log.info(f"           {FIRST_PAGE}")


def out_of_memory(model: ModelConfig, vocabulary: int, windows: int) -> str:
    """One line that names the key to lower."""
    # Bytes of activations kept for the backward pass, by the shapes in gpt/model.py.
    per_block = 20 * model.dim + 3 * model.heads * model.attention_window
    per_window = 4 * model.context * (model.layers * per_block + 3 * vocabulary)
    need = f"{windows} windows of {model.context} need about {windows * per_window / 2**30:.2g} GiB for activations"
    if windows > 1:
        smaller = max(size for size in range(1, windows) if windows % size == 0)
        return f"out of memory: {need}; data.micro_batch={smaller} trains the same in smaller parts"
    return f"out of memory: {need}; lower model.context={model.context} or model.dim={model.dim}"


# Nats that a window of a memorised text costs, until it is clear where the window stands: 11 to 16 were seen.
MEMORISED_NATS = 25


def introduce(run: Path, config: Config, text: "Text", machine: str, parameters: int, notes: list[str]) -> None:
    """Say what will be trained, on what, and how it will be measured."""
    from data.batches import VALIDATION_CHARACTERS

    shape = config.model
    log.info(f"text       {text.name}: {describe(text)}")
    log.info(
        f"model      {shape.layers} layers, {shape.heads} heads, {shape.dim} wide, context {shape.context}"
        f"{f', window {shape.window}' if shape.window else ''}: "
        f"{parameters:,} parameters{f', dropout {shape.dropout:g}' if shape.dropout else ''}"
    )
    log.info(f"machine    {machine}")
    part = min(VALIDATION_CHARACTERS, len(text.validation))
    which = "the whole split" if part == len(text.validation) else f"{part:,} evenly spaced characters of the split"
    log.info(f"validation {which}, disjoint windows of {shape.context}; the whole split again at the end")
    if config.data.overfit is not None:
        log.info(
            f"overfit    the first {len(text.validation):,} of the training text are validation and test, too: "
            f"known by heart, they cost less than {MEMORISED_NATS / shape.context:.1g} nats each"
        )
    for note in notes:
        log.info(note)
    log.info(f"run        {run}: {config.trainer.max_steps} steps of {config.data.batch} windows, seed {config.seed}")


def describe(text: "Text") -> str:
    """Sizes of the splits in one line."""
    sizes = [f"{len(getattr(text, split)):,} {split}" for split in ("train", "validation", "test")]
    unit = "characters" if text.tokenizer.vocabulary["kind"] == "char" else "bytes"
    return f"{', '.join(sizes)} {unit}, {text.tokenizer.size} distinct"
