"""Choose passages of a text: prompts for samples, a line for plots of attention, and passages for the guessing game."""

import re
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from base.errors import InputError
from data.config import DataConfig
from data.corpus import open_corpus
from data.documents import END, Rule, divide, is_divided
from data.text import Text, text_of_run
from gpt.inference.continuation import complete_documents, readable
from gpt.tokenizer import Tokenizer

PROMPT = 200  # maximum tokens of a prompt
ATTENDED = 30  # tokens of the passage whose attention is plotted
SEARCHED = 2**12  # tokens of validation in which the line where this passage begins is searched
NUM_TO_GUESS = 6  # maximum number of passages to guess
TO_GUESS = 200  # characters of a passage to guess


def prompt(text: Text, at: float = 0.5) -> Tensor:
    """Return a prompt of at most `PROMPT` tokens from the validation split: (T0,) int64."""
    if text.documents:
        return torch.from_numpy(text.tokenizer.encode(text.documents.rule.end))
    begin = int(len(text.validation) * at)
    tokens = text.validation[begin : begin + PROMPT]
    starts = _line_starts(text, tokens)
    if len(starts) > 1:
        tokens = tokens[starts[0] : starts[-1]]
    return torch.from_numpy(tokens.astype("int64"))


def _line_starts(text: Text, tokens: np.ndarray) -> list[int]:
    """Return the positions in `tokens` that follow a newline, which are the beginnings of lines."""
    names = text.tokenizer.names
    return (np.flatnonzero(tokens == names.index("\n")) + 1).tolist() if "\n" in names else []


def as_shown(text: Text, given: np.ndarray, written: np.ndarray) -> tuple[str, str]:
    """Return the texts of a prompt and of its continuation for display, decoded from the tokens `given` and `written`.

    If the text is divided into documents, the prompt is an end mark, which becomes "", and an unfinished document at
    the end of the continuation is left out.
    """
    decode = text.tokenizer.decode
    if text.documents is None:
        return decode(given), decode(written)
    end = text.documents.rule.end
    return "", readable(complete_documents(decode(written), end), end)


def prompts(text: Text) -> Tensor:
    """Return two prompts of the same length, from different parts of the validation split: (2, T0) int64."""
    first, second = prompt(text, 0.25), prompt(text, 0.75)
    length = min(len(first), len(second))
    return torch.stack((first[-length:], second[-length:]))  # (2, T0)


def varied_line(text: Text) -> int:
    """Return the position in the validation split at which a line begins that is worth plotting."""
    middle = max(1, len(text.validation) // 2 - SEARCHED // 2)
    stretch = text.validation[middle : middle + SEARCHED]
    starts = _line_starts(text, stretch[:-ATTENDED]) or [0]
    return middle + max(starts, key=lambda start: len(np.unique(stretch[start : start + ATTENDED])))


def passage(text: Text, length: int) -> Tensor:
    """Return `length` tokens of the validation split, starting at `varied_line`: (length,) int64."""
    begin = max(0, min(varied_line(text), len(text.validation) - length))
    return torch.from_numpy(text.validation[begin : begin + length].astype("int64"))


def to_guess(text: str, trained: str, characters: str, mark: str = "\n") -> list[str]:
    """Return up to `NUM_TO_GUESS` passages of `text` for the guessing game, each of `TO_GUESS` characters."""
    found: list[str] = []
    free = 0  # earliest position of the next passage, which spreads the passages over the text
    for first in re.finditer(f"(?<={re.escape(mark)}).", text):
        passage = text[first.start() : first.start() + TO_GUESS]
        usable = first.start() >= free and len(passage) == TO_GUESS and set(passage) <= set(characters)
        if usable and not any(passage[i : i + TO_GUESS // 4] in trained for i in range(0, TO_GUESS, TO_GUESS // 4)):
            found.append(passage)
            free = max(first.start() + TO_GUESS, len(found) * len(text) // NUM_TO_GUESS)
    return found


def game_passages(
    source: str, file: Path, tokenizer: Tokenizer, documents: Mapping[str, str] | None = None
) -> tuple[list[str], str]:
    """Return (passages, line): the passages of the guessing game, and the line that export.py prints about them.

    A passage contains only characters of the vocabulary and does not occur in the text that the model was trained on.
    If the model was trained on documents, a passage is the beginning of a document, otherwise the beginning of a line.
    No passage contains U+0003, because nobody can enter this character on a keyboard. If there is no such passage,
    `passages` is [] and `line` says why.
    """
    rule = Rule(**documents) if documents else None
    end = rule.end if rule else ""
    mark = end or "\n"
    if tokenizer.unit == "byte":
        return [], "no game: the model reads bytes"
    unchecked = ""
    try:
        text = text_of_run(file)
        trained, guessed = (end + text.tokenizer.decode(tokens) for tokens in (text.train[:], text.validation))
    except InputError as error:
        if source == "validation":
            raise InputError(f"--guess validation: {error}; name a text file instead") from None
        trained, unchecked = "", f", not compared with the training text ({error})"
    if source != "validation":
        try:
            corpus = open_corpus(DataConfig(path=source))
            texts = list[str]()
            for document in corpus.documents:
                whole = "".join(map(str, corpus.read(document)))
                texts += divide(whole, rule, document.label) if rule and is_divided(rule, document.label) else [whole]
        except InputError as error:
            raise InputError(f"--guess {source}: {error.reason}") from None
        guessed = mark.join(["", *texts])
    if found := to_guess(guessed, trained, "".join(tokenizer.names).replace(END, ""), mark):
        number = f"{len(found)} passage{'s' * (len(found) > 1)} of {source} to guess"
        return found, f"{number}, which anyone with the page can read{unchecked}"
    advice = "name a text file instead" if source == "validation" else "name another text"
    unit = "document" if end else "line"
    lacks = f"{source} has no passage of {TO_GUESS} characters that starts a {unit}, uses only known characters"
    return [], f"no game: {lacks} and is absent from the training text; {advice} after --guess"
