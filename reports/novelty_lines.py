"""Say how much sampled texts copy from the training text, and how many of them are new documents."""

import json
import sys
from pathlib import Path
from typing import NamedTuple

import numpy as np

from base.errors import InputError, printable
from base.jobs.run_directory import Run
from base.progress import count
from data.novelty import Copy, longest_copies, repeats, skipped
from gpt.tokenizer import Tokenizer

LISTED = 20  # texts whose longest copies are printed one by one
SHOWN = 80  # characters of a passage in a line


class Novelty(NamedTuple):
    tokens: np.ndarray  # of the text, (n,)
    copy: Copy  # the longest one
    new: bool | None  # whether the training text lacks the document; None unless it is complete


def training_text(checkpoint: Path, option: str, unit: str) -> np.ndarray | None:
    """Return the tokens of the training text of a model's run, (N,), for `--new` or `--novelty`.

    If there are too many, `--new` is refused, and `--novelty` prints why and returns None.
    """
    from data.text import text_of_run  # needs a quarter of the start-up time

    if not Run(checkpoint.resolve().parent.parent).config.is_file():
        raise InputError(
            f"{option}: {printable(checkpoint)} is not in a run directory: its training text is unknown"
        )
    try:
        trained = text_of_run(checkpoint).train
    except InputError as error:
        raise InputError(f"{option}: the training text cannot be read: {error}") from None
    reason = skipped(trained, unit)
    if not reason:
        return trained
    if option == "--new":
        raise InputError(f"--new: {reason}")
    print(f"longest copy: skipped, because {reason}", file=sys.stderr)
    return None


def compare(
    texts: list[str], documents: list[str], trained: np.ndarray, tokenizer: Tokenizer, end: str
) -> list[Novelty]:
    """Compare each text, and the document that it completes (otherwise ""), with the tokens `trained`, (N,)."""
    encoded = list(map(tokenizer.encode, texts))
    copies = longest_copies(encoded, trained)
    repeated = repeats(list(map(tokenizer.encode, documents)), trained, tokenizer.encode(end))
    novelties = []
    for tokens, copy, document, is_known in zip(encoded, copies, documents, repeated, strict=True):
        new = None
        if document:
            new = not is_known
        novelties.append(Novelty(tokens, copy, new))
    return novelties


def print_copies(novelties: list[Novelty], tokenizer: Tokenizer) -> None:
    """Print the longest copy of each text to stderr, or of many texts the median and the longest."""
    lengths = [novelty.copy.length for novelty in novelties]
    listed = list(enumerate(novelties, start=1))
    if len(novelties) > LISTED:
        print(
            f"longest copy: median {np.median(lengths):g} {tokenizer.unit}s, and the longest of all:",
            file=sys.stderr,
        )
        listed = [listed[int(np.argmax(lengths))]]
    for number, novelty in listed:
        label = f"{number}: " if len(novelties) > 1 else ""
        print(label + _describe(novelty, tokenizer), file=sys.stderr)


def _describe(novelty: Novelty, tokenizer: Tokenizer) -> str:
    """Return one line that says how long the longest copy of a text is and how it begins."""
    begin, length = novelty.copy
    line = f"longest copy: {length:,} of {count(len(novelty.tokens), tokenizer.unit)}"
    passage = tokenizer.decode(novelty.tokens[begin : begin + length])
    if not passage:
        return line
    escaped = json.dumps(passage[:SHOWN], ensure_ascii=False)[1:-1]  # without its quotes
    dots = "…" if len(passage) > SHOWN else ""
    return f'{line}, "{printable(escaped)}{dots}"'


def print_new(novelties: list[Novelty], document: str) -> None:
    """Print to stderr how many of the complete documents, each a `document`, are new."""
    complete = [novelty.new for novelty in novelties if novelty.new is not None]
    new = complete.count(True)
    verb = "is" if new == 1 else "are"
    print(f"{new:,} of {count(len(complete), f'complete {document}')} {verb} new", file=sys.stderr)
