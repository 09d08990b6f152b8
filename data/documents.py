"""Find the documents of a text: lines, paragraphs, files, parts between separators, or rows of a table.

The text may be far larger than memory, so documents are found in batches.
"""

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
WHITESPACE = ("line", "paragraph")  # kinds of documents that whitespace divides; their end marks are in the text
BATCH = 2**20  # characters that are divided into documents at once
SPACES = np.array([chr(point).isspace() for point in range(0x3002)])  # the last one is False and stands for all others


@dataclass(frozen=True)
class Rule:
    """How a text is divided into documents."""

    kind: str  # a document is a line, a paragraph, a file, a row of a table or, between separators, a part of a file
    end: str  # end mark: the characters after each document, such as a newline
    name: str = ""  # the separator of parts, or the field of a row

    @classmethod
    def of(cls, config: DataConfig) -> "Rule | None":
        """Return the rule of a configuration; None if the text is not divided."""
        if config.field is not None:
            return cls("row", END, config.field)
        if config.documents is None:
            return None
        if config.documents in DOCUMENT_KINDS:
            return cls(config.documents, {"line": "\n", "paragraph": "\n\n", "file": END}[config.documents])
        escapes = {r"\n": "\n", r"\t": "\t", r"\\": "\\"}  # as people type them
        return cls("part", END, re.sub(r"\\[nt\\]", lambda found: escapes[found[0]], config.documents))


@dataclass(frozen=True)
class Documents:
    """What a text was divided into."""

    rule: Rule
    counts: Mapping[str, int]  # number of documents of each split
    repeated: int  # how many of them equal another one that is counted before
    blank: int  # number of documents that were dropped because they contain only whitespace
    copied: int  # number of documents of own files for validation and test that equal one of training


class Batch(NamedTuple):
    """Documents, some of which may be blank."""

    text: Any  # str, or bytes with the byte tokenizer
    points: np.ndarray  # its code points or bytes
    starts: np.ndarray  # of each document in `text`, int64
    ends: np.ndarray


Cut = Callable[[Any, bool], tuple[Batch, Any]]  # text, whether it is the file's last -> batch, unfinished rest


def contents(corpus: Corpus, rule: Rule, tick: Tick) -> Iterator[Iterable[Any]]:
    """Yield texts in chunks that together have the characters of all documents, without separators."""
    if rule.kind in WHITESPACE:
        yield from (corpus.read(document, tick) for document in corpus.documents)
    else:
        yield (batch.text for batch in batches(corpus, rule, tick))


def check_end_mark(corpus: Corpus, rule: Rule, characters: str) -> None:
    """Raise an `InputError` that says where the text contains the end mark, if `characters` of the text do."""
    if rule.end != END or END not in characters:
        return
    for document in corpus.documents:
        line = 1
        chunk: Any
        for chunk in corpus.read(document):
            end, newline = (b"\x03", b"\n") if isinstance(chunk, bytes) else (END, "\n")
            if (place := chunk.find(end)) >= 0:
                way = "remove it, or use data.documents=line or paragraph"
                raise _has_end_mark(document, line + chunk.count(newline, 0, place), way)
            line += chunk.count(newline)


def _has_end_mark(document: Document, line: int, way: str) -> InputError:
    return InputError(f"{document.label}, line {line:,}: has the character U+0003, which ends a document; {way}")


def batches(corpus: Corpus, rule: Rule, tick: Tick) -> Iterator[Batch]:
    """Read the documents of a corpus in batches; a document has no end mark yet."""
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
    """Return the documents of a file that are not blank, as in training; `label` is the name of the file."""
    if rule.kind == "row":
        values = list(fields([text], label, rule.name))
        if line := next((line for line, value in values if END in value), 0):
            raise InputError(f"{label}, line {line:,}: has the character U+0003, which ends a document; remove it")
        batch = _joined([value for _, value in values], "")
    elif rule.kind == "file":
        batch = _joined([text], text[:0])
    else:
        batch, _ = _cut(rule)(text, True)
    full = ~are_blank(batch)
    return [batch.text[a:b] for a, b in zip(batch.starts[full].tolist(), batch.ends[full].tolist(), strict=True)]


def is_divided(rule: Rule, label: str) -> bool:
    """Whether what divides the file `label` into documents is in its text, but not in the model's vocabulary."""
    return rule.kind == "part" or (rule.kind == "row" and suffix(label) in TABLES)


def _cut(rule: Rule) -> Cut:
    """Return the function that cuts a text into documents."""
    return {"line": _cut_lines, "paragraph": _cut_paragraphs, "part": _cut_parts(rule.name)}[rule.kind]


def _cut_all(chunks: Iterable[Any], cut: Cut) -> Iterator[Batch]:
    """Cut a file into documents. The rest of a batch is the beginning of the next one."""
    held, size, wanted = [], 0, BATCH
    for chunk in chunks:
        held.append(chunk)
        size += len(chunk)
        if size >= wanted:
            batch, rest = cut(chunk[:0].join(held), False)
            yield batch
            # A batch doubles while a document does not end in it, so the work stays linear in the document's length.
            held, size, wanted = [rest], len(rest), max(BATCH, 2 * len(rest))
    if size:
        yield cut(held[0][:0].join(held), True)[0]


def _cut_parts(separator: str) -> Cut:
    """Return a function that cuts a text at a separator; a part has no line breaks at its ends."""

    def cut(text: Any, last: bool) -> tuple[Batch, Any]:
        *parts, rest = text.split(separator.encode() if isinstance(text, bytes) else separator)
        if last and rest:
            parts.append(rest)
        edges = b"\r\n" if isinstance(text, bytes) else "\n"
        return _joined([part.strip(edges) for part in parts], text[:0]), rest

    return cut


def _cut_lines(text: Any, last: bool) -> tuple[Batch, Any]:
    """Cut a text at its line breaks: a newline, in bytes also CR LF."""
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
    """Cut a text into runs of lines that are not blank."""
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
    """Make a batch of documents that lie side by side; `empty` is "" or b""."""
    text = empty.join(documents)
    sizes = np.fromiter(map(len, documents), np.int64, len(documents))
    ends = sizes.cumsum()
    return Batch(text, _points(text), ends - sizes, ends)


def _points(text: Any) -> np.ndarray:
    """Return the code points of a text as uint8 or uint32, or the bytes."""
    if isinstance(text, bytes) or text.isascii():
        return np.frombuffer(text if isinstance(text, bytes) else text.encode("ascii"), np.uint8)
    return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)


def are_blank(batch: Batch) -> np.ndarray:
    """Whether each document is empty or whitespace: (documents,) bool."""
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
    """Yield the whole content of a file."""
    yield (b"" if corpus.encoding is None else "").join(corpus.read(document, tick))  # type: ignore[arg-type]


def _read_rows(corpus: Corpus, document: Document, field: str, tick: Tick) -> Iterator[Any]:
    """Yield a field of each row of a table, as bytes with the byte tokenizer."""
    chunks = replace(corpus, encoding=corpus.encoding or "utf-8").read(document, tick)
    for line, value in fields(chunks, document.label, field):  # type: ignore[arg-type]
        if END in value:
            raise _has_end_mark(document, line, "remove it")
        yield value if corpus.encoding else value.encode()
