"""Score each document of a text separately, and print the documents that surprise the model most."""

import csv
import math
from itertools import accumulate
from typing import TextIO

import numpy as np

from base.errors import printable
from base.progress import count
from gpt.scoring import Candidate, measure_documents
from reports.text_to_score import Document

ROWS = 20  # maximum documents in the printed table
WORDS = 60  # characters shown of the beginning of a document


def print_documents(candidate: Candidate, documents: list[Document], name: str, file: TextIO | None) -> None:
    """Print the documents with the highest loss per character, and write all documents to `file` as CSV.

    The model reads each document right after an end mark, and the document's own end mark counts towards its loss.
    """
    assert candidate.documents
    tokenizer = candidate.tokenizer
    mark = tokenizer.pack(candidate.documents["end"])
    ends = list(accumulate(document.length + len(mark) for document in documents))
    marked = np.split(candidate.tokens, ends[:-1])  # each document with its end mark
    nats = measure_documents(candidate, [np.concatenate((mark, tokens)) for tokens in marked], len(mark))
    characters = np.array([tokenizer.token_sizes[tokens, 0].sum() for tokens in marked])
    losses = nats / characters
    order = np.argsort(-losses, kind="stable").tolist()

    def beginning(number: int) -> str:
        length = min(documents[number].length, 4 * WORDS)
        words = tokenizer.decode(marked[number][:length])
        return printable(" ".join(words.split()))[:WORDS]

    size = int(characters.sum())
    unknown = sum(document.unknown for document in documents)
    print(f"{name}: {count(len(documents), 'document')}, {count(size, 'character')} with end marks")
    print(f"{'nats/character':>14}{'perplexity':>16}{'characters':>13}{'unknown':>9}{'line':>9}  document")
    print(row(nats.sum() / size, size, unknown, 0, "all, each from a fresh start"))
    for number in order[:ROWS]:
        document = documents[number]
        print(row(losses[number], characters[number], document.unknown, document.line, beginning(number)))
    if len(order) > ROWS:
        print(f"and {len(order) - ROWS:,} more" + ("" if file else "; --csv FILE writes all of them"))
    if file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(["document", "line", "nats_per_character", "perplexity", "characters", "unknown", "beginning"])
        for number in order:
            loss = float(losses[number])
            line, unknown, _ = documents[number]
            figures = [loss, perplexity(loss), int(characters[number]), unknown]
            table.writerow([number + 1, line or "", *figures, beginning(number)])


def row(loss: float, characters: int, unknown: int, line: int, text: str) -> str:
    return f"{loss:>14.6f}{perplexity(loss):>16.6f}{characters:>13,}{unknown:>9,}{line or '':>9}  {text}"


def perplexity(nats: float) -> float:
    return math.inf if nats > 700 else math.exp(nats)  # beyond it, exp overflows
