"""Divide a text into documents: lines, paragraphs, files, the text between separators, or rows of a table."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from base.errors import InputError
from data.config import DOCUMENT_KINDS, DataConfig
from data.corpus import Corpus, Document, Tick
from data.formats import suffix
from data.tables import TABLES, fields

END = "\x03"  # U+0003 END OF TEXT: the end mark of documents that may contain any line breaks
WHITESPACE = ("line", "paragraph")  # kinds of documents that whitespace separates: their end marks are part of the text
BATCH = 2**20  # characters that are divided at once
SPACES = np.array([chr(point).isspace() for point in range(0x3002)])  # the last one is for higher code points, too


@dataclass(frozen=True)
class Rule:
    """How a text is divided into documents, and which characters mark the end of each document."""

    # What a document is: a line, a paragraph, a file, a row (of a table), or a part (the text between two separators).
    kind: str
    end: str  # the end mark: the characters that follow each document, such as a newline
    name: str = ""  # the separator of parts, or the field of a row, otherwise ""

    @classmethod
    def of(cls, config: DataConfig) -> "Rule | None":
        """Return the `Rule` for the options in `config`, or None if neither data.documents nor data.field is set."""
        if config.field is not None:
            return cls("row", END, config.field)
        if config.documents is None:
            return None
        if config.documents in DOCUMENT_KINDS:
            return cls(config.documents, {"line": "\n", "paragraph": "\n\n", "file": END}[config.documents])
        escapes = {r"\n": "\n", r"\t": "\t", r"\\": "\\"}  # the escapes accepted in a command line
        return cls("part", END, re.sub(r"\\[nt\\]", lambda found: escapes[found[0]], config.documents))


@dataclass(frozen=True)
class Documents:
    """How a text was divided into documents, and how many documents there are."""

    rule: Rule  # how the text was divided
    counts: Mapping[str, int]  # number of documents by split
    repeated: int  # number of documents that equal an earlier document
    blank: int  # number of documents that were dropped because they contain only whitespace
    copied: int  # if data.validation is set, number of validation and test documents that equal a training document


class Batch(NamedTuple):
    """Successive documents of a text, including blank ones: document i is `text[starts[i]:ends[i]]`."""

    text: Any  # a str, or bytes if the tokenizer is the byte tokenizer
    points: np.ndarray  # the code points or bytes of `text`, as an array
    starts: np.ndarray  # where each document begins in `text`, (documents,) int64
    ends: np.ndarray  # where each document ends in `text`, (documents,) int64


Cut = Callable[[Any, bool], tuple[Batch, Any]]  # (text, whether the file ends with it) -> (batch, unfinished rest)


def contents(corpus: Corpus, rule: Rule, tick: Tick) -> Iterator[Iterable[Any]]:
    """Yield everything that the vocabulary must cover: texts, each as an iterable of chunks.

    For lines and paragraphs there is a text for each file. Otherwise a single text contains all documents, without
    separators and the syntax of tables, because a model never reads them. `rule` says how the documents are found in
    `corpus`, and `tick` is called with the number of bytes after each read.
    """
    if rule.kind in WHITESPACE:
        yield from (corpus.read(document, tick) for document in corpus.documents)
    else:
        yield (batch.text for batch in batches(corpus, rule, tick))


def check_end_mark(corpus: Corpus, rule: Rule, characters: str) -> None:
    """Raise an `InputError` with file and line if the text contains U+0003 although `rule` uses it as the end mark."""
    if rule.end != END or END not in characters:
        return
    for document in corpus.documents:
        line = 1
        chunk: Any
        for chunk in corpus.read(document):
            end, newline = (b"\x03", b"\n") if isinstance(chunk, bytes) else (END, "\n")
            if (place := chunk.find(end)) >= 0:
                way = "remove it, or set data.documents=line or paragraph"
                raise _has_end_mark(document, line + chunk.count(newline, 0, place), way)
            line += chunk.count(newline)


def _has_end_mark(document: Document, line: int, way: str) -> InputError:
    return InputError(f"{document.label}, line {line:,}: contains U+0003, the end mark of documents; {way}")


def batches(corpus: Corpus, rule: Rule, tick: Tick) -> Iterator[Batch]:
    """Yield all documents of a corpus, without their end marks, in batches of about `BATCH` characters."""
    if rule.kind in ("file", "row"):
        read = _read_file if rule.kind == "file" else _read_rows
        held, size = [], 0
        for document in corpus.documents:
            for each in read(corpus, document, rule.name, tick):
                held.append(each)
                size += len(each)
                if size >= BATCH:
                    yield _joined(held, each[:0])
                    held, size = [], 0
        if held:
            yield _joined(held, held[0][:0])
        return
    for document in corpus.documents:
        yield from _cut_all(corpus.read(document, tick), _cut(rule))


def divide(text: Any, rule: Rule, label: str) -> list[Any]:
    """Divide the whole `text` of one file as `rule` says, and return a list of the documents that are not blank."""
    if rule.kind == "row":
        values = list(fields([text], label, rule.name))
        if line := next((line for line, value in values if END in value), 0):
            raise InputError(f"{label}, line {line:,}: contains U+0003, the end mark of documents; remove it")
        batch = _joined([value for _, value in values], "")
    elif rule.kind == "file":
        batch = _joined([text], text[:0])
    else:
        batch, _ = _cut(rule)(text, True)
    full = ~are_blank(batch)
    return [batch.text[a:b] for a, b in zip(batch.starts[full].tolist(), batch.ends[full].tolist(), strict=True)]


def is_divided(rule: Rule, label: str) -> bool:
    """Return whether the file `label` must go through `divide` before a model that was trained with `rule` reads it.

    The result is True if separators stand between the documents, or if the file is a table of which one field is read,
    because the model has never read separators or the syntax of tables. `label` is the file's name, whose suffix tells
    whether the file is a table.
    """
    return rule.kind == "part" or (rule.kind == "row" and suffix(label) in TABLES)


def _cut(rule: Rule) -> Cut:
    """Return the function that divides a text as `rule` says: into lines, paragraphs, or parts between separators."""
    return {"line": _cut_lines, "paragraph": _cut_paragraphs, "part": _cut_parts(rule.name)}[rule.kind]


def _cut_all(chunks: Iterable[Any], cut: Cut) -> Iterator[Batch]:
    """Divide a file, given in chunks, with the function `cut`, and yield its documents in batches."""
    held, size, wanted = [], 0, BATCH
    for chunk in chunks:
        held.append(chunk)
        size += len(chunk)
        if size >= wanted:
            batch, rest = cut(chunk[:0].join(held), False)
            yield batch
            # Doubling the batch until a document ends in it keeps the work linear in the document's length.
            held, size, wanted = [rest], len(rest), max(BATCH, 2 * len(rest))
    if size:
        yield cut(held[0][:0].join(held), True)[0]


def _cut_parts(separator: str) -> Cut:
    """Return a function that divides a text at each `separator` and strips line breaks from both ends of each part."""

    def cut(text: Any, last: bool) -> tuple[Batch, Any]:
        *parts, rest = text.split(separator.encode() if isinstance(text, bytes) else separator)
        if last and rest:
            parts.append(rest)
        edges = b"\r\n" if isinstance(text, bytes) else "\n"
        return _joined([part.strip(edges) for part in parts], text[:0]), rest

    return cut


def _cut_lines(text: Any, last: bool) -> tuple[Batch, Any]:
    """Return (the complete lines of a text as a batch, the incomplete line at its end)."""
    newline = b"\n" if isinstance(text, bytes) else "\n"
    if last and not text.endswith(newline):
        text += newline
    points = _points(text)
    breaks = np.flatnonzero(points == ord("\n"))
    starts = np.concatenate(([0], breaks + 1))
    rest = text[starts[-1] :]
    starts, ends = starts[:-1], breaks
    if isinstance(text, bytes):
        ends = breaks - ((points[breaks - 1] == ord("\r")) & (breaks > starts))
    return Batch(text, points, starts, ends), rest


def _cut_paragraphs(text: Any, last: bool) -> tuple[Batch, Any]:
    """Return (the complete paragraphs of a text as a batch, the incomplete text at its end)."""
    lines, rest = _cut_lines(text, last)
    full = ~are_blank(lines)
    begins = np.flatnonzero(full & ~np.concatenate(([False], full[:-1])))
    stops = np.flatnonzero(full & ~np.concatenate((full[1:], [False])))
    starts, ends = lines.starts[begins], lines.ends[stops]
    if not last and len(full) and full[-1]:  # the paragraph may have more lines
        rest = text[starts[-1] :]
        starts, ends = starts[:-1], ends[:-1]
    return lines._replace(starts=starts, ends=ends), rest


def _joined(documents: list[Any], empty: Any) -> Batch:
    """Join documents, without a separator, into one `Batch`."""
    text = empty.join(documents)
    sizes = np.fromiter(map(len, documents), np.int64, len(documents))
    ends = sizes.cumsum()
    return Batch(text, _points(text), ends - sizes, ends)


def _points(text: Any) -> np.ndarray:
    """Return the code points of a str or the values of bytes: (length,) uint8, or uint32 if the str is not ASCII."""
    if isinstance(text, bytes) or text.isascii():
        return np.frombuffer(text if isinstance(text, bytes) else text.encode("ascii"), np.uint8)
    return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)


def are_blank(batch: Batch) -> np.ndarray:
    """Return for each document of a batch whether it is empty or only whitespace: (documents,) bool."""
    text, points, starts, ends = batch
    blank = starts == ends
    if blank.all():
        return blank
    outer = SPACES.take(points.take(starts, mode="clip"), mode="clip")
    outer &= SPACES.take(points.take(ends - 1, mode="clip"), mode="clip")
    for place in np.flatnonzero(outer & ~blank):  # few documents begin and end with whitespace
        blank[place] = text[starts[place] : ends[place]].isspace()
    return blank


def _read_file(corpus: Corpus, document: Document, _: str, tick: Tick) -> Iterator[Any]:
    """Yield the whole content of a file as one document: a str or, with the byte tokenizer, bytes."""
    yield (b"" if corpus.encoding is None else "").join(corpus.read(document, tick))  # type: ignore[arg-type]


def _read_rows(corpus: Corpus, document: Document, field: str, tick: Tick) -> Iterator[Any]:
    """Yield the `field` of each row of a table as one document: a str or, with the byte tokenizer, bytes."""
    chunks = replace(corpus, encoding=corpus.encoding or "utf-8").read(document, tick)
    for line, value in fields(chunks, document.label, field):  # type: ignore[arg-type]
        if END in value:
            raise _has_end_mark(document, line, "remove it")
        yield value if corpus.encoding else value.encode()
