"""Read one field of each row of a table (`data.field`): CSV, TSV or lines of JSON."""

import csv
import json
from collections.abc import Iterable, Iterator
from itertools import chain

from base.errors import InputError, nearest, one_line, printable
from data.decoding import suffix

TABLES = (".csv", ".tsv", ".jsonl", ".ndjson")
QUOTES = 'a field that begins with a double quote ends at the next one: write "" for a quote in it'


def fields(chunks: Iterable[str], label: str, field: str) -> Iterator[tuple[int, str]]:
    """Yield pairs (line number, text of the field) for each row of a table."""
    kind = suffix(label)
    if kind not in TABLES:
        allowed = ", ".join(f"*{end}" for end in TABLES)
        raise InputError(f"data.field={printable(field)}: reads {allowed}, but not {label}")
    line, lines = 0, _lines(chunks)
    try:
        for line, value in _delimited(lines, kind, field) if kind in (".csv", ".tsv") else _json_lines(lines, field):
            value.encode()  # raises if it has half of a surrogate pair
            yield line, value.replace("\r\n", "\n").replace("\r", "\n")
    except UnicodeEncodeError:
        raise InputError(f"{label}, line {line:,}: has half of a surrogate pair, which is not a character") from None
    except _BadRow as error:
        raise InputError(f"{label}, line {error.line:,}: {error}") from None


class _BadRow(Exception):
    def __init__(self, reason: str, line: int) -> None:
        super().__init__(reason)
        self.line = line


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


def _delimited(lines: Iterator[str], kind: str, field: str) -> Iterator[tuple[int, str]]:
    """Yield pairs (number of the row's last line, text of `field`) for each row of a CSV or TSV file."""
    header = next(lines, "")
    limit = csv.field_size_limit(2**31 - 1)  # a document may be long; the limit is global, so it is restored below
    delimiter = "\t" if kind == ".tsv" else max(",;\t", key=header.count)
    rows = csv.reader(chain([header], lines), delimiter=delimiter, strict=True)
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


def _json_lines(lines: Iterator[str], field: str) -> Iterator[tuple[int, str]]:
    """Yield pairs (line number, text of `field`) for each line of a file of JSON objects, except blank lines."""
    known = False
    for number, line in enumerate(lines, 1):
        if line.isspace():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise _BadRow(f"is not JSON: {one_line(error)}", number) from None
        if not isinstance(row, dict) or not (known or field in row):
            raise _BadRow(_no_field(field, list(row) if isinstance(row, dict) else []), number)
        known, value = True, row.get(field)
        if not isinstance(value, str | None):
            raise _BadRow(f"data.field={field}: must be text, but is {type(value).__name__}", number)
        yield number, value or ""


def _no_field(field: str, names: list[str]) -> str:
    if field in names:
        return f"data.field={printable(field)}: {names.count(field)} fields have this name; rename them"
    known = f"the fields are {', '.join(map(printable, names[:20]))}" if names else "there are no fields"
    return f"data.field={printable(field)}: no such field{nearest(field, names)}; {known}"
