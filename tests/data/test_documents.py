import csv
import io
import json
import os
import random
import re
import tempfile
import tracemalloc
from collections import Counter
from pathlib import Path
from unittest.mock import Mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

import data.decoding
import data.documents
import data.hash_order
from base.errors import InputError
from data.config import DataConfig
from data.documents import DocumentRule, DocumentStats
from data.splits import SPLITS
from data.text import open_text
from tests.conftest import needs, refusal
from tests.reference.documents import content_hash, divided, documents_of
from tests.stores import make

SHARES = [0.6, 0.25, 0.15]
MARKS = {"line": "\n", "paragraph": "\n\n"}
KINDS = ["line", "paragraph", "file", "<|endoftext|>", "\n%\n", "aa"]
SMALL = {"BATCH": 11, "BLOCK": 4, "PIECE": 8}  # so that borders are everywhere


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
    mark, found = text.documents.rule.end, {}
    for split in SPLITS:
        whole = text.tokenizer.decode(getattr(text, split))
        assert whole.endswith(mark) or not whole
        found[split] = whole.split(mark)[:-1]
    return found


def check(text, documents, kind, end, name="", shares=SHARES, utf8=False):
    """A text has these documents, blank ones included, where the reference puts them."""
    full = [document for document in documents if document.strip()]
    expected = divided(full, shares, end, utf8)
    for split in SPLITS:
        assert text.tokenizer.decode(getattr(text, split)) == "".join(
            each + end for each in expected[split]
        ), split
    counts = {split: len(each) for split, each in expected.items()}
    repeated = len(full) - len(set(full))
    assert text.documents == DocumentStats(
        DocumentRule(kind, end, name), counts, repeated, len(documents) - len(full), 0
    )
    return expected


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
    some.sampled_from(KINDS), some.sampled_from(["char", "byte"]), some.sampled_from([1, 3, 64]), some.integers(0, 99),
    some.sampled_from([SHARES, [0.8, 0.2, 0.0]]),
)  # fmt: skip
def test_any_text_is_divided_as_by_the_reference(files, kind, tokenizer, chunk, long, shares):
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
        patch.setattr(data.decoding, "CHUNK", chunk)
        patch.setattr("data.hash_order.LONG", long)
        for name, value in SMALL.items():
            patch.setattr(data.documents if name == "BATCH" else data.hash_order, name, value)
        named = {f"{number}": text.encode() for number, text in enumerate(files)}
        if len({document for document in documents if document.strip(whitespace)}) < 3:
            assert "at least 3 different" in refusal(
                InputError, text_of, named, documents=kind, tokenizer=tokenizer
            )
            return
        try:
            text = text_of(named, documents=kind, tokenizer=tokenizer, split=shares)
        except InputError as error:
            assert re.search(
                "leaves no document for training|but needs at least 2|too few", str(error)
            ), error
            return
    if tokenizer == "byte":
        full = [document for document in documents if document.strip(whitespace)]
        expected = divided(full, shares, end, utf8=True)
        for split in SPLITS:
            assert (
                getattr(text, split).tobytes()
                == "".join(each + end for each in expected[split]).encode()
            )
        assert text.documents.blank == len(documents) - len(full)
    else:
        named = kind in ("line", "paragraph", "file")
        check(text, documents, kind if named else "part", end, "" if named else kind, shares)
        whole = "".join(texts if kind in ("line", "paragraph") else documents)
        assert text.tokenizer.characters == "".join(sorted({*whole, *end}))


def test_copies_share_a_split_and_a_new_document_moves_only_those_near_a_border():
    old = words(300) + words(40) * 7
    before = splits(text_of({"a": "\n".join(sorted(old))}, documents="line"))
    assert sum(map(Counter, before.values()), Counter()) == Counter(old)
    of = {document: split for split, documents in before.items() for document in documents}
    assert sum(len(set(documents)) for documents in before.values()) == len(of)
    assert before["train"] != sorted(before["train"])
    after = splits(text_of({"a": "\n".join([*old, "novel", "new語"])}, documents="line"))
    moved = {
        document
        for split, documents in after.items()
        for document in documents
        if of.get(document, split) != split
    }
    order = sorted(of, key=content_hash)
    places = sorted(order.index(document) for document in moved)
    borders = [
        len(set(before["validation"])),
        len(set(before["validation"])) + len(set(before["test"])),
    ]
    assert len(moved) < 8 and all(
        min(abs(place - border) for border in borders) < 8 for place in places
    )
    for split in SPLITS:  # the rest stays in its order
        kept = [
            document
            for document in after[split]
            if of.get(document) == split and document not in moved
        ]
        assert kept == [document for document in before[split] if document not in moved]


