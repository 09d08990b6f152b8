import bz2
import gzip
import io
import json
import lzma
import random
import re
import subprocess
import sys
import zipfile

import pytest

from base.errors import InputError
from data.config import DataConfig
from data.find import find
from data.read import CHUNK, ZSTD, NotText
from data.tables import columns, fields
from tests.conftest import needs, refusal
from tests.data.test_documents import parquet
from tests.data.test_text import random_text
from tests.stores import make

TEXT = random_text(3000)
PICTURE = b"\x89PNG\r\n\x1a\n" + random.Random(1).randbytes(3000)


def zipped(files):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return buffer.getvalue()


def corpus(path, **settings):
    return find(DataConfig(path=str(path), **settings))


def names(found):
    return [document.name for document in found.files]


@pytest.fixture(params=["gz", "bz2", "xz", "zst"])
def compressed(request):
    """The suffix of a compression, and `TEXT` in it."""
    suffix = request.param
    compression = {"gz": gzip, "bz2": bz2, "xz": lzma}.get(suffix) or pytest.importorskip(ZSTD)
    return suffix, compression.compress(TEXT.encode())


@pytest.mark.parametrize("tokenizer", ["char", "byte"])
def test_a_compressed_file_is_its_content(tmp_path, opened, compressed, tokenizer):
    suffix, content = compressed
    make(tmp_path, {"book.txt": TEXT, f"book.txt.{suffix}": content})
    plain = opened("book.txt", tokenizer=tokenizer)
    packed = opened(f"book.txt.{suffix}", cache="other", tokenizer=tokenizer)
    assert packed.fingerprint == plain.fingerprint
    assert packed.train.tolist() == plain.train.tolist()


def test_a_compressed_text_is_one_of_a_folder(tmp_path, compressed):
    suffix, content = compressed
    make(tmp_path, {f"d/a.txt.{suffix}": content, "d/b.md": "never"})
    assert names(corpus(tmp_path / "d")) == [f"a.txt.{suffix}"]


@pytest.mark.parametrize("harm", ["cut", "not compressed"])
def test_a_compressed_file_that_is_damaged_is_named(tmp_path, opened, compressed, harm):
    suffix, content = compressed
    make(tmp_path, {f"a.{suffix}": content[:-20] if harm == "cut" else TEXT})
    message = refusal(InputError, opened, f"a.{suffix}")
    assert message.startswith(f"a.{suffix}: cannot be unpacked: ")
    assert "damaged" in message


def test_a_compression_that_is_not_installed_is_named(tmp_path, opened, monkeypatch):
    make(tmp_path, {"book.zst": TEXT})
    monkeypatch.setitem(sys.modules, ZSTD, None)
    assert refusal(InputError, opened, "book.zst").startswith(f"book.zst: needs {ZSTD}: ")


def test_the_texts_in_a_zip_file_are_the_documents_of_a_folder(tmp_path, opened):
    files = {f"sub/{number}.py": random_text(300 + number, seed=number) for number in range(45)}
    files["logo.png"] = PICTURE
    make(tmp_path / "code", files)
    make(tmp_path, {"code.zip": zipped(files | {"__MACOSX/._0.py": PICTURE, ".hidden": TEXT})})
    folder, archive = opened("code"), opened("code.zip")
    assert folder.fingerprint == archive.fingerprint
    assert folder.notes == archive.notes
    left_out, division = archive.notes
    assert "logo.png" in left_out
    assert division.endswith("each whole in one split")
    assert corpus("code.zip").size() == (tmp_path / "code.zip").stat().st_size


def test_of_a_zip_file_as_of_a_folder_only_txt_is_read(tmp_path):
    chat = zipped({"_chat.txt": TEXT, "1.png": PICTURE, "2.png": PICTURE})
    make(tmp_path, {"chat.zip": chat, "book.zip": zipped({"b.txt": TEXT})})
    found = corpus(tmp_path / "chat.zip")
    assert names(found) == ["_chat.txt"]
    assert "".join(found.read(found.files[0])) == TEXT
    (note,) = found.notes
    assert "2 other files left out: 2 .png; unpack " in note
    assert note.endswith("chat.zip to read all")
    assert names(corpus(tmp_path)) == ["book.zip/b.txt", "chat.zip/_chat.txt"]


