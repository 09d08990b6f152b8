"""Exact losses: every token of a text is predicted once, and the losses are summed in float64.

A text is read in windows of at most the context length: `disjoint` or overlapping (`strided`) ones or, if it is a list
of documents, windows that begin at a document (`documents`).

A batch of windows is `(inputs, targets, counted)`, three (B, T) tensors. *Totals* are (4,) float64 tensors `[nats,
tokens, characters, bytes]`, which add up over batches and devices. `sizes`, (V, 2), is a tokenizer's `token_sizes`.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from gpt.model import GPT

EVALUATION_BATCH = 2**11  # tokens per batch of evaluation windows: keeps two cores busy and fits into their caches


@dataclass(frozen=True)
class Score:
    """How well a model predicts a text, and the length of the text."""

    loss: float  # mean, in nats per token
    bpc: float  # bits per character; NaN for bytes that only continue a character
    bpb: float  # bits per byte
    tokens: int
    characters: int
    bytes: int  # in UTF-8


def measured(score: Score, context: int, mode: str) -> dict[str, Any]:
    """Return the `evaluation` of model files and summary.json for a score on windows of `context` tokens."""
    return {"mode": mode, "context": context, "stride": context, "characters": score.characters}


def surprisals(logits: Tensor, targets: Tensor) -> Tensor:
    """Return -ln of the probability of each target, in nats: (N, V), (N,) int64 -> (N,) float64 on the CPU."""
    if logits.dtype != torch.float64:
        logits = logits.float()
    return F.cross_entropy(logits, targets, reduction="none").cpu().double()  # (N,)


def totals(nats: Tensor, tokens: Tensor, sizes: np.ndarray) -> Tensor:
    """Return the totals of N tokens with the surprisals `nats`: 2 x (N,) -> (4,) on the CPU."""
    characters, octets = sizes[tokens.cpu().numpy()].sum(0)  # (N, 2) -> (2,)
    return torch.tensor([nats.sum(), len(tokens), characters, octets], dtype=torch.float64)


def window_totals(logits: Tensor, targets: Tensor, counted: Tensor, sizes: np.ndarray) -> Tensor:
    """Return the totals of the counted targets of a batch: (B, T, V), 2 x (B, T) -> (4,) on the CPU."""
    targets = targets[counted]  # (N,)
    nats = surprisals(logits[counted], targets)  # (N,)
    return totals(nats, targets, sizes)


def first_totals(token: int | None, vocabulary: int, sizes: np.ndarray) -> Tensor:
    """Return the totals of the first token of a text, whose loss is ln V because no text precedes it: (4,).

    They are zero if `token` is None, because the first document of a list follows an end mark.
    """
    if token is None:
        return torch.zeros(4, dtype=torch.float64)
    return torch.tensor([math.log(vocabulary), 1, *sizes[token]], dtype=torch.float64)


def make_score(totals: Tensor) -> Score:
    """Return the `Score` of a text from its totals, (4,)."""
    nats, tokens, characters, octets = totals.tolist()
    bits = nats / math.log(2)
    bpc = bits / characters if characters else math.nan
    return Score(nats / tokens, bpc, bits / octets, int(tokens), int(characters), int(octets))


@contextmanager
def in_fp32_without_dropout(model: GPT) -> Iterator[None]:
    """Run the model in fp32 and without dropout, then restore its training mode."""
    training = model.training
    model.eval()
    try:
        with torch.autocast(model.embedding.weight.device.type, enabled=False):
            yield
    finally:
        model.train(training)


@torch.no_grad()
def predictions(model: GPT, windows: Iterable[tuple[Tensor, Tensor, Tensor]]) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the logits (N, V) and targets (N,) of each batch's counted tokens, on the model's device."""
    device = model.embedding.weight.device
    for inputs, targets, counted in windows:
        with in_fp32_without_dropout(model):
            logits = model(inputs.to(device))  # (B, T, V)
        counted = counted.to(device)  # (B, T)
        targets = targets.to(device)  # (B, T)
        yield logits[counted], targets[counted]


def score_of_predictions(
    predicted: Iterable[tuple[Tensor, Tensor]], first_token: int | None, vocabulary: int, sizes: np.ndarray
) -> Score:
    """Return the score of a text from its `predictions`; `first_token` and `sizes` are those of `evaluate`."""
    total = first_totals(first_token, vocabulary, sizes)  # (4,)
    for logits, targets in predicted:
        total += totals(surprisals(logits, targets), targets, sizes)
    return make_score(total)


