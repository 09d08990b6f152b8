"""Score a text for score.py: the loss of the whole text, of each document or of each character.

A `mode` is a value of score.py's option `--window`. If it is disjoint or strided, the model reads windows of the text,
as in validation. If it is sample, the decoder reads the text, as in sampling.
"""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from base.errors import printable
from base.progress import Progress
from gpt.analysis import NUM_TOP, Surprisals, by_character, letters, token_surprisals
from gpt.evaluation import EVALUATION_BATCH, Score, evaluation_windows, predictions, reduce, surprisals
from gpt.inference.decoder import Decoder
from gpt.inference.weights import weights_of
from gpt.model import GPT
from gpt.tokenizer import Tokenizer

PIECE = 4096  # characters that `pieces` yields at a time
MAX_LOGITS = 2**25  # values in the logits of a batch, for large vocabularies


class Candidate(NamedTuple):
    """A model to score, and the text encoded for this model.

    Attributes:
        file: the model file.
        step: the optimizer step at which the model was saved.
        model: the model, on the chosen device.
        tokenizer: the tokenizer of the model.
        tokens: the whole text, (N,) uint8 or uint16.
        stride: tokens from the start of one window to the start of the next if windows are strided.
        trained: fraction of the text, from its beginning, that the model was trained on.
        characters: number of characters in the text, the divisor in bits per character; 0: use the number in `tokens`.
        bytes: size of the text's file, the divisor in bits per byte; 0: use the size of `tokens` as UTF-8.
        documents: how the training text is divided into documents (`data.documents.Rule`); None: it is not divided.
    """

    file: Path
    step: int
    model: GPT
    tokenizer: Tokenizer
    tokens: np.ndarray
    stride: int
    trained: float
    characters: int
    bytes: int
    documents: dict[str, str] | None = None

    def per_file(self, score: Score) -> Score:
        """Return a copy of `score` whose bits per character are of the whole text and bits per byte of the text's file.

        The total bits are divided by `self.characters` and `self.bytes`, or by the numbers in `score` if these are 0.
        If the divisors of all candidates are the same, the results can be compared, even if the tokens of a candidate
        leave out characters of the text.
        """
        characters, size = self.characters or score.characters, self.bytes or score.bytes
        bpc, bpb = score.bpc * score.characters / max(1, characters), score.bpb * score.bytes / size
        return replace(score, bpc=bpc, bpb=bpb, characters=characters, bytes=size)

    @property
    def page_name(self) -> str:
        """The model's name on an HTML page: its run, file and step.

        The folders above the run are left out, because pages may be sent to others.
        """
        run = f"{self.file.parent.parent.name}/" if self.file.parent.name == "checkpoints" else ""
        return f"{printable(run + self.file.name)}, step {self.step}"


def predicted(candidate: Candidate, mode: str) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the model's predictions for every token of the candidate's text but the first, in order.

    `mode` is a value of score.py's option `--window`: disjoint, strided or sample. A progress bar shows how many tokens
    have been predicted.

    Yields:
        For each batch of N tokens, the logits (N, V) and the targets (N,).
    """
    context, tokens = candidate.model.config.context, candidate.tokens
    total = len(tokens) - 1
    batch = min(EVALUATION_BATCH, MAX_LOGITS // candidate.model.vocabulary)
    if mode == "sample":
        batches = predicted_by_decoder(candidate, batch)
    else:
        rows, context = max(1, batch // context), max(1, min(context, total))  # no padding for a short text
        stride = min(candidate.stride, context) if mode == "strided" else context
        rows = max(1, min(rows, -(-total // stride)))
        batches = predictions(candidate.model, evaluation_windows(tokens, context, rows, stride=stride))
    with Progress(f"scoring, {mode} windows", total) as progress:
        for logits, targets in batches:
            yield logits, targets
            progress.update(len(targets))


def predicted_by_decoder(candidate: Candidate, batch: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the decoder's predictions for every token of the candidate's text but the first, as in sampling.

    The yielded tuples are the logits (N, V) and the targets (N,). N is `batch`, the number of tokens that the decoder
    reads at once, but may be less in the last tuple.
    """
    decoder = Decoder(weights_of(candidate.model))
    for start in range(0, len(candidate.tokens) - 1, batch):
        tokens = torch.from_numpy(candidate.tokens[start : start + batch + 1].astype(np.int64))
        yield torch.from_numpy(decoder.read(tokens[None, :-1].numpy())[0]), tokens[1:]


