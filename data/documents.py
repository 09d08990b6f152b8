"""Divide a text into documents: lines, paragraphs, files, the text between separators, or rows of a table."""

import io
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from base.options import unescaped
from data.config import DOCUMENT_ENDS, END, DataConfig
from data.decoding import Corpus, Tick, suffix
from data.tables import TABLES, fields

BATCH = 2**20  # characters that are divided at once
# the last one is for higher code points, too
SPACES = np.array([chr(point).isspace() for point in range(0x3002)])


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


class Batch(NamedTuple):
    """Successive documents of a text: document i is `text[starts[i]:ends[i]]`."""

    text: Any  # a str, or bytes if the tokenizer is the byte tokenizer
    points: np.ndarray  # the code points or bytes of `text`, as an array
    starts: np.ndarray  # where each document begins in `text`, (documents,) int64
    ends: np.ndarray  # where each document ends in `text`, (documents,) int64
    blank: int = 0  # number of documents that were left out because they contain only whitespace


def contents(corpus: Corpus, rule: DocumentRule, tick: Tick) -> Iterator[Any]:
    """Yield a text in chunks, without separators between documents and the syntax of tables."""
    return (batch.text for batch in _batches(corpus, rule, tick))


def batches(corpus: Corpus, rule: DocumentRule, tick: Tick) -> Iterator[Batch]:
    """Yield the documents of a corpus that are not blank, without end marks, in batches of about `BATCH` characters."""
    return map(_without_blank, _batches(corpus, rule, tick))


def _batches(corpus: Corpus, rule: DocumentRule, tick: Tick) -> Iterator[Batch]:
    """Like `batches`, but blank documents are not left out."""
    empty: Any = "" if corpus.encoding else b""
    if rule.kind not in ("file", "row"):
        for source in corpus.files:
            yield from _cut_all(corpus.read(source, tick), rule, empty)
        return
    documents: list[Any] = []
    size = 0
    for document in _files_or_rows(corpus, rule, tick, empty):
        documents.append(document)
        size += len(document)
        if size >= BATCH:
            yield _joined(documents, empty)
            documents = []
            size = 0
    yield _joined(documents, empty)


def _files_or_rows(corpus: Corpus, rule: DocumentRule, tick: Tick, empty: Any) -> Iterator[Any]:
    """Yield each document of a corpus: a str or, with the byte tokenizer, bytes, of which `empty` is the empty one."""
    for source in corpus.files:
        if rule.kind == "file":
            yield empty.join(corpus.read(source, tick))
            continue
        with source.open() as file:
            for _, text in fields(file, source.label, rule.name, corpus.encoding or "utf-8", tick):
                yield text if corpus.encoding else text.encode()


def divide(text: Any, rule: DocumentRule, label: str) -> list[tuple[int, Any]]:
    """Divide the whole `text` of one file as `rule` says, without blank documents.

    Returns pairs (number of the line in which the document begins or, in JSON and Parquet, of its
    row; document).
    """
    if rule.kind == "row":
        raw = text if isinstance(text, bytes) else text.encode()
        pairs: list[tuple[int, Any]] = list(fields(io.BytesIO(raw), label, rule.name))
    elif rule.kind == "file":
        pairs = [(1, text)]
    elif rule.kind == "part":
        pairs = _numbered_parts(text, rule)
    else:
        batch, _ = _cut(text, rule, last=True)
        newlines = np.flatnonzero(batch.points == ord("\n"))
        lines = 1 + np.searchsorted(newlines, batch.starts)
        spans = zip(lines.tolist(), batch.starts.tolist(), batch.ends.tolist(), strict=True)
        pairs = [(line, batch.text[start:end]) for line, start, end in spans]
    return [(line, document) for line, document in pairs if document.strip()]


def _numbered_parts(text: Any, rule: DocumentRule) -> list[tuple[int, Any]]:
    """Return pairs: the line in which a document begins, from 1, and the document without line ends around it."""
    separator, newline, line_ends = _part_marks(text, rule)
    pairs = []
    line = 1
    for part in text.split(separator):
        document = part.lstrip(line_ends)
        skipped = part[: len(part) - len(document)]  # line ends before the document
        pairs.append((line + skipped.count(newline), document.rstrip(line_ends)))
        line += part.count(newline) + separator.count(newline)
    return pairs


def _part_marks(text: Any, rule: DocumentRule) -> tuple[Any, Any, Any]:
    """Return (separator, newline, characters of line ends) of the type of `text`."""
    if isinstance(text, bytes):
        return rule.name.encode(), b"\n", b"\r\n"
    return rule.name, "\n", "\n"


