"""What a run says: while it goes on, when it ends, and when memory runs out."""

import os
import shlex
import sys
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING

from tqdm import tqdm

from base.errors import for_output
from conf.schema import Config
from gpt.config import ModelConfig
from gpt.evaluation import Score

if TYPE_CHECKING:
    from data.text import Text

WIDTH = 40  # characters of a sparkline
BLOCKS, ASCII = "▁▂▃▄▅▆▇█", ".:-=+*#%"
FIRST_PAGE = "http://localhost:6006/#custom_scalars&_smoothingWeight=0"  # TensorBoard's page of reports/tensorboard.py


class Speaker:
    """Prints a line for people, above a progress bar where there is one, and keeps it in a file.

    Args:
        log: the file lines are added to; None is silent, for all processes but the first.
    """

    def __init__(self, log: Path | None) -> None:
        self.log = log

    def __call__(self, line: str = "") -> None:
        """Say one line."""
        if self.log is None:
            return
        try:
            tqdm.write(for_output(line, sys.stdout), file=sys.stdout)
            sys.stdout.flush()
        except BrokenPipeError:  # a reader such as `head` has seen enough; training goes on, and so does the log
            sys.stdout = open(os.devnull, "w")
        with open(self.log, "a", encoding="utf-8") as file:
            file.write(line + "\n")


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


def farewell(say: Callable[[str], None], run: Path, sample: str, watched: bool, reported: Path | None) -> None:
    """Show a sample, where everything is, and the commands that come next."""
    say("sample     of the best checkpoint, going on from lines in the middle of the validation text")
    say("")
    say(sample)
    say("")
    say(f"kept in    {run}: checkpoints/best.safetensors, config.yaml, summary.json, train.log")
    if reported:
        say(f"report     {reported}")
    say(f"more text  {python()} sample.py {shlex.quote(str(run))}")
    board = str(Path(python()).with_name("tensorboard")) if "/" in python() else "tensorboard"
    if watched:
        say(f"watch      {board} --logdir {shlex.quote(str(run.parent))}")
        say(f"           {FIRST_PAGE}")


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


def introduce(
    say: "Speaker", run: Path, config: Config, text: "Text", machine: str, parameters: int, notes: list[str]
) -> None:
    """Say what will be trained, on what, and how it will be measured."""
    from data.batches import VALIDATION_CHARACTERS

    shape = config.model
    say(f"text       {text.name}: {describe(text)}")
    say(
        f"model      {shape.layers} layers, {shape.heads} heads, {shape.dim} wide, context {shape.context}"
        f"{f', window {shape.window}' if shape.window else ''}: "
        f"{parameters:,} parameters{f', dropout {shape.dropout:g}' if shape.dropout else ''}"
    )
    say(f"machine    {machine}")
    part = min(VALIDATION_CHARACTERS, len(text.validation))
    which = "the whole split" if part == len(text.validation) else f"{part:,} evenly spaced characters of the split"
    say(f"validation {which}, disjoint windows of {shape.context}; the whole split again at the end")
    if config.data.overfit is not None:
        say(
            f"overfit    the first {len(text.validation):,} of the training text are validation and test, too: "
            f"known by heart, they cost less than {MEMORISED_NATS / shape.context:.1g} nats each"
        )
    for note in notes:
        say(note)
    say(f"run        {run}: {config.trainer.max_steps} steps of {config.data.batch} windows, seed {config.seed}")


def describe(text: "Text") -> str:
    """Sizes of the splits in one line."""
    sizes = [f"{len(getattr(text, split)):,} {split}" for split in ("train", "validation", "test")]
    unit = "characters" if text.tokenizer.vocabulary["kind"] == "char" else "bytes"
    return f"{', '.join(sizes)} {unit}, {text.tokenizer.size} distinct"
