"""Read the fields of each row of a table or JSON tree (`data.field`): CSV, TSV, JSON, lines of JSON, Parquet."""

import csv
import io
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, islice, zip_longest
from typing import IO, Any

from base.errors import InputError, nearest, one_line, printable
from base.options import unescaped
from data.decoding import CHUNK, TABLE_FILES, Tick, decode, suffix

TABLES = (".csv", ".tsv", ".jsonl", ".ndjson", ".json", ".parquet")
QUOTES = 'a field that begins with a double quote ends at the next one: write "" for a quote in it'
SEARCHED = 1000  # rows of which at least one must have the field
BATCH = 2**10  # rows of Parquet that are read at once
MAX_TREE = 2**28  # bytes of JSON that is not in lines, which need several times their memory
TEMPLATE = re.compile(r"(\{\{|\}\})|\{([^{}!:]+)\}")  # a brace of the text, or a field
TOKEN = re.compile(r'"(?:\\.|[^"\\])*"?|[][{}]')  # of JSON: a string, which may be cut off, or a bracket
CLOSING = {"{": "}", "[": "]"}
MISSING = object()  # the value of a field that a row lacks
Rows = Iterator[tuple[int, Any]]  # pairs (number of the line, or 0 in JSON without lines and in Parquet; row)


def fields(file: IO[bytes], label: str, field: str, encoding: str, tick: Tick) -> Iterator[tuple[int, str]]:
    """Yield pairs (number of the line or row, text) for each row of a table, as `data.field` says.

    `messages.text` is followed through objects and into each element of a list: each text is a row. In a template,
    `{from}: {text}`, a name stands in braces; `messages: {from}: {text}` first names the list of the rows. In a row, a
    field that is a list is one text.
    """
    kind, line = suffix(label), 0
    where = f"{label}, {'row' if kind in ('.json', '.parquet') else 'line'} "
    if kind not in TABLES:
        allowed, way = ", ".join(f"*{end}" for end in TABLES), TABLE_FILES.get(kind, "")
        raise InputError(f"data.field={printable(field)}: reads {allowed}, but not {label}{way and '; '}{way}")
    wanted = Field.parse(field)
    try:
        chunks = decode(file, label, encoding, tick)  # reads nothing yet
        if kind == ".parquet":
            rows = _parquet(file, label, wanted, tick)
        elif kind in (".csv", ".tsv"):
            rows = _delimited(_lines(chunks), kind, wanted.names)
        else:
            rows = _objects(chunks, kind)
        for line, value in _texts(rows, wanted):
            value.encode()  # raises if it has half of a surrogate pair
            yield line, value.replace("\r\n", "\n").replace("\r", "\n")
    except UnicodeEncodeError:
        raise InputError(f"{where}{line:,}: has half of a surrogate pair, which is not a character") from None
    except _BadRow as error:
        what, line = error.args
        raise InputError(f"{where}{line:,}: {what}") from None