def test_rows_of_tables_are_documents():
    values = [
        "plain",
        'with "quotes", commas',
        "two\nlines\n\nand more",
        "\ttab",
        "naïve 語 \U0001f600",
        "plain",
    ]
    values += [" \n", "long" * 33_000]  # more than a field of Python's csv may hold
    rows = [{"id": str(number), "text": value, "more": "x"} for number, value in enumerate(values)]
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
    for name, content in files.items():
        for tokenizer in ("char", "byte"):
            text = text_of({name: content}, field="text", tokenizer=tokenizer)
            check(text, values, "row", "\x03", "text", utf8=tokenizer == "byte")
            assert text.documents.repeated == 1 and text.documents.blank == 1
    check(text_of(files, field="text"), values * 7, "row", "\x03", "text")
    assert csv.field_size_limit() == 131_072


def parquet(rows):
    needs("pyarrow", extra="parquet")
    import pyarrow
    from pyarrow.parquet import write_table

    write_table(pyarrow.Table.from_pylist(rows), file := io.BytesIO())
    return file.getvalue()


@pytest.mark.parametrize("kind", ["jsonl", "json", "parquet"])
def test_a_field_may_be_in_an_object_and_hold_texts_or_messages(kind):
    messages = [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": "hello"},
        {"role": "user"},
    ]
    here = {"type": "text", "text": "here"}
    rows = [
        {"review": {"text": f"good {i}", "stars": i}, "lines": [f"a{i}", "b"], "messages": messages[: 1 + i % 3],
         "parts": [{"role": "user", "content": [{"type": "text", "text": f"look {i}"}, here]}],
         "conversations": [{"from": "human", "value": f"{i}\r\n{i}\r"}],
         "a.b": f"x{i}", "a": {"b": "no"}} for i in range(8)
    ]  # fmt: skip
    contents = {
        "jsonl": lambda: "\n".join(map(json.dumps, rows)),
        "json": lambda: json.dumps(rows),
    }
    contents["parquet"] = lambda: parquet(rows)
    files = {f"a.{kind}": contents[kind]()}
    for field, values in {
        "review.text": [f"good {i}" for i in range(8)], "lines": [f"a{i}\nb" for i in range(8)],
        "messages": (3 * ["user: hi", "user: hi\nassistant: hello", "user: hi\nassistant: hello\nuser: "])[:8],
        "parts": [f"user: look {i}here" for i in range(8)],
        "conversations": [f"human: {i}\n{i}\n" for i in range(8)], "a.b": [f"x{i}" for i in range(8)],
    }.items():  # fmt: skip
        check(text_of(files, field=field), values, "row", "\x03", field)


def test_a_damaged_parquet_file_is_refused_in_one_line():
    with pytest.raises(InputError, match=r"a\.parquet: cannot be read as Parquet: "):
        text_of({"a.parquet": parquet([{"text": "a"}])[:-9]}, field="text")


def test_a_row_without_the_field_is_blank():
    files = {
        "a.csv": "id,text\n1,one\n2\n3,three\n",
        "b.jsonl": '{"text": "uno"}\n{"id": 2}\n{"text": "tres"}\n',
    }
    files["c.jsonl"] = '{"id": 2}\n' * 999 + '{"text": "late"}\n'
    text = text_of(files, field="text")
    check(
        text, ["one", "", "three", "uno", "", "tres", *[""] * 999, "late"], "row", "\x03", "text"
    )
    assert text.documents.blank == 1001
    text = text_of({"a.csv": "id,text\n1,one,\n2,two,,\n3,three\n"}, field="text")
    check(text, ["one", "two", "three"], "row", "\x03", "text")


def test_escapes_are_read_and_the_settings_are_in_the_fingerprint(opened):
    make(Path(), {"text": "one\n%\ntwo\t\n%\nthree\\n\n%\nfour"})
    typed, real = opened(documents=r"\n%\n", context=1), opened(documents="\n%\n", context=1)
    assert typed.fingerprint == real.fingerprint and typed.documents == real.documents
    assert sorted(sum(splits(typed).values(), [])) == ["four", "one", "three\\n", "two\t"]
    with pytest.raises(InputError, match="has 2 documents, 2 different"):
        opened(documents=r"\\n")
    others = [
        {"split": SHARES},
        {"documents": "line"},
        {"documents": "\n"},
        {"documents": "\n", "split": SHARES},
    ]
    assert (
        len({opened(context=1, **each).fingerprint for each in others} | {typed.fingerprint}) == 5
    )
    again = opened(documents=r"\n%\n", context=1)  # from the cache
    assert again.documents == typed.documents and splits(again) == splits(typed)


