"""Score a text for score.py: the loss of the whole text, of each document or of each character.

A `mode` is a value of `--window`: windows as in validation (disjoint or documents), strided ones,
or sample, the decoder as in sampling.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from base.errors import printable
from base.progress import Progress
from gpt.analysis import Surprisals, by_character, letters
from gpt.evaluation import Score, predictions, score_of_predictions, surprisals, window_batches
from gpt.inference.decoder import Decoder
from gpt.inference.weights import weights_of
from gpt.model import GPT
from gpt.tokenizer import Tokenizer
from gpt.windows import EvaluationText, windows_of_each

PIECE = 4096  # characters that `pieces` yields at once
READ_AT_ONCE = 2048  # tokens that the decoder reads at once


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


def predicted(
    candidate: Candidate, mode: str, *, in_order: bool = True
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the logits (N, V) and targets (N,) of every token.

    The first token is left out if nothing precedes it. Only if `in_order` do the batches follow
    the text; otherwise they need less padding.
    """
    text = candidate.text(mode)
    if mode == "sample":
        batches = predicted_by_decoder(candidate.model, text)
    else:
        windows = text.windows(candidate.model.config.context)
        batches = predictions(candidate.model, window_batches(text, windows, in_order=in_order))
    with Progress(f"scoring, {mode} windows", len(text.tokens)) as progress:
        for logits, targets in batches:
            yield logits, targets
            progress.update(len(targets))


def predicted_by_decoder(model: GPT, text: EvaluationText) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield (logits, targets) as `sample.py` reads a text: token by token, with the window rule of the decoder."""
    decoder = Decoder(weights_of(model))
    tokens = text.tokens  # (N,)
    known = 1  # tokens that are not predicted
    if text.end is not None:
        tokens = np.concatenate((text.end, tokens))  # (M + N,)
        known = len(text.end)
    for start in range(0, len(tokens) - 1, READ_AT_ONCE):
        piece = tokens[start : start + READ_AT_ONCE + 1].astype(np.int64)  # (T + 1,)
        logits = torch.from_numpy(decoder.read(piece[None, :-1])[0])  # (1, T, V) -> (T, V)
        targets = torch.from_numpy(piece[1:])  # (T,)
        first_counted = max(0, known - 1 - start)
        yield logits[first_counted:], targets[first_counted:]


def measure(candidate: Candidate, mode: str) -> Score:
    """Return the score of the candidate's model on the whole text."""
    return score_of_predictions(predicted(candidate, mode, in_order=False), candidate.text(mode))


def measure_documents(candidate: Candidate, documents: list[np.ndarray], known: int) -> np.ndarray:
    """Return the loss of each document in nats, read on its own, without its first `known` >= 1 tokens: (N,)."""
    context = candidate.model.config.context
    # The windows come longest first, an order that `window_batches` keeps, so the losses below are in
    # the order of `document`, (targets,).
    windows, document = windows_of_each(documents, context, candidate.stride, known)
    joined = EvaluationText(np.concatenate(documents), candidate.tokenizer.token_sizes)
    losses: list[Tensor] = []
    with Progress("scoring documents", len(document)) as progress:
        for logits, targets in predictions(candidate.model, window_batches(joined, windows)):
            losses.append(surprisals(logits, targets))
            progress.update(len(targets))
    return np.bincount(document, torch.cat(losses).numpy(), len(documents))


def pieces(candidates: list[Candidate], mode: str) -> Iterator[tuple[str, tuple[Surprisals, ...]]]:
    """Yield the text, `PIECE` characters at a time, with their `Surprisals` under each model."""
    streams = [
        by_character(predicted(candidate, mode), candidate.text(mode), PIECE)
        for candidate in candidates
    ]
    for surprisals_of_models in zip(*streams, strict=True):
        # the same characters for every model, whatever its tokens are
        characters = letters(surprisals_of_models[0], candidates[0].tokenizer.decode)
        yield characters, surprisals_of_models
