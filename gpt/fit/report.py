"""What a run says: while it goes on, when it ends, and when memory runs out."""

import os
import platform
import shlex
import sys
import time
from collections.abc import Callable, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

from tqdm import tqdm

from conf.fields import shown
from gpt.config import ModelConfig
from gpt.evaluate import Score


class Speaker:
    """Prints a line for people, above a progress bar where there is one, and keeps it in a file.

    Args:
        log: the file lines are added to; None is silent, for all processes but the first.
    """

    def __init__(self, log: Path | None) -> None:
        """Nothing is opened before the first line."""
        self.log = log

    def __call__(self, line: str = "") -> None:
        """Say one line."""
        if self.log is None:
            return
        try:
            tqdm.write(line, file=sys.stdout)
            sys.stdout.flush()
        except BrokenPipeError:  # a reader such as `head` has seen enough; training goes on, and so does the log
            sys.stdout = open(os.devnull, "w")
        with open(self.log, "a", encoding="utf-8") as file:
            file.write(line + "\n")


def python() -> str:
    """How to call the Python that runs this, as one would type it here."""
    local = Path(".venv") / ("Scripts" if sys.platform == "win32" else "bin") / "python"
    return str(local) if local.exists() and Path(sys.prefix) == local.parent.parent.absolute() else "python"


def versions() -> dict[str, str]:
    """The versions that a number depends on."""
    return {"python": platform.python_version()} | {name: version(name) for name in ("torch", "lightning", "numpy")}


def describe_score(name: str, score: Score, context: int, which: str) -> str:
    """One line with an exact loss and how it was measured."""
    bits = f"{score.bpc:.4f} bits per character"
    if score.bytes != score.characters:
        bits += f", {score.bpb:.4f} bits per byte"
    return (
        f"{name:10} loss {score.loss:.4f} nats, {bits} "
        f"({which}; all {score.characters:,} characters, disjoint windows of {context})"
    )


def farewell(say: Callable[[str], None], run: Path, sample: str, watched: bool, reported: Path | None) -> None:
    """Show a sample, where the report is, and the next commands; TensorBoard's where it has something to show."""
    say("sample     of the best checkpoint, going on from lines in the middle of the validation text")
    say("")
    say(sample)
    say("")
    if reported:
        say(f"report     {reported}")
    say(f"more text  {python()} sample.py {shlex.quote(str(run))}")
    board = str(Path(python()).with_name("tensorboard")) if "/" in python() else "tensorboard"
    if watched:
        say(f"watch      {board} --logdir {shlex.quote(str(run.parent))}")


def log_result(run: Path, settings: Mapping[str, Any], step: int, scores: Mapping[str, float]) -> None:
    """Give the run its row in TensorBoard's table of hyper-parameters (HPARAMS), where TensorBoard is written.

    The table finds out by itself which settings differ between runs, and shows those first.

    Args:
        run: the run's directory.
        settings: by key.
        step: the last one.
        scores: what came of them, by tag.
    """
    files = [file for file in run.glob("events.out.tfevents.*") if not file.is_symlink()]
    if not files:
        return
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.summary.writer.record_writer import RecordWriter
    from torch.utils.tensorboard.summary import hparams

    from gpt.fit.durability import cut_events

    plain = {key: value if isinstance(value, bool | int | float) else shown(value) for key, value in settings.items()}
    _, begun, ended = hparams(plain, {})  # what it has first would name one run's settings for all
    values = [Summary.Value(tag=tag, simple_value=score) for tag, score in scores.items()]
    newest = max(files, key=lambda file: file.name)
    cut_events(newest, step)  # a row that was written before the run's end was
    with open(newest, "ab") as file:
        writer = RecordWriter(file)
        # As of a later step, so that the row is cut off where the run goes on.
        for at, summary in (
            (step + 1, begun),
            (step, Summary(value=values)),
            (step + 1, ended),
        ):
            writer.write(Event(wall_time=time.time(), step=at, summary=summary).SerializeToString())


def out_of_memory(model: ModelConfig, vocabulary: int, windows: int) -> str:
    """One line that names the key to lower.

    Args:
        model: shape of the model.
        vocabulary: size V of the vocabulary.
        windows: windows per forward and backward on one device.
    """
    per_window = (
        4 * model.context * (model.layers * (20 * model.dim + 3 * model.heads * model.context) + 3 * vocabulary)
    )  # floats kept for the backward pass, by the shapes in gpt/model.py
    need = f"{windows} windows of {model.context} need about {windows * per_window / 2**30:.2g} GiB for activations"
    if windows > 1:
        smaller = max(size for size in range(1, windows) if windows % size == 0)
        return f"out of memory: {need}; data.micro_batch={smaller} trains the same in smaller parts"
    return f"out of memory: {need}; lower model.context={model.context} or model.dim={model.dim}"


def as_summary(best: Score, last: Score, test: Score | None, best_step: int, context: int) -> dict[str, Any]:
    """The part of summary.json that says how good the model is."""
    return {
        "val_loss": best.loss,
        "val_bpc": best.bpc,
        "val_bpb": best.bpb,
        "best_step": best_step,
        "last_val_loss": last.loss,
        "test_loss": test.loss if test else None,
        "test_bpc": test.bpc if test else None,
        "evaluation": {
            "mode": "disjoint", "context": context, "stride": context, "characters": best.characters,
        },
    }  # fmt: skip
