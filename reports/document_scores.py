"""Score each document of a text separately, and print the documents that surprise the model most."""

import csv
import math
from typing import Any, TextIO

import numpy as np

from base.errors import InputError, printable
from base.progress import count
from data.documents import WHITESPACE, DocumentRule, divide
from gpt.scoring import Candidate, measure_documents

ROWS = 20  # maximum documents in the printed table
WORDS = 60  # characters shown of the beginning of a document


def print_documents(candidate: Candidate, name: str, file: TextIO | None) -> None:
    """Print the documents with the highest loss per character, and write all documents to `file` as CSV.

    The model reads each document right after an end mark, and the document's own end mark counts towards its loss.
    """
    assert candidate.documents
    tokenizer, rule = candidate.tokenizer, DocumentRule(**candidate.documents)
    end, is_bytes = rule.end, tokenizer.unit == "byte"
    whole: Any = candidate.tokens.tobytes() if is_bytes else tokenizer.decode(candidate.tokens)
    if rule.kind in WHITESPACE:
        texts = divide(whole, rule, name)
    else:
        texts = [text for text in whole.split(end.encode() if is_bytes else end) if text.strip()]
    if not texts:
        raise InputError(f"--per-document: {name} has only whitespace, which is not a document")
    mark = tokenizer.pack(end)
    encoded = [np.frombuffer(text, np.uint8) if is_bytes else tokenizer.pack(text) for text in texts]
    nats = measure_documents(candidate, [np.concatenate((mark, text, mark)) for text in encoded], len(mark))
    sizes = tokenizer.token_sizes[:, 0]
    characters = np.array([sizes[text].sum() + len(mark) for text in encoded])
    losses = nats / characters
    order = np.argsort(-losses, kind="stable").tolist()

    def beginning(number: int) -> str:
        words = tokenizer.decode(encoded[number][: 4 * WORDS])
        return printable(" ".join(words.split()))[:WORDS]

    print(f"{name}: {count(len(texts), 'document')}, {count(int(characters.sum()), 'character')} with end marks")
    print("{:>14}{:>16}{:>13}  {}".format("nats/character", "perplexity", "characters", "document"))
    print(row(nats.sum() / characters.sum(), characters.sum(), "all, each from a fresh start"))
    for number in order[:ROWS]:
        print(row(losses[number], characters[number], beginning(number)))
    if len(order) > ROWS:
        print(f"and {len(order) - ROWS:,} more" + ("" if file else "; --csv FILE writes all of them"))
    if file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(["document", "nats_per_character", "perplexity", "characters", "beginning"])
        for number in order:
            loss = float(losses[number])
            table.writerow([number + 1, loss, perplexity(loss), int(characters[number]), beginning(number)])


def row(loss: float, characters: int, text: str) -> str:
    return f"{loss:>14.6f}{perplexity(loss):>16.6f}{characters:>13,}  {text}"


def perplexity(nats: float) -> float:
    return math.inf if nats > 700 else math.exp(nats)  # beyond it, exp overflows
