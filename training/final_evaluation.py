"""Exact losses of a run's models on whole splits."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from base import run_directory
from base.files import link
from base.progress import Progress
from data.batches import EVALUATION_BATCH, evaluation_windows
from gpt import model_file
from gpt.checkpoint import build
from gpt.evaluation import Score, evaluate, measured
from gpt.model import GPT
from reports.terminal import Speaker
from training.machine import device_kind
from training.run_plan import RunPlan


@dataclass(frozen=True)
class Evaluated:
    """A model of a run with its score on the whole validation split."""

    step: int
    score: Score
    model: GPT


def evaluate_split(plan: RunPlan, model: GPT, split: str, which: str) -> Score:
    """Evaluate a model on a whole split.

    Args:
        plan: of the run.
        model: the model.
        split: `validation` or `test`.
        which: what progress calls the model.
    """
    tokens, tokenizer, context = getattr(plan.text, split), plan.text.tokenizer, plan.config.model.context
    with Progress(f"evaluating the {which} checkpoint on {split}", len(tokens)) as progress:

        def windows() -> Iterator[tuple[Any, Any, Any]]:
            for each in evaluation_windows(tokens, context, max(1, EVALUATION_BATCH // context)):
                yield each
                progress.update(each[0].numel())

        return evaluate(model, windows(), int(tokens[0]), tokenizer.token_sizes)


def evaluate_models(plan: RunPlan, log: Speaker) -> tuple[Evaluated, Evaluated]:
    """Evaluate the best and the last model on the whole validation split, and write what was found into their files.

    Training has chosen the best by a part of the split; the whole split may prefer the last.

    Returns:
        The best and the last.
    """
    device, found = device_kind(plan.config.trainer.accelerator), dict[int, Evaluated]()
    for name in ("last", "best"):
        path = run_directory.model_of(plan.directory, name)
        try:
            shape, weights, meta = model_file.read(path)
        except model_file.CheckpointError as error:
            if name == "last":
                raise
            log(f"passes over {error}")
            continue
        step = meta["step"]
        if step not in found:
            model = build(shape, weights).to(device)
            score = evaluate_split(plan, model, "validation", name)
            found[step] = Evaluated(step, score, model)
            whole = {"val_loss": score.loss, "evaluation": measured(score, plan.config.model.context)}
            model_file.write(path, weights, meta | whole)
    last = found[max(found)]
    best = min(found.values(), key=lambda each: each.score.loss)
    if best is last:
        link(run_directory.model_of(plan.directory, "last"), run_directory.model_of(plan.directory, "best"))
    return best, last
