"""The lines that a run logs before its first step and after its last one."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from base.errors import one_line
from base.jobs.run_directory import Run, Summary
from base.log import log
from base.processes import command, watch
from base.progress import count
from conf.schema import Config
from data.batches import num_validated
from data.divide import DocumentStats
from data.text import Text
from gpt.evaluation import Score
from gpt.facts import describe_context, describe_shape, describe_windows, epochs, in_nats, share_of

# a model that has memorised its text has a lower training loss / best validation loss
MIN_STEPS = 100  # in fewer, a model learns next to nothing
FAR_BELOW = 0.8
RISEN = 1.02  # and a higher last validation loss / best validation loss
READ_OFTEN = 2.0  # and has read the text more often, in epochs
SAMPLE_LINES = 2  # lines of the sample at the end of a run
SAMPLE_WIDTH = 100  # characters of each of them
# validation loss / loss of uniform guessing, from which a run has diverged
WORSE_THAN_GUESSING = 1.2
HELP = "more text, or a trained model to start from (init_from=, docs/tasks.md)"


def introduce(
    run: Run, config: Config, text: Text, machine: str, parameters: int, notes: Iterable[str]
) -> None:
    """Log what a run is about to do: text, model, machine, validations, `notes` and number of steps."""
    shape = config.model
    first, *others = describe(text)
    log.info(f"text       {text.name}: {first}")
    for line in [*others, *text.notes]:
        log.info(f"           {line}")
    model = f"{describe_shape(shape)}, {describe_context(shape)}: {parameters:,} parameters"
    if shape.dropout:
        model += f", dropout {shape.dropout:g}"
    log.info(f"model      {model}")
    log.info(f"machine    {machine}")
    windows = count(config.data.batch, "window")
    steps = config.trainer.max_steps
    if steps == "auto":
        training = f"as many steps of {windows} as help and fit into minutes={config.minutes:g}"
    else:
        tokens = steps * config.data.batch * shape.context
        training = f"{count(steps, 'step')} of {windows}, {epochs(tokens / len(text.train))}"
    unit = text.tokenizer.unit
    split = len(text.validation)
    validated = num_validated(split, config.data.val_tokens)
    which = "the whole split"
    if validated < split:
        which = f"about {validated:,} evenly spaced {unit}s of the split"
    log.info(f"validation {which}, {describe_windows(text.mode, shape.context)}")
    if config.data.overfit is not None:
        log.info(
            f"overfit    the first {split:,} {unit}s of training text are also validation and test"
        )
    for note in notes:
        log.info(note)
    log.info(f"run        {run}: {training}, seed {config.seed}")


def describe(text: Text) -> list[str]:
    """Return log lines about a text: its documents, if any, and the sizes of splits and vocabulary."""
    lines = []
    if text.documents:
        lines.append(describe_documents(text.documents))
    sizes = [f"{len(getattr(text, split)):,} {split}" for split in ("train", "validation", "test")]
    lines.append(f"{', '.join(sizes)} {text.tokenizer.unit}s, {text.tokenizer.size} distinct")
    return lines


def describe_documents(documents: DocumentStats) -> str:
    """Return how many documents a text contains, such as `200 lines, 3 of them repeated`."""
    rule = documents.rule
    line = count(sum(documents.counts.values()), rule.kind)
    if documents.repeated:
        line += f", {documents.repeated:,} of them repeated"
    if documents.blank and rule.kind == "row":
        line += f"; {count(documents.blank, 'row')} without {one_line(rule.name)} dropped"
    elif documents.blank:
        line += f"; {count(documents.blank, f'blank {rule.kind}')} dropped"
    if documents.copied:
        line += f"; {documents.copied:,} of those for validation and test are also in training: they are not held out"
    return line


def show_scores(
    run: Run, config: Config, text: Text, best: tuple[int, Score], last: tuple[int, Score]
) -> None:
    """Log the best checkpoint's validation loss, and how to score what is left; `best` and `last` are (step, score)."""
    step, score = best
    last_step, _ = last
    steps = config.trainer.max_steps
    unit = text.tokenizer.unit
    split = len(text.validation)
    loss = f"{in_nats(score.loss)} per {unit}"
    # If all characters are ASCII, each is one byte.
    if score.bytes != score.characters and unit == "byte":
        loss += f", {score.bpc:.4f} bits per character"
    elif score.bytes != score.characters:
        loss += f", {score.bpb:.4f} bits per byte"
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


def show_samples(samples: Sequence[Sequence[Any]]) -> None:
    """Log the first lines of a sample, [temperature, prompt, text], of the best model; report.html has all of it."""
    lines = [line for *_, sample in samples for line in sample.splitlines() if line.strip()]
    shown = [line[:SAMPLE_WIDTH] for line in lines[:SAMPLE_LINES]]
    log.info("")
    log.info("sample     " + "\n           ".join(shown))


def conclude(run: Run, config: Config, report: Path | None) -> None:
    """Log the last lines of a run: its report, and which commands to run next."""
    if report:
        log.info(f"report     {report}")
    log.info(f"more text  {command('python', 'sample.py', run)}")
    if "tensorboard" in config.logger:
        log.info(watch(run.directory.parent))


def has_diverged(summary: Summary, losses: Sequence[Sequence[float]]) -> bool:
    """Return whether a finished run predicts its validation and its training text worse than uniform guessing."""
    assert summary.val_loss is not None and summary.uniform_loss is not None
    if losses and losses[-1][1] <= summary.uniform_loss:
        return False  # the validation text is unlike the training text
    return summary.val_loss > WORSE_THAN_GUESSING * summary.uniform_loss


def verdict(run: Run, summary: Summary, losses: Sequence[Sequence[float]]) -> list[str]:
    """Return a sentence for each problem of a finished run: it memorised its text, or n-grams predict better.

    `losses` are pairs [step, nats] of training.
    """
    best = summary.val_loss
    last = summary.last_val_loss
    assert (
        best is not None
        and last is not None
        and summary.steps is not None
        and summary.epochs is not None
    )
    if has_diverged(summary, losses):
        guessing = f"Guessing uniformly has a loss of {summary.uniform_loss:.2f} nats"
        return [f"{guessing}: training has diverged. What helps: lower learning rates"]
    sentences = []
    fits_training = losses and losses[-1][1] < FAR_BELOW * best
    if fits_training and last > RISEN * best and summary.epochs > READ_OFTEN:
        read = f"The text was read {summary.epochs:,.0f} times and memorised from step {summary.best_step:,} on"
        sentences.append(
            f"{read}: best.safetensors is the model of that step. What helps: a higher model.dropout, {HELP}"
        )
    if summary.ngram_loss is not None and best > summary.ngram_loss:
        helps = HELP
        if last == best:  # the loss was still falling at the end
            steps = max(2 * summary.steps, MIN_STEPS)
            more = command("python", "train.py", f"resume={run}", f"trainer.max_steps={steps}")
            helps = f"more steps ({more}), {HELP}"
        sentences.append(
            f"A {summary.ngram_order}-gram model predicts better. What helps: {helps}"
        )
    return sentences