ZIPPED = zipped({"a.txt": TEXT})
LISTED = ZIPPED.index(b"PK\1\2")
HARM = {  # the bytes of a zip file that are replaced, by what, and of the refusal
    "content": ([200], ZIPPED[200] ^ 255, "/a.txt: cannot be unpacked: "),
    "compression": ([8, LISTED + 10], 97, "/a.txt: cannot be unpacked: That compression method"),
    "password": ([LISTED + 8], 1, ": a.txt needs a password; "),
}


@pytest.mark.parametrize(("places", "value", "said"), HARM.values(), ids=HARM)
def test_a_zip_file_that_cannot_be_read_is_one_line(tmp_path, opened, places, value, said):
    harmed = bytearray(ZIPPED)
    for place in places:
        harmed[place] = value
    make(tmp_path, {"harmed.zip": bytes(harmed)})
    assert refusal(InputError, opened, "harmed.zip").startswith(f"harmed.zip{said}")


def test_an_empty_zip_file_is_refused(tmp_path, opened):
    make(tmp_path, {"empty.zip": zipped({})})
    assert "holds no files" in refusal(InputError, opened, "empty.zip")


OFFICE = zipped({"word/document.xml": "<a/>"})
NO_TEXT = {  # name, content, and of the refusal
    "rtf": (
        "a.rtf",
        b"{\\rtf1 " + TEXT.encode() + b"}",
        "is a formatted document.*save it as plain text",
    ),
    "pdf": ("a.pdf", b"%PDF-1.5\n" + PICTURE, "is a formatted document.*save it as plain text"),
    "docx": ("a.docx", OFFICE, "is a binary file"),
    "epub": ("a.epub", OFFICE, "is a binary file"),
    "xlsx": ("a.xlsx", OFFICE, "save its sheet as CSV, which data.field=NAME reads$"),
    "db": ("a.db", OFFICE, "export a table as CSV, which data.field=NAME reads$"),
    "png": ("a.png", PICTURE, r"is a binary file.*byte 0 \(line 1\)"),
}


@pytest.mark.parametrize(("name", "content", "said"), NO_TEXT.values(), ids=NO_TEXT)
def test_a_file_that_is_not_text_is_named_for_what_it_is(tmp_path, opened, name, content, said):
    make(tmp_path, {name: content})
    assert re.match(f"{name}: .*{said}", refusal(NotText, opened, name))


@pytest.mark.parametrize("encoding", ["latin-1", "cp1252"])  # the first decodes every byte
def test_no_encoding_makes_a_picture_a_text(tmp_path, opened, encoding):
    make(tmp_path, {"a.png": PICTURE})
    message = refusal(NotText, opened, "a.png", encoding=encoding)
    assert message.startswith("a.png: is a binary file")


def test_the_bytes_of_a_picture_can_be_read(tmp_path):
    make(tmp_path, {"a.png": PICTURE})
    assert corpus(tmp_path / "a.png", tokenizer="byte").size() == len(PICTURE)


def test_a_text_may_be_called_pdf(tmp_path, opened):
    make(tmp_path, {"pdf.pdf": TEXT})
    assert opened("pdf.pdf").notes == ()


def test_a_directory_says_what_it_leaves_out(tmp_path, opened):
    files = {f"{number}.py": TEXT[:300] for number in range(30)} | {"logo.png": PICTURE}
    folder = make(tmp_path / "a [b]", files)
    assert corpus(folder).notes == ("left out 1 binary file: logo.png",)
    make(folder, {"requirements.txt": TEXT, "wide.md": TEXT.encode("utf-16")})
    found = corpus("a [b]")
    assert names(found) == ["requirements.txt"]
    (note,) = found.notes
    assert "32 other files left out: 30 .py, 1 .png, 1 .md; " in note
    assert note.endswith("to read all: 'data.path=a [[]b]/**/*'")
    assert opened("a [b]").notes == found.notes
    whole = corpus("a [[]b]/**/*")
    assert len(whole.files) == 32
    assert whole.notes == ("left out 1 binary file: a [b]/logo.png",)
    # a text, so it is not left out
    assert "use data.encoding=utf-16" in refusal(InputError, opened, "a [[]b]/**/*")


