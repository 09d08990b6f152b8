"""Judge the loss of a run: compare it with baselines, and say what helps if the model memorised or learned little."""

from collections.abc import Sequence

from base.jobs.run_directory import Run
from base.jobs.summary import Summary
from base.processes import command

FAR_BELOW = 0.8  # a model that has memorised its text has a lower training loss / best validation loss
RISEN = 1.02  # and a higher last validation loss / best validation loss
READ_OFTEN = 2.0  # and has read the text more often, in epochs
HELP = "more text, or a trained model to start from (init_from=, docs/tasks.md)"


def describe_baselines(summary: Summary, unit: str) -> str:
    """Return a line that compares the best model's loss with a uniform distribution and an n-gram model."""
    parts = [f"uniform {summary.uniform_loss:.2f}"]
    if summary.ngram_loss is None:
        parts.append("n-grams left out because the text is too long")
    else:
        parts.append(f"{summary.ngram_order}-grams {summary.ngram_loss:.2f}")
    return f"{', '.join(parts)}, this model {summary.val_loss:.2f} nats per {unit}"


def verdict(run: Run, summary: Summary, losses: Sequence[Sequence[float]], enough: int) -> list[str]:
    """Return a sentence for each problem of a finished run: it memorised its text, or n-grams predict better.

    `losses` are pairs [step, nats] of training, and after `enough` steps a model should have learned something.
    """
    best, last, steps, epochs = summary.val_loss, summary.last_val_loss, summary.steps, summary.epochs
    assert best is not None and last is not None and steps is not None and epochs is not None
    said = []
    if losses and losses[-1][1] < FAR_BELOW * best and last > RISEN * best and epochs > READ_OFTEN:
        read = f"The text was read {epochs:,.0f} times and memorised from step {summary.best_step:,} on"
        said.append(f"{read}: best.safetensors is the model of that step. What helps: model.dropout=0.2, {HELP}")
    if summary.ngram_loss is not None and best > summary.ngram_loss:
        more = command("python", "train.py", f"resume={run}", f"trainer.max_steps={max(2 * steps, enough)}")
        longer = f"more steps ({more}), " if last == best else ""
        said.append(f"A {summary.ngram_order}-gram model predicts better. What helps: {longer}{HELP}")
    return said


def has_learned_nothing(summary: Summary, enough: int) -> bool:
    """Return whether the best model is no better than uniform after `enough` steps, or over 1 nat worse after any."""
    assert summary.val_loss is not None and summary.uniform_loss is not None and summary.steps is not None
    excess = summary.val_loss - summary.uniform_loss
    return excess >= 0 and summary.steps >= enough or excess > 1
