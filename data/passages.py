"""Choose passages of the validation split: prompts for samples, and a line for plots of attention."""

import numpy as np
import torch
from torch import Tensor

from data.text import Text
from gpt.inference.continuation import complete_documents

PROMPT = 200  # maximum tokens of a prompt
ATTENDED = 30  # tokens of the passage whose attention is plotted
SEARCHED = 2**12  # tokens of validation in which the line where this passage begins is searched


def prompts(text: Text) -> Tensor:
    """Return two prompts of at most `PROMPT` tokens from different parts of the validation split: (2, T0) int64.

    If the text is divided into documents, each is only an end mark, after which a model begins a
    document.
    """
    if text.end is not None:
        return torch.from_numpy(text.end.astype("int64")).repeat(2, 1)
    passages: list[np.ndarray] = []
    for fraction in (0.25, 0.75):
        begin = int(len(text.validation) * fraction)
        tokens = text.validation[begin : begin + PROMPT]
        starts = _line_starts(text, tokens)
        if len(starts) > 1:
            tokens = tokens[starts[0] : starts[-1]]  # whole lines
        passages.append(tokens)
    length = min(map(len, passages))
    together = np.stack([tokens[-length:] for tokens in passages])  # (2, T0)
    return torch.from_numpy(together.astype("int64"))


def _line_starts(text: Text, tokens: np.ndarray) -> list[int]:
    """Return the positions in `tokens` that follow a newline, which are the beginnings of lines."""
    names = text.tokenizer.names
    if "\n" not in names:
        return []
    newlines = np.flatnonzero(tokens == names.index("\n"))
    return (newlines + 1).tolist()


def as_shown(text: Text, given: np.ndarray, written: np.ndarray) -> tuple[str, str]:
    """Decode a prompt and its continuation for display, without an end mark and an unfinished document."""
    decode = text.tokenizer.decode
    if text.documents is None:
        return decode(given), decode(written)
    return "", complete_documents(decode(written), text.documents.rule.end)


def passage(text: Text, length: int) -> Tensor:
    """Return `length` tokens of the validation split, from a line on that is worth plotting: (length,) int64."""
    stretch_begin = max(1, len(text.validation) // 2 - SEARCHED // 2)
    stretch = text.validation[stretch_begin : stretch_begin + SEARCHED]  # around the middle
    starts = _line_starts(text, stretch[:-ATTENDED]) or [0]
    # the line that begins with the most different tokens
    varied = max(starts, key=lambda start: len(np.unique(stretch[start : start + ATTENDED])))
    begin = max(0, min(stretch_begin + varied, len(text.validation) - length))
    return torch.from_numpy(text.validation[begin : begin + length].astype("int64"))
