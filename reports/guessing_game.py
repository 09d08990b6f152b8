"""Choose the passages of the guessing game, which `export.py --to web --guess` adds to its page."""

import re
from collections.abc import Mapping
from pathlib import Path

from base.errors import InputError
from base.progress import count
from data.config import END, DataConfig
from data.divide import DocumentRule, parts
from data.find import find, without_binary
from data.text import text_of_run
from gpt.tokenizer import Tokenizer

NUM_TO_GUESS = 6  # maximum number of passages
TO_GUESS = 200  # characters of a passage


def to_guess(text: str, trained: str, characters: str, mark: str) -> list[str]:
    """Return up to `NUM_TO_GUESS` passages of `text` for the guessing game, each of `TO_GUESS` characters.

    A passage follows a `mark`, has only `characters`, and none of its quarters is in the text
    `trained`.
    """
    passages: list[str] = []
    free = 0  # earliest position of the next passage, which spreads the passages over the text
    # `.` matches no line break, so no passage begins with an empty line
    for first in re.finditer(f"(?<={re.escape(mark)}).", text):
        begin = first.start()
        passage = text[begin : begin + TO_GUESS]
        if begin < free or len(passage) < TO_GUESS or not set(passage) <= set(characters):
            continue
        quarters = [passage[i : i + TO_GUESS // 4] for i in range(0, TO_GUESS, TO_GUESS // 4)]
        if any(quarter in trained for quarter in quarters):
            continue
        passages.append(passage)
        # After the last passage, this is the end of the text.
        free = max(begin + TO_GUESS, len(passages) * len(text) // NUM_TO_GUESS)
    return passages


def game_passages(
    source: str, file: Path, tokenizer: Tokenizer, documents: Mapping[str, str] | None
) -> tuple[list[str], str]:
    """Return (passages of the text `source`, the line that export.py prints about them); without any, it says why.

    A passage begins a document or a line, has only characters of the vocabulary, and was not
    trained on. `documents` says how the training text was divided, None if it was not.
    """
    rule = DocumentRule(**documents) if documents else None
    end = rule.end if rule else ""
    mark = end or "\n"  # what a passage follows
    if tokenizer.unit == "byte":
        return [], "no game: the model reads bytes"
    trained = ""
    text_to_guess = ""
    unchecked = ""
    try:
        text = text_of_run(file)
        # An end mark also precedes the first document.
        trained = end + text.tokenizer.decode(text.train)
        if source == "validation":
            text_to_guess = end + text.tokenizer.decode(text.validation)
    except InputError as error:
        if source == "validation":
            raise InputError(f"--guess validation: {error}; name a text file instead") from None
        unchecked = f", not compared with the training text ({error})"
    if source != "validation":
        text_to_guess = mark.join(["", *read_texts(source, rule)])
    characters = "".join(tokenizer.names).replace(END, "")  # no keyboard has U+0003
    passages = to_guess(text_to_guess, trained, characters, mark)
    if passages:
        number = f"{count(len(passages), 'passage')} of {source} to guess"
        return passages, f"{number}, which anyone with the page can read{unchecked}"
    unit = "document" if end else "line"
    lacks = f"no game: {source} has no passage of {TO_GUESS} characters that starts a {unit}"
    return (
        [],
        f"{lacks}, uses only known characters and is absent from the training text; --guess FILE names another",
    )


def read_texts(source: str, rule: DocumentRule | None) -> list[str]:
    """Return the documents or, where `rule` does not divide them, the whole texts of the files of `source`."""
    texts: list[str] = []
    field = rule.name if rule and rule.kind == "row" else None
    try:
        corpus = without_binary(find(DataConfig(path=source, field=field)), field is not None)
        for source_file in corpus.files:
            dividing = rule if rule and rule.divides(source_file.label) else None
            with source_file.open() as file:
                pairs = parts(file, source_file.label, dividing, corpus.encoding)
                texts += [text for _, text in pairs]
    except InputError as error:
        raise InputError(f"--guess {source}: {error.reason}") from None
    return texts