def measure(candidate: Candidate, mode: str) -> Score:
    """Return the score of the candidate's model on the whole text.

    `mode` is a value of score.py's option `--window`: disjoint, strided or sample.
    """
    first, sizes = int(candidate.tokens[0]), candidate.tokenizer.token_sizes
    return reduce(predicted(candidate, mode), first, candidate.model.vocabulary, sizes)


def measure_documents(candidate: Candidate, documents: list[np.ndarray], context: int) -> np.ndarray:
    """Return the loss of each document in nats, summed over all tokens but the first `context`: (documents,) float64.

    The model reads each document separately.

    Args:
        candidate: the model to score. Its `tokens` are not used.
        documents: the tokens of each document, at least two per document.
        context: the first `context` tokens of each document, at least 1, are given to the model and not scored.
    """
    order = sorted(range(len(documents)), key=lambda number: len(documents[number]))
    sums, nats = [torch.zeros(0, dtype=torch.float64)], np.zeros(len(documents))
    with Progress("scoring documents", sum(map(len, documents)) - len(documents)) as progress:
        windows = document_windows(candidate, [documents[number] for number in order])
        for logits, targets in predictions(candidate.model, windows):
            sums.append(surprisals(logits, targets))
            progress.update(len(targets))
    begin, found = 0, torch.cat(sums).numpy()
    for number in order:
        end = begin + len(documents[number]) - 1
        nats[number] = found[begin + context - 1 : end].sum()
        begin = end
    return nats


def document_windows(candidate: Candidate, documents: list[np.ndarray]) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Yield batches of windows that cover `documents`, as tuples (inputs, targets, counted) like `evaluation_windows`.

    `documents` are the tokens of each document. They must be sorted by length, the shortest first, so that a batch
    needs little padding. The padding is on the right, where a causal model does not see it. The windows have the
    context length of `candidate.model` and the stride `candidate.stride`, or less in a shorter document.
    """
    batch = min(EVALUATION_BATCH, MAX_LOGITS // candidate.model.vocabulary)
    held: list[tuple[Tensor, ...]] = []
    for tokens in documents:
        length = min(candidate.model.config.context, len(tokens) - 1)
        for window in evaluation_windows(tokens, length, 1, stride=min(candidate.stride, length)):
            held.append(window)
            if len(held) * length >= batch:
                yield stacked(held)
                held = []
    if held:
        yield stacked(held)


def stacked(windows: list[tuple[Tensor, ...]]) -> tuple[Tensor, Tensor, Tensor]:
    """Stack B windows into one batch (inputs, targets, counted) of three (B, T) tensors.

    Each window is a tuple of three tensors (1, length). Shorter windows are padded on the right to T, the length of the
    last window, which must be the longest.
    """
    width = windows[-1][0].shape[1]
    inputs, targets, counted = (
        torch.cat([F.pad(each, (0, width - each.shape[1])) for each in part]) for part in zip(*windows, strict=True)
    )
    return inputs, targets, counted


def pieces(candidates: list[Candidate], mode: str) -> Iterator[tuple[str, tuple[Surprisals, ...]]]:
    """Yield a text, `PIECE` characters at a time, with the surprisal of each character under several models.

    All candidates must contain the same text. `mode` is a value of score.py's option `--window`: disjoint, strided or
    sample.

    Yields:
        A tuple (characters, surprisals): the next `PIECE` characters of the text as a string, or fewer at its end, and
        a tuple with the `Surprisals` of these characters under each model.
    """
    streams = []
    for candidate in candidates:
        by_token = token_surprisals(
            predicted(candidate, mode), int(candidate.tokens[0]), candidate.model.vocabulary, NUM_TOP
        )
        streams.append(by_character(by_token, torch.from_numpy(candidate.tokenizer.token_sizes[:, 0]), PIECE))
    for group in zip(*streams, strict=True):
        yield letters(group[0], candidates[0].tokenizer.decode), group