def evaluate(
    model: GPT, windows: Iterable[tuple[Tensor, Tensor, Tensor]], first_token: int | None, sizes: np.ndarray
) -> Score:
    """Return a model's score on a text.

    Args:
        model: the model, which runs in fp32 and without dropout.
        windows: the windows of the text, from `evaluation_windows`.
        first_token: the first token of the text, whose loss is ln V, because no window contains it as a target. None
            for a list of documents, whose windows contain all tokens as targets.
        sizes: the tokenizer's `token_sizes`, (V, 2).
    """
    return score_of_predictions(predictions(model, windows), first_token, model.vocabulary, sizes)


class Windows(NamedTuple):
    """Windows of a text, in its order: 3 x (W,) int64."""

    begins: np.ndarray  # position of the first input; negative in the end mark before the first document
    lengths: np.ndarray  # number of inputs, and of targets
    counted: np.ndarray  # index of the first target that counts; all targets after it count, too


def windows_of_text(length: int, context: int, stride: int) -> Windows:
    """Return windows that cover a text of `length` tokens except for the first: all but the first count `stride`."""
    number = 0
    if length > 1:
        beyond_first = max(0, length - 1 - context)  # targets that the first window does not contain
        number = 1 + math.ceil(beyond_first / stride)
    begins = stride * np.arange(number)  # (W,)
    lengths = np.minimum(context, length - 1 - begins)  # (W,)
    counted = np.where(begins == 0, 0, context - stride)  # (W,)
    return Windows(begins, lengths, counted)