def columns(file: IO[bytes], label: str, encoding: str) -> list[str]:
    """Return what `data.field` may name in a table: fields of text that occur several times; none if unreadable."""
    kind, chunks = suffix(label), decode(file, label, encoding)
    try:
        if kind in (".csv", ".tsv"):
            return [name.strip() for name in next(_reader(_lines(chunks), kind), [])]
        text = "".join(islice(chunks, 2**20 // CHUNK))  # the first megabyte, cut after the last bracket that closes
        closing = unclosed = ""
        end = 0
        for token in TOKEN.finditer(text):
            if token[0] in CLOSING:
                unclosed = CLOSING[token[0]] + unclosed
            elif token[0] in "}]":
                unclosed = unclosed[1:]
                closing = unclosed
                end = token.end()
        rows = re.sub(r"}\s*\n\s*{", "},{", text[:end])  # of lines
        counts = Counter(_paths(json.loads(f"[{rows}{closing}]")))
        return [path for path, number in counts.items() if number > 1]
    except (InputError, ValueError, RecursionError, csv.Error):
        return []


class _BadRow(Exception):
    """What is wrong, and the number of the line."""


@dataclass(frozen=True)
class Field:
    """A value of `data.field`: a path such as `messages.text`, or a template such as `messages: {from}: {text}`."""

    names: list[str]  # the paths of its fields
    pattern: str = ""  # of a template: `{}: {}`
    head: str = ""  # what precedes the first colon of a template, which may name the list whose elements are the rows

    @classmethod
    def parse(cls, text: str) -> "Field":
        r"""Return a field; in a template, `\n` is a line break and a doubled brace a brace."""
        names = [name for _, name in TEMPLATE.findall(text) if name]
        if re.search("[{}]", TEMPLATE.sub("", text)):
            way = "braces must hold the name of a field; write {{ for a brace"
            raise InputError(f"data.field={printable(text)}: {way}")
        if not names:
            return cls([text.format()])
        pattern = TEMPLATE.sub(lambda part: part[1] or "{}", unescaped(text))
        head, colon, _ = pattern.partition(": ")
        has_head = bool(colon) and head not in names  # `tags: {tags}` is a text about a list
        return cls(names, pattern, head if has_head else "")

    def of_list(self) -> "Field":
        """Return the template without its head, which names a list."""
        return Field(self.names, self.pattern.removeprefix(f"{self.head}: "))

    def values(self, row: Any) -> list[list[Any]]:
        """Return the values of the fields for each text that a row contains."""
        if not self.pattern:
            return [[value] for value in _follow(row, self.names[0])]
        values = []
        for name in self.names:
            inner = _follow(row, name)
            values.append(inner[0] if len(inner) == 1 else inner)
        return [values]

    def text(self, values: list[Any], prefix: str, number: int) -> str:
        """Return the text of a row from the values of its fields, empty if they are."""
        texts = []
        for name, value in zip(self.names, values, strict=True):
            if self.pattern and isinstance(value, int | float):
                value = str(value)
            text = _text(value)
            if text is None:
                path = prefix + name
                inner = ", ".join(dict.fromkeys(_paths(value, path)))
                what = f"has its own fields: {inner}" if inner else f"is {type(value).__name__}"
                raise _BadRow(f"data.field={path}: must be text, texts or messages, but {what}", number)
            texts.append(text)
        if not any(map(str.strip, texts)):
            return ""
        return self.pattern.format(*texts) if self.pattern else texts[0]


def _lines(chunks: Iterable[str]) -> Iterator[str]:
    """Yield the lines of a file whose content is given in `chunks`, each line with its newline."""
    held: list[str] = []
    for chunk in chunks:
        *whole, rest = chunk.split("\n")
        for line in whole:
            yield "".join((*held, line, "\n"))
            held = []
        held.append(rest)
    if any(held):
        yield "".join(held)


def _reader(lines: Iterator[str], kind: str) -> Any:
    first = next(lines, "")
    declared = re.fullmatch('(?i)"?sep=(.)"?\n', first)  # Excel's line before the header
    delimiter = "\t" if kind == ".tsv" else max(",;\t", key=first.count)
    if declared:
        delimiter = declared[1]
    reader = csv.reader(chain([first], lines), delimiter=delimiter, strict=True)
    if declared:
        next(reader)
    return reader


def _delimited(lines: Iterator[str], kind: str, wanted: list[str]) -> Rows:
    """Yield pairs (number of the row's first line, its fields by name) for each row of a CSV or TSV file."""
    limit = csv.field_size_limit(2**31 - 1)  # a document may be long; the limit is global, so it is restored below
    rows = _reader(lines, kind)
    try:
        names = [name.strip() for name in next(rows, [])]
        for name in wanted:
            if names.count(name) != 1:
                raise _BadRow(_no_field(name, names), rows.line_num or 1)
        line = rows.line_num + 1
        for row in rows:
            if any(row[len(names) :]):  # empty fields at the end of a row do no harm
                way = "put a field that contains the separator in double quotes"
                raise _BadRow(f"has {len(row):,} fields, but the first row has {len(names):,}; {way}", rows.line_num)
            if kind == ".tsv" and any("\t" in each and "\n" in each for each in row):
                raise _BadRow(f"a field spans several rows; {QUOTES}", rows.line_num)
            if row:  # a blank line is not a row
                yield line, dict(zip_longest(names, row))
            line = rows.line_num + 1
    except csv.Error as error:
        raise _BadRow(f"cannot be read as a table: {one_line(error)}; {QUOTES}", rows.line_num) from None
    finally:
        csv.field_size_limit(limit)


def _objects(chunks: Iterator[str], kind: str) -> Rows:
    """Yield the rows of a JSON array or object over lines (only in *.json) or of lines of JSON, except blank lines."""
    first = next(chunks, "").lstrip()
    chunks, number = chain([first], chunks), 1
    line, newline, _ = first.partition("\n")
    try:
        if kind == ".json" and (first.startswith("[") or newline and not line.rstrip().endswith("}")):
            text = "".join(islice(chunks, MAX_TREE // CHUNK))
            if next(chunks, ""):
                raise _BadRow(f"JSON of over {MAX_TREE >> 20} MB is only read if it has an object on each line", 1)
            tree = json.loads(text)
            yield from ((0, row) for row in (tree if isinstance(tree, list) else [tree]))
            return
        for number, line in enumerate(_lines(chunks), 1):
            if not line.isspace():
                yield number, json.loads(line)
    except (ValueError, RecursionError) as error:
        raise _BadRow(f"is not JSON: {one_line(error)}; write an object on each line", number) from None


def _parquet(file: IO[bytes], label: str, field: Field, tick: Tick) -> Rows:
    """Yield the rows of a Parquet file, with the columns of the fields or, if one is not a column, with all."""
    try:
        import pyarrow
        from pyarrow.parquet import ParquetFile
    except ImportError:
        raise InputError(f"{label}: needs pyarrow: pip install -c constraints.txt -e '.[parquet]'") from None
    try:
        table, size = ParquetFile(file), file.seek(0, io.SEEK_END)
        names = table.schema_arrow.names
        needed = {name if name in names else name.partition(".")[0] for name in field.names}
        needed |= {field.head} & set(names)
        for batch in table.iter_batches(BATCH, columns=list(needed) if needed <= set(names) else None):
            yield from ((0, row) for row in batch.to_pylist())
            tick(size * len(batch) // table.metadata.num_rows)
    except (pyarrow.ArrowException, OSError) as error:
        raise InputError(f"{label}: cannot be read as Parquet: {one_line(error)}") from None


def _texts(rows: Rows, field: Field) -> Iterator[tuple[int, str]]:
    """Yield pairs (number of the row, its text), which is empty if all its fields are."""
    head = field.head
    prefix = ""  # of the names of the fields in messages
    lacking = field.names
    seen = dict[str, None]()
    number = index = 0
    for line, row in rows:
        if not isinstance(row, dict):
            raise _BadRow("is not an object with fields", line or index + 1)
        elements = _follow(row, head) if head else []
        if any(isinstance(each, list) for each in elements):
            if not prefix:  # the head names the list, so it is not part of the text
                field = field.of_list()
                prefix = f"{head}."
            records = [record for each in elements if isinstance(each, list) for record in each]
        else:
            records = [row]
        for record in records:
            for values in field.values(record):
                index += 1
                number = line or index
                yield number, field.text(values, prefix, number)
            lacking = [name for name in lacking if all(each is MISSING for each in _follow(record, name))]
        if lacking:
            seen |= dict.fromkeys(_paths(row))
            if index >= SEARCHED:
                break
    if index and lacking:
        raise _BadRow(_no_field(prefix + lacking[0], list(seen)), number)


def _follow(value: Any, path: str) -> list[Any]:
    """Return the values at a path such as `messages.text`, in which a key may contain a dot."""
    if isinstance(value, list):
        return [inner for each in value for inner in _follow(each, path)]
    if not isinstance(value, dict):
        return [MISSING]
    if path in value or "." not in path:
        return [value.get(path, MISSING)]
    name, _, rest = path.partition(".")
    return _follow(value.get(name), rest)


def _paths(value: Any, path: str = "") -> Iterator[str]:
    """Yield the path to each text in an object or a list."""
    if isinstance(value, list):
        for each in value:
            yield from _paths(each, path)
    elif isinstance(value, dict):
        for name, inner in value.items():
            inner_path = f"{path}.{name}" if path else name
            parts = inner if isinstance(inner, list) else [inner]
            if _text(inner) is None or all(map(_is_piece, parts)):
                yield from _paths(inner, inner_path)
            else:
                yield inner_path


def _is_piece(value: Any) -> bool:
    return isinstance(value, dict) and value.keys().isdisjoint(("role", "from"))  # which a message has


def _text(value: Any) -> str | None:
    """Return a text; pieces in a list are joined as they are, texts and messages by newlines; None if it is not a text.

    A message such as {"role": "user", "content": "hi"} is `user: hi`.
    """
    if isinstance(value, list):
        parts = [_text(each) for each in value]
        separator = "" if any(map(_is_piece, value)) else "\n"
        return None if None in parts else separator.join(map(str, parts))
    if isinstance(value, dict):
        if _is_piece(value):
            return _text(value.get("text", 0))
        content = value.get("content") if "role" in value else value.get("value", 0)
        text = _text(content)
        return None if text is None else f"{value.get('role', value.get('from'))}: {text}"
    if value in (None, MISSING):
        return ""
    return value if isinstance(value, str) else None


def _no_field(field: str, names: list[str]) -> str:
    if field in names:
        return f"data.field={printable(field)}: {names.count(field)} fields have this name; rename them"
    known = f"the fields are {', '.join(map(printable, names[:20]))}" if names else "there are no fields"
    return f"data.field={printable(field)}: no such field{nearest(field, names)}; {known}"
