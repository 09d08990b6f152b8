"""Where the windows of an evaluation are: together they predict every token of a text exactly once.

A window has at most the context length. Windows are `disjoint` or overlapping (`strided`) or, if
the text is a list of documents, begin at a document (`documents`).
"""

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
            # One group: the text after its first token, which takes the place of an end mark.
            mark = 1
            num_groups = 1 if len(self.tokens) > 1 else 0
            starts = np.ones(num_groups, np.int64)
            stops = np.full(num_groups, len(self.tokens))
        else:
            mark = min(len(self.end), context)  # its tokens that a window begins with
            room = context - mark + 1  # targets that count in a window that begins at a document
            starts, stops = groups_of_documents(self.tokens, self.end, room)
        windows = windows_of_groups(starts, stops, context, stride, mark)
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


def groups_of_documents(
    tokens: np.ndarray, end: np.ndarray, room: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return where each group of documents begins and where it ends: 2 x (groups,).

    A group is as many successive documents as fit into `room` tokens, at least one. A document
    ends with its end mark, or where the text ends.
    """
    # whether an end mark begins at each position
    is_mark = np.ones(max(0, len(tokens) - len(end) + 1), bool)
    for offset, token in enumerate(end):
        is_mark &= tokens[offset : offset + len(is_mark)] == token
    stops = np.flatnonzero(is_mark) + len(end)  # (documents,)
    last_stop = stops[-1] if len(stops) else 0
    if last_stop < len(tokens):  # the last document has no end mark
        stops = np.append(stops, len(tokens))
    starts = np.append(0, stops[:-1])[: len(stops)]  # (documents,), none without tokens

    # (documents,), the first document that would not fit into a group that began at this one
    next_group = np.searchsorted(stops, starts + room, "right")
    first_documents: list[int] = []  # of each group
    document = 0
    while document < len(stops):
        first_documents.append(document)
        document = max(document + 1, int(next_group[document]))
    group_starts = starts[first_documents]  # (groups,)
    # The slice is for a text without documents, which has no groups either.
    group_stops = np.append(group_starts[1:], len(tokens))[: len(group_starts)]  # (groups,)
    return group_starts, group_stops


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