def test_refusals_are_one_line(opened):
    numbered = {"text": "a\nb\n", "c.csv": "id,text\n1,a\n2\n", "d.jsonl": '{"text": "a"}\n\n{"text": 7}\n',
                "f.jsonl": "{", "g.jsonl": "[]", "h.jsonl": r'{"text": "\ud800"}',
                "i.csv": 'text\n"a\nbcdefghijklmnopqrstuvwxyz\x03"',
                "j": "abcdefghij" * 3 + "\r\n\x03", "k.csv": "text\n\"a", "l.csv": "",
                "one": "abc\nabc\nabc\n", "n.csv": "text\na\nb, c\n", "p.csv": "text,id,text\na,b,c\n",
                "r.jsonl": '{"b": "c"}\n' * 1000 + '{"text": "late"}\n', "s.json": '[{"text": {"a": "b"}}]',
                "t.json": '[{"text": "a"}', "u.json": '{\n"text": "a"}\n{\n"text": "b"}', "v.xlsx": "PK",
                "q.tsv": 'id\ttext\n1\t"a\n2\tb"\n3\tc\n'}  # fmt: skip
    make(Path(), numbered)
    for path, options, said in [
        ("text", {"documents": "line"}, "text: has 2 documents, 2 different with data.documents=line; at least 3"),
        ("one", {"documents": "line"}, "has 3 documents, 1 different with"),
        ("[text,one]", {"documents": "file"}, "has 2 documents, .*; at least 3 different ones are needed; "
         "leave data.documents out to divide each file, or set data.validation=NAME$"),
        ("text", {"documents": "lines"}, "data.documents=lines;.*nearest: line$"),
        ("j", {"documents": "file"}, r"j: contains U\+0003"),
        ("text", {"documents": "\n%\n"}, r"has 1 document, 1 different with data.documents=\\n%\\n; at least"),
        ("j", {"documents": "%", "tokenizer": "byte"}, "j: contains"),
        ("text", {"documents": ""}, "data.documents=: must be line, paragraph, file, a separator"),
        ("text", {"field": ""}, "data.field=: must be the name of a field"),
        ("text", {"field": "a", "documents": "file"}, "data.field=a: each row is a document"),
    ] + [(path, {"field": field}, said) for path, field, said in [
        ("i.csv", "text", "i.csv, line 2: contains"),
        ("text", "text", r"data.field=text: reads \*.csv, \*.tsv, .*, but not text"),
        ("v.xlsx", "text", "data.field=text: reads .* not v.xlsx; save its sheet as CSV, which data.field=NAME reads$"),
        ("r.jsonl", "text", "r.jsonl, line 1,000: data.field=text: no such field.* are b$"),
        ("s.json", "text", "s.json, row 1: data.field=text: must be text, .* fields: text.a$"),
        ("t.json", "text", "t.json, row 1: is not JSON: .*; write an object on each line"),
        ("u.json", "text", "u.json, row 1: is not JSON: .*; write an object on each line"),
        ("c.csv", "texts", "c.csv, line 1: data.field=texts: no such field; nearest: text; .* id, text"),
        ("n.csv", "text", "n.csv, line 3: has 2 fields, but the first row has 1"),
        ("p.csv", "text", "p.csv, line 1: data.field=text: 2 fields have this name"),
        ("q.tsv", "text", "q.tsv, line 3: a field spans several rows"),
        ("d.jsonl", "text", "d.jsonl, line 3: data.field=text: must be text, .*, but is int"),
        ("f.jsonl", "text", "f.jsonl, line 1: is not JSON: "), ("g.jsonl", "text", "g.jsonl, line 1: is not an object"),
        ("h.jsonl", "text", "h.jsonl, line 1: has half of a surrogate pair"),
        ("k.csv", "text", "k.csv, line 2: cannot be read as a table: "),
        ("l.csv", "text", "l.csv, line 1: .*there are no fields"), (None, "a", "data.field=a: needs data.path="),
    ]]:  # fmt: skip
        message = refusal(InputError, opened, path, **options)
        assert re.search(said, message), message
    assert [each.name for each in Path("cache").rglob("*")] == ["encoded", ".lock"]
    make(Path(), {"text": "a\nb\nc"})
    with pytest.raises(
        InputError,
        match=r"data.split=\[0.01,0.9,0.09\]: leaves no document for training: 3 for val",
    ):
        opened(documents="line", split=[0.01, 0.9, 0.09])


def test_memory_per_document_is_bounded(opened, monkeypatch):
    monkeypatch.setattr(data.documents, "BATCH", 2**14)  # so that buffers are small
    monkeypatch.setattr("data.text.losses_of_passages", lambda *_: [])
    peaks = []
    for count in (100_000, 300_000):
        make(Path(), {"text": "".join(f"{number}\n" for number in range(count))})
        tracemalloc.start()
        opened(documents="line")
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] - peaks[0] <= 30 * 200_000  # bytes


def test_an_interrupted_encoding_leaves_nothing_behind(opened, monkeypatch):
    make(Path(), {"text": "\n".join(words(200))})
    monkeypatch.setattr("data.hash_order.Shuffled.pieces", Mock(side_effect=KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        opened(documents="line")
    assert os.listdir("cache/encoded") == [".lock"]
