"""Read a text once with a model, for score.py: its loss, and if asked, that of each character or document."""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from base.errors import printable
from base.progress import Progress
from gpt.analysis import Surprisals, by_character
from gpt.evaluation import (
    Predictions,
    Score,
    first_totals,
    make_score,
    predictions,
    totals,
    window_batches,
)
from gpt.model import GPT
from gpt.tokenizer import Tokenizer
from gpt.windows import EvaluationText, windows_of_groups

PIECE = 4096  # characters that `characters` yields at once


class Candidate(NamedTuple):
    """A model to score, and the text encoded for this model."""

    label: str  # what a line about it begins with: "A  " or "B  " in a comparison
    file: Path
    step: int
    model: GPT
    tokenizer: Tokenizer
    tokens: np.ndarray  # the whole text, (N,) uint8 or uint16
    stride: int  # tokens between window starts if windows are strided
    saw_text: bool  # whether the model was trained on this text
    end: str  # the end mark that follows each document, "" if the text is not divided into documents

    def text(self, mode: str) -> EvaluationText:
        """Return the text as windows of `mode` read it: disjoint ones do not know documents."""
        end = None
        if self.end and mode != "disjoint":
            end = self.tokenizer.pack(self.end)
        stride = self.stride if mode == "strided" else None
        return EvaluationText(self.tokens, self.tokenizer.token_sizes, end, stride)

    @property
    def page_name(self) -> str:
        """The model's run, file and step, without the folders above, because pages are sent to others."""
        name = self.file.name
        if self.file.parent.name == "checkpoints":
            name = f"{self.file.parent.parent.name}/{name}"
        return f"{printable(name)}, step {self.step}"


class Reading:
    """One pass of a model over a text. When it has been iterated over, `score` is that of the whole text.

    `mode` says how windows lie: disjoint, documents or strided. Only if `in_order` do the batches
    follow the text; otherwise they need less padding.
    """

    def __init__(self, candidate: Candidate, mode: str, *, in_order: bool) -> None:
        self.candidate = candidate
        self.mode = mode
        self.in_order = in_order
        self.text = candidate.text(mode)
        self.totals = first_totals(self.text)  # (4,), of the tokens so far

    def __iter__(self) -> Iterator[Predictions]:
        model = self.candidate.model
        windows = self.text.windows(model.config.context)
        batches = window_batches(self.text, windows, in_order=self.in_order)
        with Progress(f"scoring, {self.mode} windows", len(self.text.tokens)) as progress:
            for batch in predictions(model, batches):
                self.totals += totals(batch.nats, batch.targets, self.text.token_sizes)
                yield batch
                progress.update(len(batch.targets))

    def characters(self) -> Iterator[Surprisals]:
        """Yield the characters of the text, `PIECE` at a time, which is the same text for every model."""
        return by_character(self, self.text, self.candidate.tokenizer.decode, PIECE)

    @property
    def score(self) -> Score:
        """That of the text so far."""
        return make_score(self.totals)


def measure_documents(candidate: Candidate, lengths: np.ndarray) -> np.ndarray:
    """Return the loss of each document in nats, (N,): it has `lengths` tokens and is read by itself, after an end mark.

    Its own end mark, which `lengths` include, counts, too.
    """
    text = candidate.text("strided")
    assert text.end is not None
    context = candidate.model.config.context
    stops = lengths.cumsum()  # (documents,)
    starts = stops - lengths  # (documents,)
    mark = min(len(text.end), context)
    windows = windows_of_groups(starts, stops, context, candidate.stride, mark)
    order = np.argsort(-windows.lengths, kind="stable")  # (W,), that of `window_batches`
    first_target = windows.begins + windows.first_counted + 1  # (W,), its position in the text
    document = np.searchsorted(starts, first_target, "right") - 1  # (W,)
    num_targets = windows.lengths - windows.first_counted  # (W,)
    document_of_target = np.repeat(document[order], num_targets[order])  # (counted targets,)
    losses = []
    with Progress("scoring documents", len(text.tokens)) as progress:
        for batch in predictions(candidate.model, window_batches(text, windows)):
            losses.append(batch.nats)
            progress.update(len(batch.targets))
    return np.bincount(document_of_target, torch.cat(losses).numpy(), len(lengths))
