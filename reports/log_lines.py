"""The lines that a run logs before its first step and after its last one."""

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from base.errors import one_line
from base.jobs.run_directory import Run
from base.jobs.summary import Summary
from base.log import log
from base.processes import command
from base.progress import count
from conf.schema import Config
from data.batches import num_validated
from data.documents import DocumentStats
from data.text import Text
from gpt.config import ModelConfig
from gpt.evaluation import Score, describe_windows
from reports.tensorboard import watch

FAR_BELOW = 0.8  # a model that has memorised its text has a lower training loss / best validation loss
RISEN = 1.02  # and a higher last validation loss / best validation loss
READ_OFTEN = 2.0  # and has read the text more often, in epochs
SAMPLE_LINES, SAMPLE_WIDTH = 2, 100  # lines and characters of the sample at the end of a run
WORSE_THAN_GUESSING = 1.2  # validation loss / loss of uniform guessing, from which a run has diverged
HELP = "more text, or a trained model to start from (init_from=, docs/tasks.md)"


def share_of(number: int, whole: int) -> str:
    return f"all {whole:,}" if number == whole else f"{number:,} evenly spaced of {whole:,}"


def in_nats(loss: float) -> str:
    return f"{loss:.4f} nats ({loss / math.log(2):.4f} bits)"


def introduce(run: Run, config: Config, text: Text, machine: str, parameters: int, notes: Iterable[str]) -> None:
    """Log what a run is about to do: text, model, machine, validations, `notes` and number of steps."""
    shape = config.model
    first, *others = describe(text)
    log.info(f"text       {text.name}: {first}")
    for line in [*others, *text.notes]:
        log.info(f"           {line}")
    window = f", window {shape.window}" if shape.window else ""
    dropout = f", dropout {shape.dropout:g}" if shape.dropout else ""
    context = f"context {shape.context}{window}"
    log.info(f"model      {describe_shape(shape)}, {context}: {parameters:,} parameters{dropout}")
    log.info(f"machine    {machine}")
    split, steps = len(text.validation), config.trainer.max_steps  # with `minutes`, only known at the end
    trained = 0 if steps == "auto" else steps * config.data.batch * shape.context
    part, unit = num_validated(split, trained, False, config.data.val_tokens), text.tokenizer.unit
    which = (
        "the whole split" if part == split else f"about {part:,} evenly spaced {unit}s of the split, more at the end"
    )
    log.info(f"validation {which}, {describe_windows(text.mode, shape.context)}")
    if config.data.overfit is not None:
        log.info(f"overfit    the first {split:,} {unit}s of training text are also validation and test")
    for note in notes:
        log.info(note)
    windows = count(config.data.batch, "window")
    if steps == "auto":
        what = f"as many steps of {windows} as fit into minutes={config.minutes:g}"
    else:
        what = f"{count(steps, 'step')} of {windows}, {epochs(trained / len(text.train))}"
    log.info(f"run        {run}: {what}, seed {config.seed}")


def describe_shape(shape: ModelConfig) -> str:
    return f"{count(shape.layers, 'layer')}, {count(shape.heads, 'head')}, {shape.dim} wide"


def epochs(number: float) -> str:
    return f"{number:,.0f} epochs" if number >= 10 else f"{number:.2g} epochs"


def describe(text: Text) -> list[str]:
    """Return log lines about a text: its documents, if any, and the sizes of splits and vocabulary."""
    lines = [describe_documents(text.documents)] if text.documents else []
    sizes = [f"{len(getattr(text, split)):,} {split}" for split in ("train", "validation", "test")]
    return [*lines, f"{', '.join(sizes)} {text.tokenizer.unit}s, {text.tokenizer.size} distinct"]


def describe_documents(documents: DocumentStats) -> str:
    """Return how many documents a text contains, such as `200 lines, 3 of them repeated`."""
    said = count(sum(documents.counts.values()), documents.rule.kind)
    said += f", {documents.repeated:,} of them repeated" if documents.repeated else ""
    blank = count(documents.blank, f"blank {documents.rule.kind}") if documents.rule.kind != "row" else ""
    blank = blank or f"{count(documents.blank, 'row')} without {one_line(documents.rule.name)}"
    said += f"; {blank} dropped" if documents.blank else ""
    copied = f"{documents.copied:,} of those for validation and test are also in training: they are not held out"
    return said + (f"; {copied}" if documents.copied else "")