def test_where_all_is_pictures_the_first_is_refused(tmp_path, opened):
    make(tmp_path / "pictures", {"a.png": PICTURE, "b.png": PICTURE})
    assert len(corpus(tmp_path / "pictures/a*.png").files) == 1
    assert refusal(NotText, opened, "pictures").startswith("pictures/a.png: is a binary file")


CSV = "id,text,label\n" + "".join(f'{n},"a, {n}",long label {n}\n' for n in range(50))
TURN = {"role": "user", "content": "hi " * 9}
OBJECTS = [
    {"id": n, "body": f"日本 {n} ok " * 9, "of": {"text": f"{n} x " * 20}, "chat": [TURN] * n}
    for n in range(50)
]
IN_CSV = ["id", "text", "label"]
IN_OBJECTS = ["body", "of.text", "chat"]
WRAPPED = {  # the content of a table, and the fields that its note names
    "rows.csv": (CSV, IN_CSV),
    "rows.csv.gz": (gzip.compress(CSV.encode()), IN_CSV),
    "rows.jsonl": ("".join(json.dumps(row) + "\n" for row in OBJECTS), IN_OBJECTS),
    "rows.json": (json.dumps(OBJECTS), IN_OBJECTS),
}


@pytest.mark.parametrize("name", WRAPPED)
def test_a_table_that_is_read_as_text_names_its_fields_which_can_be_read(tmp_path, opened, name):
    content, fields = WRAPPED[name]
    make(tmp_path, {name: content})
    note = opened(name).notes[0]
    assert note.startswith(
        f"{name} is read as plain text, with the syntax of its table; data.field=NAME"
    )
    assert f"({', '.join(fields)})" in note
    assert [opened(name, field=field).documents.rule.name for field in fields] == fields


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("page.html", f"<p>{TEXT}</p>"),
        ("book.ipynb", json.dumps({"cells": [TEXT]})),
        ("log.txt", f"\x1b[1m{TEXT}"),
        ("package.json", json.dumps({"name": TEXT}, indent=1)),
    ],
    ids=["HTML", "notebook", "colours", "object"],
)
def test_a_file_that_wraps_its_text_says_so(tmp_path, opened, name, content):
    make(tmp_path, {name: content})
    assert opened(name).notes[0].startswith(f"{name} is read as plain text, with ")


def test_a_json_file_without_rows_has_no_fields_to_name(tmp_path, opened):
    make(tmp_path, {"package.json": json.dumps({"name": TEXT}, indent=1)})
    assert "data.field" not in "".join(opened("package.json").notes)


