"""Read the fields of each row of a table or JSON tree (`data.field`): CSV, TSV, JSON, lines of JSON, Parquet."""

import csv
import io
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import chain, islice, repeat, zip_longest
from typing import IO, Any

from base.errors import InputError, nearest, one_line, printable
from base.options import unescaped
from data.config import END
from data.read import CHUNK, WAYS, Tick, decode, suffix

TABLES = (".csv", ".tsv", ".jsonl", ".ndjson", ".json", ".parquet")
QUOTES = 'a field that begins with a double quote ends at the next one: write "" for a quote in it'
SEARCHED = 1000  # rows of which at least one must have the field
BATCH = 2**10  # rows of Parquet that are read at once
MAX_TREE = 2**28  # bytes of JSON that is not in lines, which need several times their memory
TEMPLATE = re.compile(r"(\{\{|\}\})|\{([^{}!:]+)\}")  # a brace of the text, or a field
# of JSON: a string, which may be cut off, or a bracket
TOKEN = re.compile(r'"(?:\\.|[^"\\])*"?|[][{}]')
CLOSING = {"{": "}", "[": "]"}
MISSING = object()  # the value of a field that a row lacks
# pairs (number of the line, or 0 in JSON without lines and in Parquet; row)
Rows = Iterator[tuple[int, Any]]


def fields(
    file: IO[bytes],
    label: str,
    field: str,
    encoding: str = "utf-8",
    tick: Tick = lambda size: None,
) -> Iterator[tuple[int, str]]:
    """Yield pairs (number of the line or row, text) for each row of a table, as `data.field` says.

    `messages.text` is followed through objects and into each element of a list: each text is a
    row. In a template, `{from}: {text}`, a name stands in braces; `messages: {from}: {text}` first
    names the list of the rows. In a row, a field that is a list is one text.
    """
    kind = suffix(label)
    if kind not in TABLES:
        allowed = ", ".join(f"*{end}" for end in TABLES)
        reason = f"data.field={printable(field)}: reads {allowed}, but not {label}"
        raise InputError(reason, advice=WAYS.get(kind, ""))
    parsed = Field.parse(field)
    unit = "row" if kind in (".json", ".parquet") else "line"
    chunks = decode(file, label, encoding, tick)  # reads nothing yet
    if kind == ".parquet":
        rows = _parquet(file, label, parsed, tick)
    elif kind in (".csv", ".tsv"):
        rows = _delimited(_lines(chunks), kind, parsed.names)
    else:
        rows = _objects(chunks, kind)
    number = 0
    try:
        for number, text in _texts(rows, parsed):
            text.encode()  # raises if it has half of a surrogate pair
            if END in text:
                raise _BadRow("contains U+0003, the end mark of documents; remove it", number)
            yield number, text.replace("\r\n", "\n").replace("\r", "\n")
    except UnicodeEncodeError:
        reason = "has half of a surrogate pair, which is not a character"
        raise InputError(f"{label}, {unit} {number:,}: {reason}") from None
    except _BadRow as error:
        reason, number = error.args
        raise InputError(f"{label}, {unit} {number:,}: {reason}") from None