def is_divided(rule: DocumentRule, label: str) -> bool:
    """Return whether the file `label` must be divided before a model of `rule` reads it.

    The model was trained without separators and the syntax of a table.
    """
    return rule.kind == "part" or (rule.kind == "row" and suffix(label) in TABLES)


def _cut_all(chunks: Iterable[Any], rule: DocumentRule, empty: Any) -> Iterator[Batch]:
    """Divide a file, given in chunks, and yield its documents in batches."""
    pieces: list[Any] = []  # of the next batch
    size = 0
    full_size = BATCH
    for chunk in chunks:
        pieces.append(chunk)
        size += len(chunk)
        if size < full_size:
            continue
        batch, rest = _cut(empty.join(pieces), rule, last=False)
        yield batch
        pieces = [rest]
        size = len(rest)
        # Doubling the batch until a document ends in it keeps the work linear in the document's
        # length.
        full_size = max(BATCH, 2 * size)
    if size:
        batch, _ = _cut(empty.join(pieces), rule, last=True)
        yield batch


def _cut(text: Any, rule: DocumentRule, *, last: bool) -> tuple[Batch, Any]:
    """Return (the complete documents of a text, the rest); if the text is the `last`, all are complete."""
    if rule.kind == "line":
        return _cut_lines(text, last)
    if rule.kind == "paragraph":
        return _cut_paragraphs(text, last)
    separator, _, line_ends = _part_marks(text, rule)
    *parts, rest = text.split(separator)
    if last and rest:
        parts.append(rest)
    documents = [part.strip(line_ends) for part in parts]
    empty = text[:0]  # "" or b""
    return _joined(documents, empty), rest


def _cut_lines(text: Any, last: bool) -> tuple[Batch, Any]:
    """Return (the complete lines of a text as a batch, the incomplete line at its end)."""
    newline = b"\n" if isinstance(text, bytes) else "\n"
    if last and not text.endswith(newline):
        text += newline
    points = _points(text)
    breaks = np.flatnonzero(points == ord("\n"))
    line_starts = np.concatenate(([0], breaks + 1))
    rest = text[line_starts[-1] :]
    starts = line_starts[:-1]
    ends = breaks
    if isinstance(text, bytes):  # in a str, all line ends are LF
        has_return = (points[breaks - 1] == ord("\r")) & (breaks > starts)
        ends = breaks - has_return
    return Batch(text, points, starts, ends), rest


def _cut_paragraphs(text: Any, last: bool) -> tuple[Batch, Any]:
    """Return (the complete paragraphs of a text as a batch, the incomplete text at its end)."""
    lines, rest = _cut_lines(text, last)
    full = ~_are_blank(lines)
    is_first = full & ~np.concatenate(([False], full[:-1]))  # of a paragraph
    is_last = full & ~np.concatenate((full[1:], [False]))
    starts = lines.starts[is_first]
    ends = lines.ends[is_last]
    if not last and len(full) and full[-1]:  # the paragraph may have more lines
        rest = text[starts[-1] :]
        starts = starts[:-1]
        ends = ends[:-1]
    return lines._replace(starts=starts, ends=ends), rest


def _joined(documents: list[Any], empty: Any) -> Batch:
    """Join documents, without a separator, into one `Batch`."""
    text = empty.join(documents)
    sizes = np.fromiter(map(len, documents), np.int64, len(documents))
    ends = sizes.cumsum()
    return Batch(text, _points(text), ends - sizes, ends)


def _points(text: Any) -> np.ndarray:
    """Return the code points of a str or the values of bytes: (length,) uint8, or uint32 if the str is not ASCII."""
    if isinstance(text, bytes):
        return np.frombuffer(text, np.uint8)
    if text.isascii():
        return np.frombuffer(text.encode("ascii"), np.uint8)
    return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)


def _without_blank(batch: Batch) -> Batch:
    full = ~_are_blank(batch)
    if full.all():
        return batch
    return batch._replace(
        starts=batch.starts[full], ends=batch.ends[full], blank=int((~full).sum())
    )


def _are_blank(batch: Batch) -> np.ndarray:
    """Return for each document of a batch whether it is empty or only whitespace: (documents,) bool."""
    text, points, starts, ends, _ = batch
    blank = starts == ends
    if blank.all():
        return blank
    # "clip" because an empty document may begin at the end of the text, or end at 0.
    outer = SPACES.take(points.take(starts, mode="clip"), mode="clip")
    outer &= SPACES.take(points.take(ends - 1, mode="clip"), mode="clip")
    for place in np.flatnonzero(outer & ~blank):  # few documents begin and end with whitespace
        blank[place] = text[starts[place] : ends[place]].isspace()
    return blank