def test_the_command_that_removes_colours_leaves_the_text(tmp_path, opened):
    make(tmp_path, {"log.txt": f"\x1b[1m{TEXT}"})
    sed = opened("log.txt").notes[0].removesuffix(" removes them").partition("; ")[2]
    plain = subprocess.run(
        f"{sed} log.txt", shell=True, cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert plain.stdout == TEXT


BEGINNINGS = {
    "array": ('[{"text": "a }", "id": 1}, {"text": "b", "id": 2},', ["text"]),
    "object": (
        '{"name": "x", "messages": [{"from": "a", "text": ["{", {"text": "]"}]}, '
        '{"from": "b", "text": "c"}, {"late": "d"}, {"late": "',
        ["messages.from", "messages.text"],
    ),
    "lines": (
        '{"text": "a", "of": {"text": "b"}}\n\n{"text": "c", "of": {"text": "d"}}\n{"text": "',
        ["text", "of.text"],
    ),
}


@pytest.mark.parametrize(("beginning", "paths"), BEGINNINGS.values(), ids=BEGINNINGS)
def test_the_fields_of_a_large_file_are_those_in_its_first_megabyte(beginning, paths):
    file = io.BytesIO((beginning + " " * 2**21 + "no JSON").encode())
    assert columns(file, "a.json", "utf-8") == paths and file.tell() == 2**20


CHAT = {
    "name": "Zorb",
    "messages": [
        {"id": 1, "type": "service", "actor": "Mip", "text": ""},
        {"id": 2, "from": "Mip", "text": "plim\nquat"},
        {
            "id": 3,
            "from": "Voss",
            "text": ["see ", {"type": "link", "text": "snee.example"}, " {frub}"],
        },
        {"id": 4, "from": "Mip"},
        {"id": 5, "text": "delk", "tags": ["a", "b"]},
    ],
}
SAID = ["", "plim\nquat", "see snee.example {frub}", "", "delk"]
SPOKEN = ["", "Mip: plim\nquat", "Voss: see snee.example {frub}", "Mip: ", ": delk"]
PHOTO = {"sender_name": "Mip", "photos": [{"uri": "a.jpg"}]}
ALBUM = {"messages": [PHOTO, {"sender_name": "Voss", "content": "tarn"}]}
TWEETS = [{"tweet": {"id": "1", "full_text": "gleb"}}, {"tweet": {"id": "2", "full_text": "vumm"}}]
STUDIO = [
    {"id": 1, "data": {"text": "ost"}, "annotations": []},
    {"id": 2, "data": {"text": "irb"}},
]
PARTS = [{"type": "text", "text": "a"}, {"text": "b"}]
TURNS = {"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": PARTS}]}
REVIEWS = [{"review": {"text": "ost"}}, {"review": {"text": "irb"}}]


def lines(*rows):
    return "".join(json.dumps(row) + "\n" for row in rows)


def tree(value):
    return json.dumps(value, indent=1)


# Where each text is: a file's suffix and content, the field, and the documents.
TREES = {
    "telegram": ("json", tree(CHAT), "messages.text", SAID),
    "telegram on one line": ("json", json.dumps(CHAT), "messages.text", SAID),
    "telegram, who says what": ("json", tree(CHAT), "messages: {from}: {text}", SPOKEN),
    "telegram, a list in an object": ("json", tree({"chats": {"list": [CHAT]}}), "chats.list: {name}", ["Zorb"]),
    "chats": ("json", tree([CHAT, {"messages": []}, CHAT]), "messages.text", SAID * 2),
    "chats on lines": ("jsonl", lines(CHAT, {}, CHAT), "messages.text", [*SAID, "", *SAID]),
    "rows in lines": ("jsonl", lines({}, CHAT), "messages: {from}: {text}", ["", *SPOKEN]),
    "facebook": ("json", tree(ALBUM), "messages.content", ["", "tarn"]),
    "facebook, who says what": (
        "json", tree(ALBUM), "messages: {sender_name}: {content}", ["Mip: ", "Voss: tarn"],
    ),
    "data": ("json", json.dumps({"data": [{"text": "ost"}, {"text": "irb"}]}), "data.text", ["ost", "irb"]),
    "label studio": ("json", json.dumps(STUDIO), "data.text", ["ost", "irb"]),
    "twitter": ("json", tree(TWEETS), "tweet.full_text", ["gleb", "vumm"]),
    "twitter, a template": ("json", tree(TWEETS), "{tweet.id}. {tweet.full_text}", ["1. gleb", "2. vumm"]),
    "messages of a row": ("jsonl", lines(TURNS), "messages", ["user: hi\nassistant: ab"]),
    "an object in a line": ("jsonl", lines(*REVIEWS), "review.text", ["ost", "irb"]),
    "lines in json": ("json", lines(*REVIEWS), "review.text", ["ost", "irb"]),
    "a key with a dot": ("jsonl", lines({"a.b": "x", "a": {"b": "y"}}, {"a": {"b": "z"}}), "a.b", ["x", "z"]),
    "a template that begins with text": (
        "jsonl", lines({"q": "x", "a": "y"}, {"q": " "}), "Q: {q}\nA: {a}", ["Q: x\nA: y", ""],
    ),
    "a list in a template": ("jsonl", lines({"tags": ["x", "y"]}), "tags: {tags}", ["tags: x\ny"]),
    "csv": ("csv", "id,text\n1,ost\n2\n,irb\n,\n", "{{{id}}} {text}", ["{1} ost", "{2} ", "{} irb", ""]),
    "tsv": ("tsv", "id\ttext\n1\tost\n", "{text}{text}", ["ostost"]),
    "a brace in a name": ("csv", "{id},text\n1,ost\n", "{{id}}", ["1"]),
    "excel": ("csv", "sep=;\r\nid;text\r\n1;ost, irb\r\n", "text", ["ost, irb"]),
    "excel with a bar": ("csv", '"sep=|"\nid|text\n1|ost; irb\n', "text", ["ost; irb"]),
}  # fmt: skip


