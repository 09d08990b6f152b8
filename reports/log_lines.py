"""The lines that a run logs before its first step and after its last one."""

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from base.errors import public
from base.jobs.run_directory import Run
from base.log import log
from base.processes import command
from base.progress import count
from conf.compose import differences
from conf.schema import Config
from data.batches import num_validated
from data.documents import Documents
from data.text import Text
from gpt.evaluation import Score
from reports.tensorboard import watch

# A window of memorised text costs 11 to 16 nats in all, because the model must first find out which window it is.
MEMORISED_NATS = 25  # per window, with a margin
LONGER = 5  # times the minutes of a run, for the command of a better model
REPEATED = {f"data.{name}" for name in "path validation test documents field encoding tokenizer split".split()}
REPEATED |= {"seed", "trainer.accelerator"}  # in that command


def describe_score(name: str, score: Score, text: Text, context: int, which: str) -> str:
    """Return a log line with the validation loss of the model `which`, and how the loss was measured."""
    unit, split = text.tokenizer.unit, len(text.validation)
    part = f"all {split:,}" if score.tokens == split else f"{score.tokens:,} evenly spaced of {split:,}"
    found = f"{in_nats(score.loss)} per {unit}"
    if score.bytes != score.characters:
        found += f", {score.bpc:.4f} bits per character" if unit == "byte" else f", {score.bpb:.4f} bits per byte"
    return f"{name:10} loss {found}: {which}, {part} {unit}s in disjoint windows of {context}"


def in_nats(loss: float) -> str:
    return f"{loss:.4f} nats ({loss / math.log(2):.4f} bits)"


