"""Where the windows of an evaluation are: together they predict every token of a text exactly once.

A window has at most the context length. Windows are `disjoint` or overlapping (`strided`) or, if
the text is a list of documents, begin at a document (`documents`).
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np


class EvaluationWindows(NamedTuple):
    """Windows of a text, in its order: 3 x (W,) int64."""

    # position of the first input; negative in the end mark before the first document
    begins: np.ndarray
    lengths: np.ndarray  # number of inputs, and of targets
    # index of the first target that counts; all targets after it count, too
    first_counted: np.ndarray


@dataclass(frozen=True)
class EvaluationText:
    """A text to evaluate. If it is a list of documents, its first token is predicted, from the end mark before it."""

    tokens: np.ndarray  # (N,), of any integer type
    token_sizes: np.ndarray  # (V, 2), characters and UTF-8 bytes of each token of the tokenizer
    # (M,), the end mark that follows each document; None: not a list of documents
    end: np.ndarray | None = None
    # tokens from the start of one window to the start of the next; None: the context
    stride: int | None = None

    @property
    def first_token(self) -> int | None:
        """The first token if nothing precedes it, so that no window predicts it and its loss is ln V."""
        return int(self.tokens[0]) if self.end is None else None

    def windows(self, context: int, most: int | None = None) -> EvaluationWindows:
        """Return windows that cover the text, so that every predicted token is counted exactly once.

        With a stride below `context`, windows overlap, and each but the first counts only its last
        `stride` targets, which are predicted from more than context - stride tokens. In a list of
        documents, only the windows of one document overlap.

        Args:
            context: maximum window length in tokens, T.
            most: maximum number of counted targets, in windows evenly spaced in the text, but at
                least all targets of one window; None: all. For documents, the number is
                approximate.

        Raises:
            ValueError: the stride is less than 1 or greater than `context`.
        """
        stride = context if self.stride is None else self.stride
        if not 1 <= stride <= context:
            raise ValueError(f"stride={stride}: must be at least 1 and at most context={context}")
        if self.end is None:
            windows = windows_of_text(len(self.tokens), context, stride)
        else:
            windows = windows_of_documents(self.tokens, context, stride, self.end)
        if most is None or most >= len(self.tokens) - 1:
            return windows
        begins, lengths, first_counted = windows  # 3 x (W,)
        if self.end is None:
            # The first window counts `context` targets, each later one `stride`.
            num_windows = 1 + (most - context) // stride
        else:  # the same fraction of the windows as of the tokens
            num_windows = most * len(begins) // len(self.tokens)
        num_windows = max(1, num_windows)
        chosen = np.arange(num_windows) * len(begins) // num_windows  # (num_windows,)
        return EvaluationWindows(begins[chosen], lengths[chosen], first_counted[chosen])


def windows_of_text(length: int, context: int, stride: int) -> EvaluationWindows:
    """Return windows that cover a text of `length` tokens except for the first: all but the first count `stride`."""
    num_windows = 0
    if length > 1:
        # targets that the first window does not contain
        beyond_first = max(0, length - 1 - context)
        num_windows = 1 + math.ceil(beyond_first / stride)
    begins = stride * np.arange(num_windows)  # (W,)
    lengths = np.minimum(context, length - 1 - begins)  # (W,)
    first_counted = np.where(begins == 0, 0, context - stride)  # (W,)
    return EvaluationWindows(begins, lengths, first_counted)


def windows_of_documents(
    tokens: np.ndarray, context: int, stride: int, end: np.ndarray
) -> EvaluationWindows:
    """Return windows that begin with the end mark before a document and hold as many whole documents as fit.

    A document that is too long for one window has windows of its own, which begin `stride` tokens
    apart. A document ends with its end mark, or where the text ends.
    """
    tokens = np.asarray(tokens)  # (N,)
    mark = min(len(end), context)  # tokens of the end mark that a window begins with
    room = context - mark + 1  # targets that count in a window that begins at a document
    starts, stops = document_bounds(tokens, end)  # 2 x (documents,)

    group_starts = starts[first_of_groups(starts, stops, room)]  # (groups,)
    # The slice is for a text without documents, which has no groups either.
    group_stops = np.append(group_starts[1:], len(tokens))[: len(group_starts)]  # (groups,)
    return windows_of_groups(group_starts, group_stops, context, stride, mark)


def windows_of_groups(
    starts: np.ndarray, stops: np.ndarray, context: int, stride: int, mark: int
) -> EvaluationWindows:
    """Return windows of groups of documents, each read after the last `mark` tokens of the end mark before it.

    A group, from a start to its stop, is whole documents that share a window, or one document,
    which has several if it is too long for one.
    """
    beyond_first = np.maximum(0, stops - starts - (context - mark + 1))  # (groups,), targets
    windows_per_group = 1 + -(-beyond_first // stride)  # (groups,), rounded up

    group = np.repeat(np.arange(len(starts)), windows_per_group)  # (W,)
    first_window = windows_per_group.cumsum() - windows_per_group  # (groups,), its index
    index = np.arange(len(group)) - first_window[group]  # (W,), 0 for the first window of a group
    begins = starts[group] - mark + index * stride  # (W,)
    lengths = np.minimum(context, stops[group] - 1 - begins)  # (W,)
    first_counted = np.where(index == 0, mark - 1, context - stride)  # (W,)
    return EvaluationWindows(begins, lengths, first_counted)


def first_of_groups(starts: np.ndarray, stops: np.ndarray, room: int) -> list[int]:
    """Return the first document of each group: as many successive documents as fit into `room` tokens, at least one."""
    # (documents,), the first document that would not fit into a group that began at this one
    next_group = np.searchsorted(stops, starts + room, "right")
    first: list[int] = []
    document = 0
    while document < len(stops):
        first.append(document)
        document = max(document + 1, int(next_group[document]))
    return first


def document_bounds(tokens: np.ndarray, end: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return where each document of a list begins, and where it ends, behind its end mark: 2 x (documents,)."""
    # whether an end mark begins at each position
    is_mark = np.ones(max(0, len(tokens) - len(end) + 1), bool)
    for offset, token in enumerate(end):
        is_mark &= tokens[offset : offset + len(is_mark)] == token
    stops = np.flatnonzero(is_mark) + len(end)  # (documents,)
    last_stop = stops[-1] if len(stops) else 0
    if last_stop < len(tokens):  # the last document has no end mark
        stops = np.append(stops, len(tokens))
    starts = np.append(0, stops[:-1])[: len(stops)]  # (documents,), none without tokens
    return starts, stops