@pytest.mark.parametrize(("kind", "content", "field", "documents"), TREES.values(), ids=TREES)
def test_a_field_is_followed_to_its_texts(kind, content, field, documents):
    assert [
        text for _, text in fields(io.BytesIO(content.encode()), f"a.{kind}", field)
    ] == documents


@pytest.mark.parametrize(
    ("table", "field", "documents"),
    [
        (TWEETS, "{tweet.id}. {tweet.full_text}", ["1. gleb", "2. vumm"]),
        (TWEETS, "Id: {tweet.id}", ["Id: 1", "Id: 2"]),
        ([ALBUM], "messages: {sender_name}: {content}", ["Mip: ", "Voss: tarn"]),
        ([ALBUM], "messages.content", ["", "tarn"]),
    ],
    ids=["columns", "text first", "list of rows", "path"],
)
def test_a_field_of_parquet_is_followed_to_its_texts(table, field, documents):
    assert [
        text for _, text in fields(io.BytesIO(parquet(table)), "a.parquet", field)
    ] == documents


BRACES = "data.field={.*: braces must hold the name of a field; write {{ for a brace"
REFUSALS = {
    "name": (
        "json", tree(CHAT), "messages.txt",
        "a.json, row 5: data.field=messages.txt: no such field; nearest: messages.text; the fields are "
        "name, messages.type, messages.actor, messages.text, messages.from, messages.tags$",
    ),
    "name in a template": (
        "json", tree(CHAT), "messages: {from}: {txt}", "=messages.txt: no such field; nearest: messages.text; the",
    ),
    "list of a template": (
        "json", tree(CHAT), "mesages: {from}: {text}", "=from: no such field; the fields are name, messages.type,",
    ),
    "list": (
        "json", tree(CHAT), "messages", "must be text, texts or messages, but has its own fields: messages.type,",
    ),
    "number": ("json", tree(CHAT), "messages.id", "row 1: data.field=messages.id: must be text, .*, but is int"),
    "number in a list": ("json", json.dumps([CHAT, {"messages": [{"text": 7}]}]), "messages.text", "a.json, row 6: "),
    "blank lines": ("jsonl", '\n\n{"text": 7}\n', "text", "a.jsonl, line 3: data.field=text: must be text"),
    "column": ("csv", "sep=;\nid;text\n", "{id}: {txt}", "line 2: data.field=txt: no such field; nearest: text;"),
    "javascript": ("js", "a = []", "text", "but not a.js; keep what follows the = as .json, "),
    "no end": ("csv", "text\n", "{text", BRACES), "no beginning": ("csv", "text\n", "{text}}", BRACES),
    "format": ("csv", "text\n", "{text:>9}", BRACES), "conversion": ("csv", "text\n", "{text!r}", BRACES),
    "no name": ("csv", "text\n", "{}", BRACES),
}  # fmt: skip


@pytest.mark.parametrize(("kind", "content", "field", "said"), REFUSALS.values(), ids=REFUSALS)
def test_a_wrong_field_is_refused_with_what_there_is(kind, content, field, said):
    message = refusal(
        InputError, lambda: list(fields(io.BytesIO(content.encode()), f"a.{kind}", field))
    )
    assert re.search(said, message) and "\n" not in message, message


