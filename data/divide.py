"""Divide a text into documents: lines, paragraphs, files, the text between separators, or rows of a table."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import IO

from base.options import unescaped
from data.config import DOCUMENT_ENDS, END, DataConfig
from data.read import Tick, chunks, decode, lines, no_tick, suffix
from data.tables import TABLES, fields


@dataclass(frozen=True)
class DocumentRule:
    """How a text is divided into documents, and which characters mark the end of each document."""

    # What a document is: a line, a paragraph, a file, a row (of a table), or a part (the text
    # between two separators).
    kind: str
    end: str  # the end mark: the characters that follow each document, such as a newline
    name: str = ""  # the separator of parts, or the field of a row, otherwise ""

    @classmethod
    def of(cls, config: DataConfig) -> "DocumentRule | None":
        """Return the rule that `config` sets, or None if neither data.documents nor data.field is set."""
        if config.field is not None:
            return cls("row", END, config.field)
        if config.documents is None:
            return None
        if config.documents in DOCUMENT_ENDS:
            return cls(config.documents, DOCUMENT_ENDS[config.documents])
        return cls("part", END, unescaped(config.documents))

    def divides(self, label: str) -> bool:
        """Return whether the file `label` must be divided before a model of this rule reads it.

        The model was trained without separators and the syntax of a table.
        """
        return self.kind == "part" or (self.kind == "row" and suffix(label) in TABLES)


@dataclass(frozen=True)
class DocumentStats:
    """How a text was divided into documents, and how many documents there are."""

    rule: DocumentRule  # how the text was divided
    counts: Mapping[str, int]  # number of documents by split
    repeated: int  # number of documents that equal an earlier document
    blank: int  # number of documents that were dropped because they contain only whitespace
    # if data.validation is set, number of validation and test documents that equal a training
    # document
    copied: int


def documents(
    file: IO[bytes], label: str, rule: DocumentRule, encoding: str | None, tick: Tick = no_tick
) -> Iterator[tuple[int, str]]:
    """Yield pairs (line in which the document begins or, in JSON and Parquet, number of its row; document) of a file.

    Blank documents are among them. For the other arguments, see `data.read.decode`.
    """
    if rule.kind == "row":
        if suffix(label) == ".parquet":  # is not read in the order of its bytes
            for chunk in chunks(file):
                tick(chunk, None)
            file.seek(0)
        for number, text in fields(file, label, rule.name, encoding or "utf-8", tick):
            # with the byte tokenizer, a character is a byte
            yield number, text if encoding else text.encode().decode("latin-1")
        return
    texts = decode(file, label, encoding, tick)
    if rule.kind == "file":
        yield 1, "".join(texts)
    elif rule.kind == "part":
        separator = rule.name if encoding else rule.name.encode().decode("latin-1")
        yield from _parts(texts, separator)
    elif rule.kind == "line":
        for line, text in enumerate(lines(texts), 1):
            yield line, text.removesuffix("\r")
    else:
        yield from _paragraphs(lines(texts))


def parts(
    file: IO[bytes],
    label: str,
    rule: DocumentRule | None,
    encoding: str | None,
    tick: Tick = no_tick,
) -> list[tuple[int, str]]:
    """Return the `documents` of a file that are not blank or, without a rule, the whole text as one pair (1, text)."""
    if rule is None:
        return [(1, "".join(decode(file, label, encoding, tick)))]
    pairs = documents(file, label, rule, encoding, tick)
    return [(line, text) for line, text in pairs if text.strip()]


def _paragraphs(texts: Iterable[str]) -> Iterator[tuple[int, str]]:
    """Yield pairs (line in which it begins, paragraph) of the lines of a file."""
    paragraph: list[str] = []
    for line, text in enumerate(chain(texts, [""]), 1):  # a blank line ends the last one, too
        if text and not text.isspace():
            paragraph.append(text)
        elif paragraph:
            yield line - len(paragraph), "\n".join(paragraph).removesuffix("\r")
            paragraph = []


def _parts(texts: Iterable[str], separator: str) -> Iterator[tuple[int, str]]:
    """Yield the text between separators, without line ends around it."""
    line = 1
    pieces: list[str] = []  # of the part that is not complete
    for text in texts:
        # A separator may begin in an earlier chunk.
        tail = pieces.pop() if pieces else ""
        *complete, rest = (tail + text).split(separator)
        if complete:
            complete[0] = "".join(pieces) + complete[0]
            pieces = []
        for part in complete:
            yield _stripped(line, part)
            line += part.count("\n") + separator.count("\n")
        kept = max(0, len(rest) - len(separator) + 1)
        pieces += [rest[:kept], rest[kept:]]
    last = "".join(pieces)
    if last:
        yield _stripped(line, last)


def _stripped(line: int, part: str) -> tuple[int, str]:
    text = part.lstrip("\r\n")
    skipped = part[: len(part) - len(text)]  # line ends before the document
    return line + skipped.count("\n"), text.rstrip("\r\n")
