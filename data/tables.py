"""Read the fields of each row of a table (`data.field`): CSV, TSV, JSON, lines of JSON, Parquet."""

import csv
import json
import re
from collections.abc import Iterator
from itertools import chain, repeat, zip_longest
from typing import IO, Any

from base.errors import InputError, nearest, one_line, printable
from base.options import unescaped
from data.read import Tick, decode, lines, no_tick, suffix

TABLES = (".csv", ".tsv", ".jsonl", ".ndjson", ".json", ".parquet")
TEMPLATE = re.compile(r"\{\{|\}\}|\{([^{}]+)\}")  # a brace of the text, or a field
BATCH = 2**10  # rows of Parquet that are read at once
KNOWN = 20  # fields that an error names
# pairs (number of the line, or 0 in JSON without lines and in Parquet; row, or why it cannot be read)
Rows = Iterator[tuple[int, Any]]


def fields(
    file: IO[bytes], label: str, field: str, encoding: str = "utf-8", tick: Tick = no_tick
) -> Iterator[tuple[int, str]]:
    """Yield pairs (number of the line or row, text) for each row of a table, as `data.field` says.

    `messages.text` is followed through objects and into each element of a list: each text is a
    row. In a template, `{from}: {text}`, a name stands in braces; `messages: {from}: {text}` first
    names the list of the rows. In a row, a field that is a list is one text.
    """
    kind = suffix(label)
    if kind not in TABLES:
        reason = f"reads *{', *'.join(TABLES)}, but not {label}"
        raise InputError(reason, f"data.field={printable(field)}")
    names = [name for name in TEMPLATE.findall(field) if name]
    pattern = TEMPLATE.sub(lambda part: "{}" if part[1] else part[0], unescaped(field))
    known = set[str]()  # names of fields that rows have
    rest = lines(decode(file, label, encoding, tick))  # reads nothing yet
    if kind == ".parquet":
        rows = _parquet(file, label, field, known)
    elif kind in (".csv", ".tsv"):
        rows = _delimited(rest, kind)
    else:
        rows = _objects(rest, kind)
    texts = 0
    for line, row in rows:
        try:
            for text in _texts(row, field, names, pattern, known):
                text.encode()  # raises if it has half of a surrogate pair
                texts += 1
                text = text.replace("\r\n", "\n").replace("\r", "\n")
                yield line or texts, "" if text.isspace() else text
        except ValueError as error:
            place = f"line {line:,}" if line else f"row {texts + 1:,}"
            raise InputError(f"{label}, {place}: {one_line(error)}") from None
    for name in names or [field]:
        if texts and name not in known:
            reason = f"{name}: no such field{nearest(name, known)}; the fields are "
            allowed = ", ".join(sorted(known)[:KNOWN])
            raise InputError(f"{label}: data.field={printable(reason + allowed)}")


def _delimited(rest: Iterator[str], kind: str) -> Rows:
    """Yield pairs (number of the row's first line, its fields by name) for each row of a CSV or TSV file."""
    csv.field_size_limit(2**31 - 1)  # a document may be long
    header = next(rest, "")
    delimiter = "\t" if kind == ".tsv" else max(",;\t", key=header.count)
    ended = (f"{line}\n" for line in chain([header], rest))
    rows = csv.reader(ended, delimiter=delimiter, strict=True)
    try:
        names = [name.strip() for name in next(rows)]
        line = rows.line_num + 1
        for row in rows:
            if any(row[len(names) :]):  # empty fields at the end of a row do no harm
                reason = "has more fields than the first row; quote one that has the separator"
                yield rows.line_num, ValueError(reason)
            if kind == ".tsv" and any("\t" in field and "\n" in field for field in row):
                yield line, ValueError("begins a field that spans several rows; quote each quote")
            if row:  # a blank line is not a row
                yield line, dict(zip_longest(names, row[: len(names)]))
            line = rows.line_num + 1
    except csv.Error as error:
        reason = f'cannot be read as a table: {error}; write "" for a quote in a quoted field'
        yield rows.line_num, ValueError(reason)


def _objects(rest: Iterator[str], kind: str) -> Rows:
    """Yield the rows of lines of JSON or, only in *.json, of an array or an object over several lines."""
    number = 0
    try:
        for number, line in enumerate(map(str.strip, rest), 1):
            if kind == ".json" and not re.fullmatch("{.*}|", line):
                tree = json.loads("\n".join([line, *rest]))
                yield from zip(repeat(0), tree if isinstance(tree, list) else [tree])
            elif line:
                yield number, json.loads(line)
    except InputError:  # of the encoding
        raise
    except (ValueError, RecursionError) as error:
        yield number, ValueError(f"is not JSON: {error}; write an object on each line")


def _parquet(file: IO[bytes], label: str, field: str, known: set[str]) -> Rows:
    """Yield the rows of a Parquet file, with the columns that `field` names, and note which columns it has."""
    try:
        import pyarrow
        from pyarrow.parquet import ParquetFile

        table = ParquetFile(file)
        known.update(table.schema_arrow.names)
        columns = [name for name in known if name in field]
        for batch in table.iter_batches(BATCH, columns=columns):
            yield from zip(repeat(0), batch.to_pylist())
    except ImportError:
        reason = "needs pyarrow: pip install -c constraints.txt -e '.[parquet]'"
        raise InputError(reason, label) from None
    except (pyarrow.ArrowException, OSError) as error:
        raise InputError(f"cannot be read as Parquet: {one_line(error)}", label) from None


def _texts(row: Any, field: str, names: list[str], pattern: str, known: set[str]) -> Iterator[str]:
    """Yield the texts of a row, each empty if all its fields are, and note in `known` which fields it has."""
    if isinstance(row, ValueError):
        raise row
    if not isinstance(row, dict):
        raise ValueError("is not an object with fields")
    if not names:  # a path
        yield from map(_text, _follow(row, field, known))
        return
    records = [row]
    head = field.partition(": ")[0]  # may name the list of the rows
    lists = [value for value in _follow(row, head, set()) if isinstance(value, list)]
    if lists and head not in names:  # `tags: {tags}` is a text about a list
        pattern = pattern.removeprefix(f"{head}: ")
        records = list(chain(*lists))
    for record in records:
        texts = [_text(_follow(record, name, known)) for name in names]
        yield pattern.format(*texts) if any(map(str.strip, texts)) else ""


def _follow(value: Any, path: str, known: set[str], prefix: str = "") -> list[Any]:
    """Return the values at a path such as `messages.text`, in which a key may contain a dot; None is a missing one."""
    if isinstance(value, list):
        return [each for element in value for each in _follow(element, path, known, prefix)]
    if not isinstance(value, dict):
        return [None]
    if path in value:
        known.add(prefix + path)
        return [value[path]]
    if len(known) < KNOWN:
        known.update(prefix + name for name in value)
    name, _, rest = path.partition(".")
    return _follow(value.get(name), rest, known, f"{prefix}{name}.")


def _text(value: Any) -> str:
    """Return a text; a list becomes lines, a message such as {"role": "user", "content": "hi"} is `user: hi`."""
    match value:
        case None:
            return ""
        case str() | int() | float():
            return str(value)
        case list():
            return "\n".join(map(_text, value))
        case {"role": speaker}:
            return f"{speaker}: {_text(value.get('content'))}"
        case {"from": speaker, "value": content}:
            return f"{speaker}: {_text(content)}"
        case {"text": text} if "from" not in value:  # a part of a message
            return _text(text)
    raise ValueError(
        f"data.field must lead to text, texts or messages, not to {type(value).__name__}"
    )
