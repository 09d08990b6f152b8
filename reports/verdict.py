"""Judge the loss of a run: compare it with baselines, and say what helps if the model memorised or learned little."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from base.processes import command

FAR_BELOW = 0.8  # a model that has memorised its text has a lower training loss / best validation loss
RISEN = 1.02  # and a higher last validation loss / best validation loss
READ_OFTEN = 2.0  # and has read the text more often, in epochs
HELP = "more text, or a trained model to start from (init_from=, docs/tasks.md)"


def describe_yardsticks(summary: Mapping[str, Any], unit: str) -> str:
    """Return a line that compares the best model's loss with the losses of guessing and of an n-gram model.

    `summary` is the content of summary.json. `unit` is what a token is: character or byte.
    """
    parts = [f"guessing {summary['guessing_loss']:.2f}"]
    if summary["counting_loss"] is None:
        parts.append("counting left out because the text is too long")
    else:
        parts.append(f"counting {summary['counting_order']}-grams {summary['counting_loss']:.2f}")
    return f"{', '.join(parts)}, this model {summary['val_loss']:.2f} nats per {unit}"


def verdict(run: Path, summary: Mapping[str, Any], losses: Sequence[Sequence[float]], enough: int) -> list[str]:
    """Return a list of sentences, one for each problem of a finished run, which say what is wrong and what helps.

    The problems are that the model has memorised its text, and that an n-gram model predicts better.

    Args:
        run: directory of the run.
        summary: contents of summary.json.
        losses: training loss over time, a list of [step, nats per token].
        enough: number of steps after which a model should have learned something.
    """
    best, last, counting, step = (summary[key] for key in ("val_loss", "last_val_loss", "counting_loss", "best_step"))
    said = []
    if losses and losses[-1][1] < FAR_BELOW * best and last > RISEN * best and summary["epochs"] > READ_OFTEN:
        read = f"The text was read {summary['epochs']:,.0f} times and memorised from step {step:,} on"
        said.append(f"{read}: best.safetensors is the model of that step. What helps: model.dropout=0.2, {HELP}")
    if counting is not None and best > counting:
        steps = max(2 * summary["steps"], enough)
        more = command("python", "train.py", f"resume={run}", f"trainer.max_steps={steps}")
        longer = f"more steps ({more}), " if last == best else ""
        said.append(f"Counting {summary['counting_order']}-grams predicts better. What helps: {longer}{HELP}")
    return said


def has_learned_nothing(summary: Mapping[str, Any], enough: int) -> bool:
    """Return whether a run's best model is no better than guessing after `enough` steps, or far worse than guessing.

    Guessing means that all tokens have equal probabilities. Far worse means a loss that is over 1 nat higher, after any
    number of steps. `summary` is the content of summary.json.
    """
    excess = summary["val_loss"] - summary["guessing_loss"]
    return excess >= 0 and summary["steps"] >= enough or excess > 1
