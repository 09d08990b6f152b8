"""Read one field of each row of a table (`data.field`): CSV, TSV, JSON, lines of JSON, Parquet."""

import csv
import io
import json
from collections.abc import Iterable, Iterator
from itertools import chain, islice
from typing import IO, Any

from base.errors import InputError, nearest, one_line, printable
from data.decoding import CHUNK, TABLE_FILES, Tick, decode, suffix

TABLES = (".csv", ".tsv", ".jsonl", ".ndjson", ".json", ".parquet")
QUOTES = 'a field that begins with a double quote ends at the next one: write "" for a quote in it'
SEARCHED = 1000  # rows of JSON of which at least one must have the field
BATCH = 2**10  # rows of Parquet that are read at once
MAX_ARRAY = 2**28  # bytes of a JSON array, which need several times their memory
Rows = Iterator[tuple[int, Any]]  # pairs (number of the line or, in an array and in Parquet, of the row; row)


def fields(file: IO[bytes], label: str, field: str, encoding: str, tick: Tick) -> Iterator[tuple[int, str]]:
    """Yield pairs (line number, text of the field) for each row of a table.

    The field of an object in a field is named like `review.text`. A list of texts or of messages is one text.
    """
    kind, line = suffix(label), 0
    where = f"{label}, {'row' if kind in ('.json', '.parquet') else 'line'} "
    if kind not in TABLES:
        allowed, way = ", ".join(f"*{end}" for end in TABLES), TABLE_FILES.get(kind, "")
        raise InputError(f"data.field={printable(field)}: reads {allowed}, but not {label}{way and '; '}{way}")
    chunks = iter(()) if kind == ".parquet" else decode(file, label, encoding, tick)
    try:
        if kind in (".csv", ".tsv"):
            found = _delimited(_lines(chunks), kind, field)
        else:
            rows = _parquet(file, label, field, tick) if kind == ".parquet" else _objects(chunks, kind)
            found = _values(rows, field)
        for line, value in found:
            value.encode()  # raises if it has half of a surrogate pair
            yield line, value.replace("\r\n", "\n").replace("\r", "\n")
    except UnicodeEncodeError:
        raise InputError(f"{where}{line:,}: has half of a surrogate pair, which is not a character") from None
    except _BadRow as error:
        what, line = error.args
        raise InputError(f"{where}{line:,}: {what}") from None


def columns(file: IO[bytes], label: str, encoding: str) -> list[str]:
    """Return the fields of a table's first row that `data.field` may name; none if it cannot be read."""
    kind, chunks = suffix(label), decode(file, label, encoding)
    try:
        if kind in (".csv", ".tsv"):
            return [name.strip() for name in next(_reader(_lines(chunks), kind), [])]
        first = next(chunks, "").lstrip()  # not the whole file, which may be one large array
        is_array = kind == ".json" and first.startswith("[")
        row, _ = json.JSONDecoder().raw_decode(first[1:].lstrip() if is_array else first.partition("\n")[0])
        return [name for name, value in _leaves(row) if _text(value) is not None]
    except (InputError, ValueError, RecursionError, csv.Error):
        return []


class _BadRow(Exception):
    """What is wrong, and the number of the line."""


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
    header = next(lines, "")
    delimiter = "\t" if kind == ".tsv" else max(",;\t", key=header.count)
    return csv.reader(chain([header], lines), delimiter=delimiter, strict=True)


def _delimited(lines: Iterator[str], kind: str, field: str) -> Iterator[tuple[int, str]]:
    """Yield pairs (number of the row's last line, text of `field`) for each row of a CSV or TSV file."""
    limit = csv.field_size_limit(2**31 - 1)  # a document may be long; the limit is global, so it is restored below
    rows = _reader(lines, kind)
    try:
        names = [name.strip() for name in next(rows, [])]
        if names.count(field) != 1:
            raise _BadRow(_no_field(field, names), 1)
        column = names.index(field)
        for row in rows:
            if any(row[len(names) :]):  # empty fields at the end of a row do no harm
                way = "put a field that contains the separator in double quotes"
                raise _BadRow(f"has {len(row):,} fields, but the first row has {len(names):,}; {way}", rows.line_num)
            if kind == ".tsv" and any("\t" in each and "\n" in each for each in row):
                raise _BadRow(f"a field spans several rows; {QUOTES}", rows.line_num)
            if row:  # a blank line is not a row
                yield rows.line_num, row[column] if len(row) > column else ""
    except csv.Error as error:
        raise _BadRow(f"cannot be read as a table: {one_line(error)}; {QUOTES}", rows.line_num) from None
    finally:
        csv.field_size_limit(limit)


