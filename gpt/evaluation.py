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


def describe_windows(mode: str, context: int) -> str:
    """Return how a text was read, for people."""
    return f"windows of {context} at documents" if mode == "documents" else f"{mode} windows of {context}"


def surprisals(logits: Tensor, targets: Tensor) -> Tensor:
    """Return -ln of the probability of each target, in nats: (N, V), (N,) int64 -> (N,) float64 on the CPU."""
    logits = logits if logits.dtype == torch.float64 else logits.float()
    return F.cross_entropy(logits, targets, reduction="none").cpu().double()  # (N,)


def totals(nats: Tensor, tokens: Tensor, sizes: np.ndarray) -> Tensor:
    """Return the totals of N tokens with the surprisals `nats`: 2 x (N,) -> (4,) on the CPU."""
    return torch.tensor([nats.sum(), len(tokens), *sizes[tokens.cpu().numpy()].sum(0)], dtype=torch.float64)


def window_totals(logits: Tensor, targets: Tensor, counted: Tensor, sizes: np.ndarray) -> Tensor:
    """Return the totals of the counted targets of a batch: (B, T, V), 2 x (B, T) -> (4,) on the CPU."""
    return totals(surprisals(logits[counted], targets[counted]), targets[counted], sizes)


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
def exact(model: GPT) -> Iterator[None]:
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
        with exact(model):
            logits = model(inputs.to(device))
        counted = counted.to(device)
        yield logits[counted], targets.to(device)[counted]


def reduce(predicted: Iterable[tuple[Tensor, Tensor]], first: int | None, vocabulary: int, sizes: np.ndarray) -> Score:
    """Return the score of a text from its `predictions`; `first` and `sizes` are those of `evaluate`."""
    total = first_totals(first, vocabulary, sizes)
    for logits, targets in predicted:
        total += totals(surprisals(logits, targets), targets, sizes)
    return make_score(total)


def evaluate(
    model: GPT, windows: Iterable[tuple[Tensor, Tensor, Tensor]], first: int | None, sizes: np.ndarray
) -> Score:
    """Return a model's score on a text.

    Args:
        model: the model, which runs in fp32 and without dropout.
        windows: the windows of the text, from `evaluation_windows`.
        first: the first token of the text, whose loss is ln V, because no window contains it as a target. None for a
            list of documents, whose windows contain all tokens as targets.
        sizes: the tokenizer's `token_sizes`, (V, 2).
    """
    return reduce(predictions(model, windows), first, model.vocabulary, sizes)


class Windows(NamedTuple):
    """Windows of a text, in its order: 3 x (W,) int64."""

    begins: np.ndarray  # position of the first input; negative in the end mark before the first document
    lengths: np.ndarray  # number of inputs, and of targets
    counted: np.ndarray  # index of the first target that counts; all targets after it count, too


def windows_of_text(length: int, context: int, stride: int) -> Windows:
    """Return windows that cover a text of `length` tokens except for the first: all but the first count `stride`."""
    begins = stride * np.arange(1 + max(0, math.ceil((length - 1 - context) / stride)) if length > 1 else 0)
    return Windows(begins, np.minimum(context, length - 1 - begins), np.where(begins == 0, 0, context - stride))


def windows_of_documents(tokens: np.ndarray, context: int, stride: int, end: np.ndarray) -> Windows:
    """Return windows that begin with the end mark before a document and hold as many whole documents as fit.

    A document that is too long for one window has windows of its own, which begin `stride` tokens apart. A document
    ends with its end mark, or where the text ends.
    """
    tokens, mark = np.asarray(tokens), min(len(end), context)
    found = np.ones(max(0, len(tokens) - len(end) + 1), bool)
    for offset, token in enumerate(end):
        found &= tokens[offset : offset + len(found)] == token
    stops = np.flatnonzero(found) + len(end)  # (documents,)
    if len(tokens) and (len(stops) == 0 or stops[-1] < len(tokens)):
        stops = np.append(stops, len(tokens))
    starts = np.concatenate(([0], stops[:-1]))[: len(stops)]
    room = context - mark + 1  # targets that count in a window that begins at a document
    following = np.searchsorted(stops, starts + room, "right")  # the first document that does not fit
    heads, document = list[int](), 0
    while document < len(stops):
        heads.append(document)
        document = max(document + 1, int(following[document]))
    starts = starts[heads]  # of the documents that begin a window: (heads,)
    stops = np.append(starts[1:], len(tokens))[: len(starts)]
    pieces = 1 + np.maximum(0, -(-(stops - starts - room) // stride))
    head = np.repeat(np.arange(len(heads)), pieces)  # (windows,)
    piece = np.arange(len(head)) - np.repeat(pieces.cumsum() - pieces, pieces)
    begins = starts[head] - mark + piece * stride
    lengths = np.minimum(context, stops[head] - 1 - begins)
    return Windows(begins, lengths, np.where(piece == 0, mark - 1, context - stride))


def windows_of_each(
    documents: Sequence[np.ndarray], context: int, stride: int, known: int
) -> tuple[Windows, np.ndarray]:
    """Return windows of joined documents, of which each is read on its own, and which document each target is in.

    The first `known` >= 1 tokens of a document do not count. The longest windows come first.
    """
    sizes = np.array([len(tokens) for tokens in documents])
    each = [windows_of_text(size, context, stride) for size in sizes.tolist()]
    owner = np.repeat(np.arange(len(each)), [len(windows.begins) for windows in each])  # (windows,)
    begins, lengths, counted = map(np.concatenate, zip(*each, strict=True))
    counted = np.maximum(counted, known - 1 - begins).clip(max=lengths)
    order = np.argsort(-lengths, kind="stable")
    begins += (sizes.cumsum() - sizes)[owner]
    windows = Windows(begins[order], lengths[order], counted[order])
    return windows, np.repeat(owner[order], windows.lengths - windows.counted)


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
    number = len(windows.begins)
    wanted = 1 + (most - context) // stride if end is None else most * number // len(tokens)
    chosen = np.arange(max(1, wanted)) * number // max(1, wanted)  # (wanted,)
    return Windows(*(each[chosen] for each in windows))


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
    text, (begins, lengths, first) = np.asarray(tokens), windows
    order = np.arange(len(begins)) if in_order else np.argsort(-lengths, kind="stable")
    begun = 0
    while begun < len(order):
        longest = lengths.max() if in_order else lengths[order[begun]]
        rows = min(max(1, size // int(longest)), -(-(len(order) - begun) // ranks))
        row = begun + rank * rows + np.arange(rows)
        window = order[np.minimum(row, len(order) - 1)][:, None]  # (rows, 1)
        column = np.arange(lengths[window].max())
        position = begins[window] + np.arange(len(column) + 1)  # (rows, longest + 1)
        gathered = text[position.clip(0, len(text) - 1)].astype(np.int64)
        if end is not None:
            gathered = np.where(position < 0, end[np.minimum(position, -1)], gathered)
        counted = (column >= first[window]) & (column < lengths[window]) & (row < len(order))[:, None]
        inputs_targets = torch.from_numpy(gathered)
        yield inputs_targets[:, :-1], inputs_targets[:, 1:], torch.from_numpy(counted)
        begun += rows * ranks
