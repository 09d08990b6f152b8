"""Choose the passages of the guessing game, which `export.py --to web --guess` adds to its page."""

import re
from collections.abc import Mapping
from pathlib import Path

from base.errors import InputError
from base.progress import count
from data.config import DataConfig
from data.corpus import open_corpus
from data.documents import END, DocumentRule, divide, is_divided
from data.text import text_of_run
from gpt.tokenizer import Tokenizer

NUM_TO_GUESS = 6  # maximum number of passages
TO_GUESS = 200  # characters of a passage


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
    """Return (passages of the text `source`, the line that export.py prints about them); without any, it says why.

    A passage begins a document or a line, has only characters of the vocabulary, and was not trained on.
    """
    rule = DocumentRule(**documents) if documents else None
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
            for each in corpus.files:
                whole = "".join(map(str, corpus.read(each)))
                if rule and is_divided(rule, each.label):
                    texts += [document for _, document in divide(whole, rule, each.label)]
                else:
                    texts.append(whole)
        except InputError as error:
            raise InputError(f"--guess {source}: {error.reason}") from None
        guessed = mark.join(["", *texts])
    characters = "".join(tokenizer.names).replace(END, "")  # no keyboard has U+0003
    if found := to_guess(guessed, trained, characters, mark):
        number = f"{count(len(found), 'passage')} of {source} to guess"
        return found, f"{number}, which anyone with the page can read{unchecked}"
    lacks = f"no game: {source} has no passage of {TO_GUESS} characters that starts a {'document' if end else 'line'}"
    return [], f"{lacks}, uses only known characters and is absent from the training text; --guess FILE names another"