def introduce(run: Run, config: Config, text: Text, machine: str, parameters: int, notes: Iterable[str]) -> None:
    """Log what a run is about to do: text, model, machine, validations, `notes` and number of steps."""
    shape = config.model
    first, *others = describe(text)
    log.info(f"text       {text.name}: {first}")
    for line in [*others, *text.notes]:
        log.info(f"           {line}")
    log.info(
        f"model      {count(shape.layers, 'layer')}, {count(shape.heads, 'head')}, {shape.dim} wide, "
        f"context {shape.context}{f', window {shape.window}' if shape.window else ''}: "
        f"{parameters:,} parameters{f', dropout {shape.dropout:g}' if shape.dropout else ''}"
    )
    log.info(f"machine    {machine}")
    split, steps = len(text.validation), config.trainer.max_steps  # with `minutes`, only known at the end
    trained = 0 if steps == "auto" else steps * config.data.batch * shape.context
    # Whole windows, plus the first token of the text, which counts, too.
    part, end = (
        number if number == split else max(1, number // shape.context) * shape.context + 1
        for number in (num_validated(split, trained, last, config.data.val_tokens) for last in (False, True))
    )
    unit = text.tokenizer.unit
    which = "the whole split" if part == split else f"{part:,} evenly spaced {unit}s of the split"
    more = f"; at the last step {'the whole split' if end == split else f'{end:,}'}" if part < end else ""
    log.info(f"validation {which}, disjoint windows of {shape.context}{more}")
    if config.data.overfit is not None:
        log.info(
            f"overfit    the first {len(text.validation):,} {unit}s of training text are also validation and test: "
            f"a model that has memorised them has a loss below {MEMORISED_NATS / shape.context:.1g} nats"
        )
    for note in notes:
        log.info(note)
    windows = count(config.data.batch, "window")
    if steps == "auto":
        what = f"as many steps of {windows} as fit into minutes={config.minutes:g}"
    else:
        what = f"{count(steps, 'step')} of {windows}, {epochs(trained / len(text.train))}"
    log.info(f"run        {run}: {what}, seed {config.seed}")


def epochs(number: float) -> str:
    return f"{number:,.0f} epochs" if number >= 10 else f"{number:.2g} epochs"


def describe(text: Text) -> list[str]:
    """Return log lines about a text: its documents, if any, and the sizes of splits and vocabulary."""
    lines = [describe_documents(text.documents)] if text.documents else []
    sizes = [f"{len(getattr(text, split)):,} {split}" for split in ("train", "validation", "test")]
    return [*lines, f"{', '.join(sizes)} {text.tokenizer.unit}s, {text.tokenizer.size} distinct"]


def describe_documents(documents: Documents) -> str:
    """Return how many documents a text contains, such as `200 lines, 3 of them repeated`."""
    said = count(sum(documents.counts.values()), documents.rule.kind)
    said += f", {documents.repeated:,} of them repeated" if documents.repeated else ""
    blank = count(documents.blank, f"blank {documents.rule.kind}") if documents.rule.kind != "row" else ""
    blank = blank or f"{count(documents.blank, 'row')} without {documents.rule.name}"
    said += f"; {blank} dropped" if documents.blank else ""
    copied = f"{documents.copied:,} of those for validation and test are also in training: they are not held out"
    return said + (f"; {copied}" if documents.copied else "")


def show_scores(run: Run, config: Config, text: Text, best: tuple[int, Score], last: tuple[int, Score]) -> None:
    """Log the validation losses of the best and the last checkpoint, each (step, score), and how to score the rest."""
    (best_step, best_score), (last_step, last_score) = best, last
    context, steps = config.model.context, config.trainer.max_steps
    log.info("")
    log.info(describe_score("validation", best_score, text, context, f"best checkpoint, step {best_step}"))
    if last_step != best_step:
        log.info(describe_score("", last_score, text, context, f"last checkpoint, step {last_step}"))
    score = command("python", "score.py", run, "--split")
    if best_score.tokens < len(text.validation):
        log.info(f"           all of it: {score} validation")
    if len(text.test):
        log.info(f"test       {score} test")
    if last_step < steps:
        lowest = f"the validation loss has not fallen since step {best_step:,}"
        log.info(f"ended      after step {last_step:,} of {steps:,}: {lowest}")


def describe_copies(copies: Mapping[str, Any], unit: str) -> str:
    """Return a line about how long the passages are that samples share with the training text."""
    most, samples = f"{copies['longest']:,} of {count(copies['length'], unit)}", count(copies["samples"], "sample")
    shared = "the longest passage that a sample shares with the training text"
    return f"{shared}: median {copies['median']:g}, maximum {most} ({samples}, temperature {copies['temperature']:g})"


def show_samples(text: Text, samples: Sequence[Sequence[Any]], copied: str, copies: Mapping[str, Any] | None) -> None:
    """Log samples of the best model, each [temperature, prompt, text], and how much of them is copied."""
    what = f"writes {text.documents.rule.kind}s" if text.documents else "continues two passages of the validation text"
    log.info(f"\nsample     the best checkpoint {what}, at temperature {samples[0][0]:g}")
    for number, (*_, sample) in enumerate(samples, 1):
        log.info(("" if text.documents else f"--- {number}") + "\n" + sample.strip("\n"))
    log.info(f"\nnovelty    {copied}")
    if copies:
        log.info(f"           {describe_copies(copies, text.tokenizer.unit)}")


def conclude(run: Run, config: Config, report: Path | None) -> None:
    """Log the last lines of a run: where its files are, and which commands to run next."""
    log.info(f"saved in   {run}: checkpoints/best.safetensors, config.yaml, summary.json, train.log")
    if report:
        log.info(f"report     {report}")
    log.info(f"more text  {command('python', 'sample.py', run)}")
    if "tensorboard" in config.logger:
        watch(run.directory.parent)
    if config.trainer.profiler:
        log.info(f"profile    {run.directory / 'trace.json'}")
    if config.minutes is not None:
        text = [f"{key}={value}" for key, value, _ in differences(config) if key in REPEATED]
        more = command("python", "train.py", f"minutes={round(LONGER * config.minutes, 1):g}", *map(public, text))
        log.info(f"better     {more}: {LONGER} times the training, and a larger model if that helps")
