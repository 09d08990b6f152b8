"""Score a text for score.py: the loss of the whole text, of each document or of each character.

A `mode` is a value of `--window`: windows as in validation (disjoint or documents), strided ones, or sample, the
decoder as in sampling.
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
from gpt.evaluation import (
    Score,
    choose_windows,
    predictions,
    score_of_predictions,
    surprisals,
    window_batches,
    windows_of_each,
)
from gpt.inference.decoder import Decoder
from gpt.inference.weights import weights_of
from gpt.model import GPT
from gpt.tokenizer import Tokenizer

PIECE = 4096  # characters that `pieces` yields at a time
READ_AT_ONCE = 2048  # tokens that the decoder reads at once


class Candidate(NamedTuple):
    """A model to score, and the text encoded for this model."""

    file: Path
    step: int
    model: GPT
    tokenizer: Tokenizer
    tokens: np.ndarray  # the whole text, (N,) uint8 or uint16
    stride: int  # tokens between window starts if windows are strided
    trained: bool  # whether the model was trained on this text
    documents: dict[str, str] | None = None  # `data.documents.DocumentRule` by which the text is divided

    def end(self, mode: str) -> np.ndarray | None:
        """Return the end mark of documents, (M,) tokens, which precedes the text, or None if nothing precedes it."""
        return self.tokenizer.pack(self.documents["end"]) if self.documents and mode != "disjoint" else None

    def first_token(self, mode: str) -> int | None:
        """Return the first token if nothing precedes it, so that its loss is ln V."""
        return int(self.tokens[0]) if self.end(mode) is None else None

    @property
    def page_name(self) -> str:
        """The model's run, file and step, without the folders above, because pages are sent to others."""
        run = f"{self.file.parent.parent.name}/" if self.file.parent.name == "checkpoints" else ""
        return f"{printable(run + self.file.name)}, step {self.step}"


def predicted(candidate: Candidate, mode: str, *, in_order: bool = True) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the logits (N, V) and targets (N,) of every token, except the first if nothing precedes it."""
    if mode == "sample":
        batches = predicted_by_decoder(candidate)
    else:
        stride, end = candidate.stride if mode == "strided" else None, candidate.end(mode)
        windows = choose_windows(candidate.tokens, candidate.model.config.context, stride=stride, end=end)
        batches = predictions(candidate.model, window_batches(candidate.tokens, windows, end=end, in_order=in_order))
    with Progress(f"scoring, {mode} windows", len(candidate.tokens)) as progress:
        for logits, targets in batches:
            yield logits, targets
            progress.update(len(targets))


def predicted_by_decoder(candidate: Candidate) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield (logits, targets) as `sample.py` reads a text: token by token, with the window rule of the decoder."""
    decoder, text, known = Decoder(weights_of(candidate.model)), candidate.tokens, 1
    if (end := candidate.end("sample")) is not None:
        text, known = np.concatenate((end, text)), len(end)
    for start in range(0, len(text) - 1, READ_AT_ONCE):
        tokens = torch.from_numpy(text[start : start + READ_AT_ONCE + 1].astype(np.int64))
        new = slice(max(0, known - 1 - start), None)
        yield torch.from_numpy(decoder.read(tokens[None, :-1].numpy())[0][new]), tokens[1:][new]


def measure(candidate: Candidate, mode: str) -> Score:
    """Return the score of the candidate's model on the whole text."""
    every, sizes = predicted(candidate, mode, in_order=False), candidate.tokenizer.token_sizes
    return score_of_predictions(every, candidate.first_token(mode), candidate.model.vocabulary, sizes)


def measure_documents(candidate: Candidate, documents: list[np.ndarray], known: int) -> np.ndarray:
    """Return the loss of each document in nats, read on its own, without its first `known` >= 1 tokens: (N,)."""
    windows, owner = windows_of_each(documents, candidate.model.config.context, candidate.stride, known)
    batches, losses = window_batches(np.concatenate(documents), windows), []
    with Progress("scoring documents", len(owner)) as progress:
        for logits, targets in predictions(candidate.model, batches):
            losses.append(surprisals(logits, targets))
            progress.update(len(targets))
    return np.bincount(owner, torch.cat(losses).numpy(), len(documents))


def pieces(candidates: list[Candidate], mode: str) -> Iterator[tuple[str, tuple[Surprisals, ...]]]:
    """Yield the text, `PIECE` characters at a time, with their `Surprisals` under each model."""
    streams = [
        by_character(predicted(each, mode), each.first_token(mode), each.tokenizer.token_sizes, PIECE)
        for each in candidates
    ]
    for group in zip(*streams, strict=True):
        yield letters(group[0], candidates[0].tokenizer.decode), group