@pytest.mark.parametrize(
    "value", [[{"text": "a"}], {"rows": [{"text": "a"}]}], ids=["array", "object"]
)
def test_a_large_tree_is_refused(monkeypatch, value):
    monkeypatch.setattr("data.tables.MAX_TREE", 2 * CHUNK)
    file = io.BytesIO((tree(value) + " " * 2 * CHUNK).encode())
    message = refusal(InputError, lambda: list(fields(file, "a.json", "rows.text")))
    assert (
        message == "a.json, row 1: JSON of over 0 MB is only read if it has an object on each line"
    )


def test_an_export_says_that_it_is_a_table(tmp_path, opened):
    chat = CHAT | {"messages": CHAT["messages"] * 20}
    make(
        tmp_path,
        {"result.json": tree(chat), "tweets.js": f"window.YTD.tweets.part0 = {tree(TWEETS * 20)}"},
    )
    make(
        tmp_path,
        {
            "code.js": 'const zorb = [{plim: "quat"}]\n' * 50,
            "name.js": 'const name = "zorb"\n' * 50,
        },
    )
    assert opened("result.json").notes == (
        "result.json is read as plain text, with the syntax of its table; data.field=NAME makes a field "
        "(messages.type, messages.actor, messages.text, messages.from, messages.tags) of each row a document",
    )
    assert opened("tweets.js").notes == (
        "tweets.js is read as plain text, with the assignment and syntax of its JSON; "
        "keep what follows the = as .json, which data.field=NAME reads",
    )
    assert opened("code.js").notes == () == opened("name.js").notes
    text = opened("result.json", field="messages: {from}: {text}")
    assert text.documents.rule.name == "messages: {from}: {text}" and text.documents.blank == 20


def test_parquet_needs_pyarrow_and_a_field(tmp_path, opened, monkeypatch):
    make(tmp_path, {"a.parquet": b"PAR1" + PICTURE})
    assert "data.field=NAME reads one" in corpus("a.parquet", tokenizer="byte").notes[0]
    assert refusal(NotText, opened, "a.parquet").endswith(
        "; data.field=NAME reads one of its columns"
    )
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    said = refusal(InputError, opened, "a.parquet", field="text")
    assert said.endswith("needs pyarrow: pip install -c constraints.txt -e '.[parquet]'")


ROWS = {  # rows of JSON, data.field, and the texts that are read
    "an inner list is one text": (
        {"messages": [{"from": "ann", "r": [{"e": "x"}, {"e": "y"}]}, {"from": "bo", "r": []}, {"from": "cy"}]},
        "messages: {from}:{r.e}", ["ann:x\ny", "bo:", "cy:"],
    ),
    "a field that is missing in a list": (
        {"data": [{"text": "one", "notes": [{"result": ["a"]}]}, {"text": "two", "notes": []}, {"text": "three"}]},
        "data: {text} ({notes.result})", ["one (a)", "two ()", "three ()"],
    ),
    "a line break": ([{"q": "why", "a": "so"}], r"{q}\n{a}", ["why\nso"]),
    "a number": ([{"stars": 5, "text": "fine"}], "{stars}: {text}", ["5: fine"]),
    "a head that is text": ([{"q": "why"}], "Q: {q}", ["Q: why"]),
}  # fmt: skip


@pytest.mark.parametrize("name", ROWS)
def test_a_template_is_filled_once_for_each_row(name: str) -> None:
    content, field, texts = ROWS[name]
    file = io.BytesIO(json.dumps(content, indent=1).encode())
    assert [text for _, text in fields(file, "a.json", field)] == texts


def test_a_list_of_rows_in_parquet_beside_columns_of_the_same_names() -> None:
    needs("pyarrow", extra="parquet")
    import pyarrow
    import pyarrow.parquet

    table = pyarrow.table({"from": ["x"], "text": ["y"], "m": [[{"from": "ann", "text": "hi"}]]})
    file = io.BytesIO()
    pyarrow.parquet.write_table(table, file)
    file.seek(0)
    assert [text for _, text in fields(file, "a.parquet", "m: {from}: {text}")] == ["ann: hi"]