def show_scores(run: Run, config: Config, text: Text, best: tuple[int, Score], last: tuple[int, Score]) -> None:
    """Log the best checkpoint's validation loss, and how to score what is left; `best` and `last` are (step, score)."""
    (step, score), (last_step, _), steps = best, last, config.trainer.max_steps
    unit, split = text.tokenizer.unit, len(text.validation)
    loss = f"{in_nats(score.loss)} per {unit}"
    if score.bytes != score.characters:
        loss += f", {score.bpc:.4f} bits per character" if unit == "byte" else f", {score.bpb:.4f} bits per byte"
    which = f"best checkpoint, step {step}"
    if last_step < steps:
        which += f" (stopped at step {last_step:,} of {steps:,}, because it had not fallen since)"
    measured = f"{share_of(score.tokens, split)} {unit}s in {describe_windows(text.mode, config.model.context)}"
    log.info(f"\nvalidation loss {loss}: {which}, {measured}")
    if score.tokens < split:
        whole = command("python", "score.py", run, "--split", "validation", "--window", text.mode)
        log.info(f"all of it  {whole}")
    elif len(text.test):
        log.info(f"test       {command('python', 'score.py', run, '--split', 'test')}")


def describe_copies(copies: Mapping[str, Any], unit: str) -> str:
    """Return a line about how long the passages are that samples share with the training text."""
    most, samples = f"{copies['longest']:,} of {count(copies['length'], unit)}", count(copies["samples"], "sample")
    shared = "the longest passage that a sample shares with the training text"
    return f"{shared}: median {copies['median']:g}, maximum {most} ({samples}, temperature {copies['temperature']:g})"


def show_samples(samples: Sequence[Sequence[Any]]) -> None:
    """Log the first lines of a sample, [temperature, prompt, text], of the best model; report.html has all of it."""
    lines = [line for *_, sample in samples for line in sample.splitlines() if line.strip()]
    log.info("")
    log.info("sample     " + "\n           ".join(line[:SAMPLE_WIDTH] for line in lines[:SAMPLE_LINES]))


def conclude(run: Run, config: Config, report: Path | None) -> None:
    """Log the last lines of a run: its report, and which commands to run next."""
    if report:
        log.info(f"report     {report}")
    log.info(f"more text  {command('python', 'sample.py', run)}")
    if "tensorboard" in config.logger:
        watch(run.directory.parent)


def baselines(summary: Summary) -> list[tuple[str, float]]:
    """Return pairs (name, nats per token) of the baselines and of the best model."""
    losses = [("uniform", summary.uniform_loss), (f"{summary.ngram_order}-grams", summary.ngram_loss)]
    return [(name, loss) for name, loss in [*losses, ("this model", summary.val_loss)] if loss is not None]


def describe_baselines(summary: Summary, unit: str) -> str:
    losses = ", ".join(f"{name} {loss:.2f}" for name, loss in baselines(summary))
    without = "; n-grams left out because the text is too long" if summary.ngram_loss is None else ""
    return f"{losses} nats per {unit}{without}"


def has_diverged(summary: Summary, losses: Sequence[Sequence[float]]) -> bool:
    """Return whether a finished run predicts its validation and its training text worse than uniform guessing."""
    assert summary.val_loss is not None and summary.uniform_loss is not None
    if losses and losses[-1][1] <= summary.uniform_loss:
        return False  # the validation text is unlike the training text
    return summary.val_loss > WORSE_THAN_GUESSING * summary.uniform_loss


def verdict(run: Run, summary: Summary, losses: Sequence[Sequence[float]], enough: int) -> list[str]:
    """Return a sentence for each problem of a finished run: it memorised its text, or n-grams predict better.

    `losses` are pairs [step, nats] of training, and after `enough` steps a model should have learned something.
    """
    best, last, steps, epochs = summary.val_loss, summary.last_val_loss, summary.steps, summary.epochs
    assert best is not None and last is not None and steps is not None and epochs is not None
    if has_diverged(summary, losses):
        guessing = f"Guessing uniformly has a loss of {summary.uniform_loss:.2f} nats"
        return [f"{guessing}: training has diverged. What helps: lower learning rates"]
    said = []
    if losses and losses[-1][1] < FAR_BELOW * best and last > RISEN * best and epochs > READ_OFTEN:
        read = f"The text was read {epochs:,.0f} times and memorised from step {summary.best_step:,} on"
        said.append(f"{read}: best.safetensors is the model of that step. What helps: model.dropout=0.2, {HELP}")
    if summary.ngram_loss is not None and best > summary.ngram_loss:
        more = command("python", "train.py", f"resume={run}", f"trainer.max_steps={max(2 * steps, enough)}")
        longer = f"more steps ({more}), " if last == best else ""
        said.append(f"A {summary.ngram_order}-gram model predicts better. What helps: {longer}{HELP}")
    return said