def columns(file: IO[bytes], label: str, encoding: str) -> list[str]:
    """Return what `data.field` may name: the header of CSV, or paths of text in JSON; none of an unreadable file."""
    kind = suffix(label)
    chunks = decode(file, label, encoding)
    try:
        if kind in (".csv", ".tsv"):
            return _header(_reader(_lines(chunks), kind))
        # In JSON, a path that occurs once does not lead to the documents of a list.
        first_megabyte = "".join(islice(chunks, 2**20 // CHUNK))
        counts = Counter(_paths(_parse_beginning(first_megabyte)))
        return [path for path, number in counts.items() if number > 1]
    except (InputError, ValueError, RecursionError, csv.Error):
        return []


def _parse_beginning(text: str) -> Any:
    """Parse the beginning of JSON, or of lines of JSON, up to the last bracket that closes."""
    unclosed = ""  # the brackets that close what is open, the innermost first
    closing = ""  # `unclosed` at `end`
    end = 0  # after the last bracket that closes
    for token in TOKEN.finditer(text):
        bracket = token[0]  # or a string, in which brackets do not count
        if bracket in CLOSING:
            unclosed = CLOSING[bracket] + unclosed
        elif bracket in "}]":
            unclosed = unclosed[1:]
            closing = unclosed
            end = token.end()
    rows = re.sub(r"}\s*\n\s*{", "},{", text[:end])  # separates lines of JSON by commas
    return json.loads(f"[{rows}{closing}]")


class _BadRow(Exception):
    """What is wrong, and the number of the line."""


@dataclass(frozen=True)
class Field:
    """A value of `data.field`: a path such as `messages.text`, or a template such as `messages: {from}: {text}`."""

    names: list[str]  # the paths of its fields
    pattern: str = ""  # of a template: `{}: {}`
    # what precedes the first colon of a template, which may name the list whose elements are the
    # rows
    head: str = ""
    prefix: str = ""  # of the names in messages: `messages.`, once `head` is known to name a list

    @classmethod
    def parse(cls, text: str) -> "Field":
        r"""Return a field; in a template, `\n` is a line break and a doubled brace a brace."""
        names = [name for _, name in TEMPLATE.findall(text) if name]
        if re.search("[{}]", TEMPLATE.sub("", text)):
            way = "braces must hold the name of a field; write {{ for a brace"
            raise InputError(f"data.field={printable(text)}: {way}")
        if not names:
            return cls([text.format()])  # a path, in which {{ becomes {
        # {NAME} becomes {}; doubled braces remain, because `text` calls `format`
        pattern = TEMPLATE.sub(lambda part: part[1] or "{}", unescaped(text))
        head, colon, _ = pattern.partition(": ")
        if not colon or head in names:  # `tags: {tags}` is a text about a list
            head = ""
        return cls(names, pattern, head)

    def of_list(self) -> "Field":
        """Return the template whose head names a list, so that the head is not part of the text."""
        pattern = self.pattern.removeprefix(f"{self.head}: ")
        return replace(self, pattern=pattern, prefix=f"{self.head}.")

    def records(self, row: dict[str, Any]) -> list[Any] | None:
        """Return the elements of the list that the head names, or None if it does not name a list."""
        if not self.head:
            return None
        lists = [value for value in _follow(row, self.head) if isinstance(value, list)]
        return list(chain(*lists)) if lists else None

    def values(self, record: Any) -> list[list[Any]]:
        """Return the values of the fields for each text that a record contains."""
        if not self.pattern:
            return [[value] for value in _follow(record, self.names[0])]
        values = []
        for name in self.names:
            inner = _follow(record, name)
            # the values in several elements of a list are one text
            values.append(inner[0] if len(inner) == 1 else inner)
        return [values]

    def text(self, values: list[Any], number: int) -> str:
        """Return the text of row `number` from the values of its fields, empty if they are."""
        texts = []
        for name, value in zip(self.names, values, strict=True):
            if self.pattern and isinstance(value, int | float):  # on its own, it is not a text
                value = str(value)
            text = _text(value)
            if text is None:
                raise _BadRow(_no_text(value, self.prefix + name), number)
            texts.append(text)
        if not any(map(str.strip, texts)):
            return ""
        if not self.pattern:
            return texts[0]
        return self.pattern.format(*texts)


def _lines(chunks: Iterable[str]) -> Iterator[str]:
    """Yield the lines of a file whose content is given in `chunks`, each line with its newline."""
    pieces: list[str] = []  # of the line that is not complete
    for chunk in chunks:
        *ends, rest = chunk.split("\n")
        for end in ends:
            yield "".join((*pieces, end, "\n"))
            pieces = []
        pieces.append(rest)
    if any(pieces):
        yield "".join(pieces)


def _reader(lines: Iterator[str], kind: str) -> Any:
    first = next(lines, "")
    declared = re.fullmatch('(?i)"?sep=(.)"?\n', first)  # Excel's line before the header
    if declared:
        delimiter = declared[1]
    elif kind == ".tsv":
        delimiter = "\t"
    else:
        delimiter = max(",;\t", key=first.count)
    # with the line of Excel, too, which `line_num` must count
    reader = csv.reader(chain([first], lines), delimiter=delimiter, strict=True)
    if declared:
        next(reader)
    return reader


def _header(rows: Iterator[list[str]]) -> list[str]:
    return [name.strip() for name in next(rows, [])]


def _delimited(lines: Iterator[str], kind: str, required: list[str]) -> Rows:
    """Yield pairs (number of the row's first line, its fields by name) for each row of a CSV or TSV file."""
    # a document may be long; the limit is global, so it is restored below
    limit = csv.field_size_limit(2**31 - 1)
    rows = _reader(lines, kind)
    try:
        names = _header(rows)
        for name in required:
            if names.count(name) != 1:
                raise _BadRow(_no_field(name, names), rows.line_num or 1)
        line = rows.line_num + 1
        for row in rows:
            if any(row[len(names) :]):  # empty fields at the end of a row do no harm
                numbers = f"has {len(row):,} fields, but the first row has {len(names):,}"
                way = "put a field that contains the separator in double quotes"
                raise _BadRow(f"{numbers}; {way}", rows.line_num)
            if kind == ".tsv" and any("\t" in field and "\n" in field for field in row):
                raise _BadRow(f"a field spans several rows; {QUOTES}", rows.line_num)
            if row:  # a blank line is not a row
                yield line, dict(zip_longest(names, row))
            line = rows.line_num + 1
    except csv.Error as error:
        raise _BadRow(
            f"cannot be read as a table: {one_line(error)}; {QUOTES}", rows.line_num
        ) from None
    finally:
        csv.field_size_limit(limit)


def _objects(chunks: Iterator[str], kind: str) -> Rows:
    """Yield the rows of a JSON array or object over lines (only in *.json) or of lines of JSON, except blank lines."""
    first = next(chunks, "")
    chunks = chain([first], chunks)
    line, newline, _ = first.lstrip().partition("\n")
    # an array, or an object over several lines; otherwise, each line is an object
    is_tree = line.startswith("[") or bool(newline and not line.rstrip().endswith("}"))
    number = 1
    try:
        if kind == ".json" and is_tree:
            text = "".join(islice(chunks, MAX_TREE // CHUNK))
            if next(chunks, ""):
                raise _BadRow(
                    f"JSON of over {MAX_TREE >> 20} MB is only read if it has an object on each line",
                    1,
                )
            tree = json.loads(text)
            if not isinstance(tree, list):
                tree = [tree]
            yield from zip(repeat(0), tree)
            return
        for number, line in enumerate(_lines(chunks), 1):
            if not line.isspace():
                yield number, json.loads(line)
    except (ValueError, RecursionError) as error:
        raise _BadRow(
            f"is not JSON: {one_line(error)}; write an object on each line", number
        ) from None


def _parquet(file: IO[bytes], label: str, field: Field, tick: Tick) -> Rows:
    """Yield the rows of a Parquet file, with the columns of the fields or, if one is not a column, with all."""
    try:
        import pyarrow
        from pyarrow.parquet import ParquetFile
    except ImportError:
        raise InputError(
            f"{label}: needs pyarrow: pip install -c constraints.txt -e '.[parquet]'"
        ) from None
    try:
        table = ParquetFile(file)
        size = file.seek(0, io.SEEK_END)
        names = set(table.schema_arrow.names)
        needed = {field.head} & names
        for name in field.names:
            needed.add(name if name in names else name.partition(".")[0])
        read_columns = list(needed) if needed <= names else None
        for batch in table.iter_batches(BATCH, columns=read_columns):
            yield from zip(repeat(0), batch.to_pylist())
            tick(size * len(batch) // table.metadata.num_rows)  # bytes, estimated
    except (pyarrow.ArrowException, OSError) as error:
        raise InputError(f"{label}: cannot be read as Parquet: {one_line(error)}") from None


def _texts(rows: Rows, field: Field) -> Iterator[tuple[int, str]]:
    """Yield pairs (number of the row, its text), which is empty if all its fields are."""
    field_of_list = field.of_list()
    lacking = field.names  # of the fields, those that no record has had so far
    known_paths = dict[str, None]()
    texts = 0
    number = 0
    for line, row in rows:
        if not isinstance(row, dict):
            raise _BadRow("is not an object with fields", line or texts + 1)
        records = field.records(row)
        if records is None:
            records = [row]
        else:
            field = field_of_list  # of later rows, too: the head names a list
        for record in records:
            for values in field.values(record):
                texts += 1
                number = line or texts
                yield number, field.text(values, number)
            lacking = [name for name in lacking if _lacks(record, name)]
        if not lacking:
            continue
        known_paths |= dict.fromkeys(_paths(row))
        if texts >= SEARCHED:
            break
    if texts and lacking:
        raise _BadRow(_no_field(field.prefix + lacking[0], list(known_paths)), number)


def _lacks(record: Any, path: str) -> bool:
    return all(value is MISSING for value in _follow(record, path))


def _follow(value: Any, path: str) -> list[Any]:
    """Return the values at a path such as `messages.text`, in which a key may contain a dot."""
    if isinstance(value, list):
        return list(chain.from_iterable(_follow(element, path) for element in value))
    if not isinstance(value, dict):
        return [MISSING]
    if path in value or "." not in path:
        return [value.get(path, MISSING)]
    name, _, rest = path.partition(".")
    return _follow(value.get(name), rest)


def _paths(value: Any, path: str = "") -> Iterator[str]:
    """Yield the path to each text in an object or a list."""
    if isinstance(value, list):
        for element in value:
            yield from _paths(element, path)
    elif isinstance(value, dict):
        for name, inner in value.items():
            inner_path = f"{path}.{name}" if path else name
            parts = inner if isinstance(inner, list) else [inner]
            is_text = _text(inner) is not None
            # pieces become one text, but what is listed are the paths inside them
            are_pieces = bool(parts) and all(map(_is_piece, parts))
            if are_pieces or not is_text:
                yield from _paths(inner, inner_path)
            else:
                yield inner_path


def _is_piece(value: Any) -> bool:
    # a message has one of these keys
    return isinstance(value, dict) and value.keys().isdisjoint(("role", "from"))


def _text(value: Any) -> str | None:
    """Return a text; pieces in a list are joined as they are, texts and messages by newlines; None if it is not a text.

    A message such as {"role": "user", "content": "hi"} is `user: hi`, and a piece of one such as
    {"type": "text", "text": "hi"} is `hi`.
    """
    if isinstance(value, list):
        parts = list(map(_text, value))
        if None in parts:
            return None
        separator = "" if any(map(_is_piece, value)) else "\n"
        return separator.join(map(str, parts))
    if isinstance(value, dict):
        # 0 stands for a missing key, because it is not a text; "content" may be missing
        if _is_piece(value):
            return _text(value.get("text", 0))
        if "role" in value:
            speaker = value["role"]
            text = _text(value.get("content"))
        else:
            speaker = value["from"]
            text = _text(value.get("value", 0))
        return None if text is None else f"{speaker}: {text}"
    if value in (None, MISSING):
        return ""
    return value if isinstance(value, str) else None


def _no_text(value: Any, path: str) -> str:
    """Return the reason why the value at a path is not a text."""
    inner = ", ".join(dict.fromkeys(_paths(value, path)))
    what = f"has its own fields: {inner}" if inner else f"is {type(value).__name__}"
    return f"data.field={path}: must be text, texts or messages, but {what}"


def _no_field(field: str, names: list[str]) -> str:
    """Return the reason why `names` do not contain a field exactly once."""
    setting = f"data.field={printable(field)}"
    if field in names:
        return f"{setting}: {names.count(field)} fields have this name; rename them"
    known = "there are no fields"
    if names:
        known = f"the fields are {', '.join(map(printable, names[:20]))}"
    return f"{setting}: no such field{nearest(field, names)}; {known}"