def windows_of_documents(tokens: np.ndarray, context: int, stride: int, end: np.ndarray) -> Windows:
    """Return windows that begin with the end mark before a document and hold as many whole documents as fit.

    A document that is too long for one window has windows of its own, which begin `stride` tokens apart. A document
    ends with its end mark, or where the text ends.
    """
    tokens = np.asarray(tokens)  # (N,)
    mark = min(len(end), context)  # tokens of the end mark that a window begins with
    room = context - mark + 1  # targets that count in a window that begins at a document
    starts, stops = document_bounds(tokens, end)  # 2 x (documents,)

    # Documents that begin a window: the first one, then each that does not fit behind the others.
    following = np.searchsorted(stops, starts + room, "right")  # (documents,)
    heads: list[int] = []
    document = 0
    while document < len(stops):
        heads.append(document)
        document = max(document + 1, int(following[document]))

    # What lies between two heads is one or more whole documents, or one that is too long.
    starts = starts[heads]  # (heads,)
    stops = np.append(starts[1:], len(tokens))[: len(heads)]  # (heads,)
    beyond_first = np.maximum(0, stops - starts - room)  # (heads,), targets that the first window does not contain
    windows_of_head = 1 + -(-beyond_first // stride)  # (heads,), rounded up

    head = np.repeat(np.arange(len(heads)), windows_of_head)  # (W,)
    earlier = windows_of_head.cumsum() - windows_of_head  # (heads,), windows of the heads before
    index = np.arange(len(head)) - earlier[head]  # (W,), 0 for the first window of a head
    begins = starts[head] - mark + index * stride  # (W,)
    lengths = np.minimum(context, stops[head] - 1 - begins)  # (W,)
    counted = np.where(index == 0, mark - 1, context - stride)  # (W,)
    return Windows(begins, lengths, counted)


def document_bounds(tokens: np.ndarray, end: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return where each document of a list begins, and where it ends, behind its end mark: 2 x (documents,)."""
    is_mark = np.ones(max(0, len(tokens) - len(end) + 1), bool)  # whether an end mark begins at each position
    for offset, token in enumerate(end):
        is_mark &= tokens[offset : offset + len(is_mark)] == token
    stops = np.flatnonzero(is_mark) + len(end)  # (documents,)
    last_stop = stops[-1] if len(stops) else 0
    if last_stop < len(tokens):  # the last document has no end mark
        stops = np.append(stops, len(tokens))
    starts = np.append(0, stops[:-1])[: len(stops)]  # (documents,)
    return starts, stops


def windows_of_each(
    documents: Sequence[np.ndarray], context: int, stride: int, known: int
) -> tuple[Windows, np.ndarray]:
    """Return windows of joined documents, of which each is read on its own, and which document each target is in.

    The first `known` >= 1 tokens of a document do not count. The longest windows come first.
    """
    sizes = np.array([len(tokens) for tokens in documents])  # (documents,)
    starts = sizes.cumsum() - sizes  # (documents,), of the documents in the joined text
    of_each = [windows_of_text(size, context, stride) for size in sizes.tolist()]
    number_of_each = [len(windows.begins) for windows in of_each]
    document = np.repeat(np.arange(len(of_each)), number_of_each)  # (W,)

    begins = np.concatenate([windows.begins for windows in of_each])  # (W,), in its document
    lengths = np.concatenate([windows.lengths for windows in of_each])  # (W,)
    counted = np.concatenate([windows.counted for windows in of_each])  # (W,)
    counted = np.maximum(counted, known - 1 - begins).clip(max=lengths)  # (W,)
    begins += starts[document]  # (W,), in the joined text

    order = np.argsort(-lengths, kind="stable")  # (W,)
    windows = Windows(begins[order], lengths[order], counted[order])
    document_of_target = np.repeat(document[order], windows.lengths - windows.counted)  # (counted targets,)
    return windows, document_of_target


def choose_windows(
    tokens: np.ndarray,
    context: int,
    *,
    stride: int | None = None,
    end: np.ndarray | None = None,
    most: int | None = None,
) -> Windows:
    """Return windows that cover a text, so that every predicted token is counted exactly once.

    With a stride below `context`, windows overlap, and each but the first counts only its last `stride` targets, which
    are predicted from more than context - stride tokens. The first token of the text is not predicted, unless the text
    is a list of documents (`end`): its windows begin at documents, and only those of one document overlap.

    Args:
        tokens: the text, (N,), of any integer type.
        context: maximum window length in tokens, T.
        stride: tokens from the start of one window to the start of the next; None: `context`.
        end: the end mark that follows each document, (M,); None: the text is not a list of documents.
        most: maximum number of counted targets, in windows evenly spaced in the text, but at least all targets of one
            window; None: all. For documents, the number is approximate.

    Raises:
        ValueError: `stride` is less than 1 or greater than `context`.
    """
    stride = context if stride is None else stride
    if not 1 <= stride <= context:
        raise ValueError(f"stride={stride}: must be at least 1 and at most context={context}")
    if end is None:
        windows = windows_of_text(len(tokens), context, stride)
    else:
        windows = windows_of_documents(tokens, context, stride, end)
    if most is None or most >= len(tokens) - 1:
        return windows
    begins, lengths, counted = windows  # 3 x (W,)
    if end is None:
        number = 1 + (most - context) // stride
    else:
        number = most * len(begins) // len(tokens)
    number = max(1, number)
    chosen = np.arange(number) * len(begins) // number  # (number,), evenly spaced
    return Windows(begins[chosen], lengths[chosen], counted[chosen])


def evaluation_windows(
    tokens: np.ndarray,
    context: int,
    batch: int,
    *,
    stride: int | None = None,
    end: np.ndarray | None = None,
    most: int | None = None,
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Yield the windows of `choose_windows` as `window_batches` does: `batch` at a time, more if they are shorter."""
    windows = choose_windows(tokens, context, stride=stride, end=end, most=most)
    return window_batches(tokens, windows, batch * context, end=end)


def window_batches(
    tokens: np.ndarray,
    windows: Windows,
    size: int = EVALUATION_BATCH,
    *,
    end: np.ndarray | None = None,
    rank: int = 0,
    ranks: int = 1,
    in_order: bool = False,
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Yield windows of a text, (N,) tokens, in batches.

    Args:
        size: tokens per batch on this rank, at least one window.
        end: the end mark that precedes the text, (M,), if windows begin in it.
        rank: rank of this process. Together, the `ranks` processes count every target once.
        in_order: whether the windows keep their order. Otherwise the longest come first, so that batches need little
            padding.

    Yields:
        (inputs, targets, counted), each (rows, longest window): int64, int64 and bool. Padding, on the right, does not
        count. Every rank yields the same number of batches.
    """
    text = np.asarray(tokens)  # (N,)
    begins, lengths, first_counted = windows  # 3 x (W,)
    order = np.arange(len(begins)) if in_order else np.argsort(-lengths, kind="stable")  # (W,)
    done = 0  # windows of earlier batches, of all ranks
    while done < len(order):
        longest = lengths.max() if in_order else lengths[order[done]]
        rows_left = -(-(len(order) - done) // ranks)  # of this rank, rounded up
        rows = min(max(1, size // int(longest)), rows_left)
        row = done + rank * rows + np.arange(rows)  # (rows,)
        is_window = (row < len(order))[:, None]  # (rows, 1), false where only other ranks have a window left
        window = order[np.minimum(row, len(order) - 1)][:, None]  # (rows, 1)

        column = np.arange(lengths[window].max())  # (T,), up to the longest window of this batch
        counts = (column >= first_counted[window]) & (column < lengths[window]) & is_window  # (rows, T)
        position = begins[window] + np.arange(len(column) + 1)  # (rows, T + 1)
        gathered = text[position.clip(0, len(text) - 1)].astype(np.int64)  # (rows, T + 1)
        if end is not None:
            gathered = np.where(position < 0, end[np.minimum(position, -1)], gathered)  # (rows, T + 1)
        tokens_of_rows = torch.from_numpy(gathered)  # (rows, T + 1)
        yield tokens_of_rows[:, :-1], tokens_of_rows[:, 1:], torch.from_numpy(counts)
        done += rows * ranks
