"""Read a text once with a model, for score.py: its loss, and if asked, that of each character or document."""

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from base.progress import Progress
from gpt.evaluation import Predictions, predictions, totals, window_batches
from gpt.model import GPT
from gpt.windows import EvaluationText, windows_of_groups

PIECE = 4096  # characters that are shown at once


def read_text(
    model: GPT, text: EvaluationText, mode: str, total: Tensor, *, in_order: bool
) -> Iterator[Predictions]:
    """Yield what a model predicts for a text, and add the totals of each batch to `total`, (4,).

    `mode` is how the windows lie. Only if `in_order` do the batches follow the text; otherwise they
    need less padding.
    """
    batches = window_batches(text, text.windows(model.config.context), in_order=in_order)
    with Progress(f"scoring, {mode} windows", len(text.tokens)) as progress:
        for batch in predictions(model, batches):
            total += totals(batch.nats, batch.targets, text.token_sizes)
            yield batch
            progress.update(len(batch.targets))


def measure_documents(model: GPT, text: EvaluationText, stops: np.ndarray) -> np.ndarray:
    """Return the loss of each document in nats, (N,): it is read by itself, after an end mark.

    It ends at the position in `stops`, (N,), after its own end mark, which counts, too.
    """
    assert text.end is not None and text.stride is not None
    context = model.config.context
    starts = np.append(0, stops[:-1])  # (documents,)
    mark = min(len(text.end), context)
    windows = windows_of_groups(starts, stops, context, text.stride, mark)
    order = np.argsort(-windows.lengths, kind="stable")  # (W,), that of `window_batches`
    first_target = windows.begins + windows.first_counted + 1  # (W,), its position in the text
    document = np.searchsorted(starts, first_target, "right") - 1  # (W,)
    num_targets = windows.lengths - windows.first_counted  # (W,)
    document_of_target = np.repeat(document[order], num_targets[order])  # (counted targets,)
    losses = []
    with Progress("scoring documents", len(text.tokens)) as progress:
        for batch in predictions(model, window_batches(text, windows)):
            losses.append(batch.nats)
            progress.update(len(batch.targets))
    return np.bincount(document_of_target, torch.cat(losses).numpy(), len(stops))