def _objects(chunks: Iterator[str], kind: str) -> Rows:
    """Yield the rows of a JSON array (only in *.json) or of lines of JSON, except blank lines."""
    first = next(chunks, "").lstrip()
    chunks, number = chain([first], chunks), 1
    try:
        if kind == ".json" and first.startswith("["):
            text = "".join(islice(chunks, MAX_ARRAY // CHUNK))
            if next(chunks, ""):
                raise _BadRow(f"an array of over {MAX_ARRAY >> 20} MB is not read; write an object on each line", 1)
            yield from enumerate(json.loads(text), 1)
            return
        for number, line in enumerate(_lines(chunks), 1):
            if not line.isspace():
                yield number, json.loads(line)
    except (ValueError, RecursionError) as error:
        raise _BadRow(f"is not JSON: {one_line(error)}; write an object on each line", number) from None


def _parquet(file: IO[bytes], label: str, field: str, tick: Tick) -> Rows:
    """Yield the rows of a Parquet file, each with no other column than that of `field`."""
    try:
        import pyarrow
        from pyarrow.parquet import ParquetFile
    except ImportError:
        raise InputError(f"{label}: needs pyarrow: pip install -c constraints.txt -e '.[parquet]'") from None
    try:
        table, number, size = ParquetFile(file), 0, file.seek(0, io.SEEK_END)
        names = table.schema_arrow.names
        name = field if field in names else field.partition(".")[0]
        if name not in names:
            raise _BadRow(_no_field(field, names), 1)
        for batch in table.iter_batches(BATCH, columns=[name]):
            for value in batch.column(0).to_pylist():
                number += 1
                yield number, {name: value}
            tick(size * len(batch) // table.metadata.num_rows)
    except (pyarrow.ArrowException, OSError) as error:
        raise InputError(f"{label}: cannot be read as Parquet: {one_line(error)}") from None


def _values(rows: Rows, field: str) -> Iterator[tuple[int, str]]:
    """Yield pairs (number of the row, text of `field`), which is empty in a row without the field."""
    known, number, seen = False, 0, dict[str, None]()
    for index, (number, row) in enumerate(rows, 1):
        if not isinstance(row, dict):
            raise _BadRow("is not an object with fields", number)
        try:
            value, known = _at(row, field), True
        except KeyError:
            value = None
            seen |= dict.fromkeys(name for name, _ in _leaves(row))
            if not known and index >= SEARCHED:
                break
        text = _text(value)
        if text is None:
            inner = ", ".join(f"{field}.{name}" for name, _ in _leaves(value))
            what = f"an object; name one of its fields: {inner}" if inner else type(value).__name__
            raise _BadRow(f"data.field={field}: must be text, texts or messages, but is {what}", number)
        yield number, text
    if number and not known:
        raise _BadRow(_no_field(field, list(seen)), number)


def _at(row: dict[str, Any], field: str) -> Any:
    """Return the value of a field, such as `review.text`; a `KeyError` is raised if there is none."""
    name, _, rest = field.partition(".")
    if field not in row and rest and isinstance(row.get(name), dict):
        return _at(row[name], rest)
    return row[field]


def _leaves(row: Any) -> Iterator[tuple[str, Any]]:
    """Yield (name, value) of each field, and of the fields in it, like `review.text`."""
    for name, value in row.items() if isinstance(row, dict) else ():
        if isinstance(value, dict):
            yield from ((f"{name}.{inner}", each) for inner, each in _leaves(value))
        else:
            yield name, value


def _text(value: Any) -> str | None:
    """Return the text of a field: texts in a list are joined by newlines; None if the value has another type."""
    if isinstance(value, list):
        parts = [_message(each) for each in value]
        return None if None in parts else "\n".join(map(str, parts))
    return value if isinstance(value, str) else "" if value is None else None


def _message(value: Any) -> str | None:
    """Return a text, or a message such as {"role": "user", "content": "hi"} as `user: hi`."""
    if isinstance(value, dict):
        for role, content in (("role", "content"), ("from", "value")):
            text = _text(value.get(content))
            if isinstance(value.get(role), str) and text is not None:
                return f"{value[role]}: {text}"
        value = value.get("text")  # a part of a message
    return value if isinstance(value, str) else None


def _no_field(field: str, names: list[str]) -> str:
    if field in names:
        return f"data.field={printable(field)}: {names.count(field)} fields have this name; rename them"
    known = f"the fields are {', '.join(map(printable, names[:20]))}" if names else "there are no fields"
    return f"data.field={printable(field)}: no such field{nearest(field, names)}; {known}"
