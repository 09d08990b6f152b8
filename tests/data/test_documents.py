import csv
import io
import json
import random
import re
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

import data.encode
import data.read
from base.errors import InputError
from data.config import DataConfig
from data.divide import DocumentRule, DocumentStats
from data.text import open_text
from tests.conftest import needs
from tests.data.test_text import decoded
from tests.folders import make
from tests.reference.documents import content_hash, divided, documents_of

SHARES = [0.6, 0.25, 0.15]
MARKS = {"line": "\n", "paragraph": "\n\n"}
KINDS = ["line", "paragraph", "file", "<|endoftext|>", "\n%\n", "aa"]


def text_of(files, **options):
    """Open the text of these files, from a cache of its own."""
    with tempfile.TemporaryDirectory() as folder:
        make(Path(folder, "text"), files)
        config = DataConfig(
            path=f"{folder}/text/*", cache_dir=f"{folder}/cache", **{"split": SHARES} | options
        )
        return open_text(config, 1)


def splits(text):
    """The documents of each split, cut at their end marks."""
    mark = text.documents.rule.end
    return {split: whole.split(mark)[:-1] for split, whole in decoded(text).items()}


def check(text, documents, kind, end, name="", shares=SHARES, whitespace=None):
    """A text has these documents, blank ones included, where the reference puts them."""
    full = [document for document in documents if document.strip(whitespace)]
    expected = divided(full, shares, end)
    assert decoded(text) == {
        split: "".join(each + end for each in parts) for split, parts in expected.items()
    }
    counts = {split: len(each) for split, each in expected.items()}
    repeated = len(full) - len(set(map(content_hash, full)))
    assert text.documents == DocumentStats(
        DocumentRule(kind, end, name), counts, repeated, len(documents) - len(full), 0
    )


def words(count, seed=0):
    chance = random.Random(seed)
    return ["".join(chance.choices("abcdef", k=chance.randint(3, 9))) for _ in range(count)]


pieces = some.one_of(
    some.sampled_from(
        [
            "\n",
            "\r\n",
            "\n\n",
            "\n%\n",
            "%\n",
            "<|endoftext|>",
            " ",
            "\t\n",
            "\x0c",
            "\u2028",
            "a",
            "aa",
        ]
    ),
    some.text("ab語é\U0001f600%\r\n ", max_size=8),
)


@settings(max_examples=150, deadline=None)
@given(
    some.lists(some.lists(pieces, max_size=25).map("".join), min_size=1, max_size=4),
    some.sampled_from(KINDS), some.sampled_from(["char", "byte"]), some.sampled_from([1, 3, 64]), some.integers(1, 9),
    some.sampled_from([SHARES, [0.8, 0.2, 0.0]]),
)  # fmt: skip
def test_any_text_is_divided_as_by_the_reference(files, kind, tokenizer, chunk, batch, shares):
    files[0] += "\n\nxyz\n\nuvw<|endoftext|>\n%\nthird"
    end = MARKS.get(kind, "\x03")
    texts = (
        files
        if tokenizer == "byte"
        else [text.replace("\r\n", "\n").replace("\r", "\n") for text in files]
    )
    whitespace = " \t\n\r\x0b\x0c" if tokenizer == "byte" else None  # in bytes, U+2028 is text
    documents = [each for text in texts for each in documents_of(text, kind, whitespace)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(data.read, "CHUNK", chunk)
        patch.setattr(data.encode, "BATCH", batch)
        named = {f"{number}": text.encode() for number, text in enumerate(files)}
        if len({document for document in documents if document.strip(whitespace)}) < 3:
            with pytest.raises(InputError, match="at least 3 different"):
                text_of(named, documents=kind, tokenizer=tokenizer)
            return
        try:
            text = text_of(named, documents=kind, tokenizer=tokenizer, split=shares)
        except InputError as error:
            assert re.search("but needs at least 2|too few|does not occur", str(error)), error
            return
    if kind in ("line", "paragraph", "file"):
        check(text, documents, kind, end, "", shares, whitespace)
    else:
        check(text, documents, "part", end, kind, shares, whitespace)


def split_of(lines):
    """The split of each line."""
    found = splits(text_of({"a": "\n".join(lines)}, documents="line"))
    return {document: split for split, documents in found.items() for document in documents}


def test_a_new_document_moves_only_those_near_a_border():
    old = words(300) + words(40) * 7
    before, after = split_of(sorted(old)), split_of([*old, "novel", "new語"])
    order = sorted(before, key=content_hash)
    moved = [at for at, document in enumerate(order) if after[document] != before[document]]
    borders = [at for at in range(1, len(order)) if before[order[at]] != before[order[at - 1]]]
    assert len(moved) < 8 and len(borders) == 2
    assert all(min(abs(at - border) for border in borders) < 8 for at in moved)


VALUES = [
    "plain",
    'with "quotes", commas',
    "two\nlines\n\nand more",
    "\ttab",
    "naïve 語 \U0001f600",
    "plain",
    " \n",
    "long" * 33_000,  # more than a field of Python's csv may hold
]


def tables():
    """A file for each kind of table, with a row for each of `VALUES`."""
    rows = [{"id": str(number), "text": value, "more": "x"} for number, value in enumerate(VALUES)]
    files = {}
    for name, delimiter in (("a.csv", ","), ("c.CSV", ";"), ("a.TSV", "\t")):
        out = io.StringIO()
        # ends rows with CR LF
        writer = csv.DictWriter(out, ["id", "text", "more"], delimiter=delimiter)
        writer.writeheader()
        writer.writerows(rows)
        files[name] = out.getvalue()
    nulled = [row if row["text"] != " \n" else {"text": None} for row in rows]
    files["a.jsonl"] = "\n\n".join(map(json.dumps, nulled))  # with escapes such as \u8a9e
    files["b.ndjson"] = "\n".join(json.dumps(row, ensure_ascii=False) for row in rows) + "\n"
    files["c.json"] = json.dumps(nulled, indent=1)
    files["d.json"] = files["b.ndjson"]
    return files


TABLES = tables()


@pytest.mark.parametrize("tokenizer", ["char", "byte"])
def test_rows_of_tables_of_all_kinds_are_documents(tokenizer):
    text = text_of(TABLES, field="text", tokenizer=tokenizer)
    check(text, VALUES * len(TABLES), "row", "\x03", "text")


def parquet(rows):
    needs("pyarrow", extra="parquet")
    import pyarrow
    from pyarrow.parquet import write_table

    write_table(pyarrow.Table.from_pylist(rows), file := io.BytesIO())
    return file.getvalue()


def test_a_damaged_parquet_file_is_refused_in_one_line():
    with pytest.raises(InputError, match=r"a\.parquet: cannot be read as Parquet: "):
        text_of({"a.parquet": parquet([{"text": "a"}])[:-9]}, field="text")


PERCENT = "one\n%\ntwo\t\n%\nthree\\n\n%\nfour"


def test_escapes_of_a_separator_are_read(opened):
    make(Path(), {"text": PERCENT})
    typed, real = opened(documents=r"\n%\n", context=1), opened(documents="\n%\n", context=1)
    assert typed.fingerprint == real.fingerprint
    assert sorted(sum(splits(typed).values(), [])) == ["four", "one", "three\\n", "two\t"]
