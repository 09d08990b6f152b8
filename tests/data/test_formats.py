import bz2
import gzip
import io
import json
import lzma
import random
import re
import sys
import zipfile

import pytest

from base.errors import InputError
from data.config import DataConfig
from data.find import find, without_binary
from data.read import ZSTD, NotText
from data.tables import fields
from tests.conftest import refusal
from tests.data.test_documents import parquet
from tests.data.test_text import random_text
from tests.folders import make

TEXT = random_text(3000)
PICTURE = b"\x89PNG\r\n\x1a\n" + random.Random(1).randbytes(3000)


def zipped(files):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return buffer.getvalue()


def corpus(path, **settings):
    return without_binary(find(DataConfig(path=str(path), **settings)), with_field=False)


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
OFFICE = zipped({"word/document.xml": "<a/>"})
PDF = b"%PDF-1.5\n" + PICTURE


def harmed(places, value):
    content = bytearray(ZIPPED)
    for place in places:
        content[place] = value
    return bytes(content)


REFUSED = {  # a file's content, and of the refusal
    "content.zip": (harmed([200], ZIPPED[200] ^ 255), "/a.txt: cannot be unpacked: "),
    "compression.zip": (harmed([8, LISTED + 10], 97), "/a.txt: cannot be unpacked: That compression method"),
    "password.zip": (
        harmed([LISTED + 8], 1), "/a.txt: cannot be unpacked: File 'a.txt' is encrypted, password required",
    ),
    "empty.zip": (zipped({}), ".*holds no files"),
    "a.rtf": (b"{\\rtf1 " + TEXT.encode() + b"}", ": .*is not plain text; save it as plain text"),
    "a.pdf": (PDF, ": .*is not plain text; save it as plain text"),
    "a.docx": (OFFICE, ": .*is not plain text; save it"),
    "a.png": (PICTURE, ": .*is not plain text; save it"),
    "a.tar": (b"x" * 257 + b"ustar\0" + b"y" * 300, ".*unpack it and name its folder"),
    "model.zip": (b"version https://git-lfs.github.com/spec/v1\n", ".*run git lfs pull"),
    "model.txt": (
        b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n",
        ".*is a pointer of Git LFS, not the file itself; run git lfs pull",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_a_file_that_cannot_be_read_is_named_for_what_it_is(tmp_path, opened, name):
    content, said = REFUSED[name]
    make(tmp_path, {name: content})
    for encoding in ("utf-8", "cp1252", "latin-1"):  # the last decodes every byte
        assert re.match(f"{name}{said}", refusal(InputError, opened, name, encoding=encoding))


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
    bytes_of = corpus("pictures/a*.png", tokenizer="byte")
    assert "".join(bytes_of.read(*bytes_of.files)).encode("latin-1") == PICTURE
    assert refusal(NotText, opened, "pictures").startswith("pictures/a.png: is not plain text")


def test_parquet_needs_pyarrow_and_a_field(tmp_path, opened, monkeypatch):
    make(tmp_path, {"a.parquet": b"PAR1" + PICTURE})
    assert "data.field=NAME reads" in corpus("a.parquet", tokenizer="byte").notes[0]
    assert refusal(NotText, opened, "a.parquet").endswith(
        "data.field=NAME reads one of its columns"
    )
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    said = refusal(InputError, opened, "a.parquet", field="text")
    assert said == "a.parquet: needs pyarrow: pip install -c constraints.txt -e '.[parquet]'"


CHAT = {
    "name": "Zorb",
    "messages": [
        {"id": 1, "actor": "Mip", "text": ""},
        {"id": 2, "from": "Mip", "text": "plim\nquat"},
        {"id": 3, "from": "Voss"},
        {"id": 4, "text": "delk", "tags": ["a", "b"]},
    ],
}
SAID = ["", "plim\nquat", "", "delk"]
SPOKEN = ["", "Mip: plim\nquat", "Voss: ", ": delk"]
RESULTS = [{"text": "one", "notes": [{"r": "a"}, {"r": "b"}]}, {"text": "two", "notes": []}]


def lines(*rows):
    return "".join(json.dumps(row) + "\n" for row in rows)


def tree(value):
    return json.dumps(value, indent=1)


FIELDS = {  # a file's suffix and content, data.field, and the texts that it leads to
    "a list on one line": ("json", json.dumps(CHAT), "messages.text", SAID),
    "lists in an array": ("json", tree([CHAT, {"messages": []}, CHAT]), "messages.text", SAID * 2),
    "lists in lines": ("jsonl", lines({}, CHAT), "messages: {from}: {text}", ["", *SPOKEN]),
    "lines in json": ("json", "\n" + lines(CHAT, {}), "name", ["Zorb", ""]),
    "numbers": ("jsonl", lines({"n": 7}, {"n": 0.5}), "n", ["7", "0.5"]),
    "a key with a dot in a row": ("jsonl", lines({"a.b": "x", "a": {"b": "y"}}, {"a": {"b": "z"}}), "a.b", ["x", "z"]),
    "a field that comes late": ("jsonl", lines(*[{"a": ""}] * 1001, {"b": "x"}), "b", [""] * 1001 + ["x"]),
    "a template that begins with text": (
        "jsonl", lines({"q": "x", "a": "y"}, {"q": " "}), r"Q: {q}\nA: {a}", ["Q: x\nA: y", ""],
    ),
    "a list in a template": ("jsonl", lines({"tags": ["x", "y"]}), "tags: {tags}", ["tags: x\ny"]),
    "fields of a list in a template": (
        "json", tree({"data": RESULTS}), "data: {text} ({notes.r})", ["one (a\nb)", "two ()"],
    ),
    "csv": ("csv", "id,text\n1,ost\n2\n,irb\n,\n", "{{{id}}} {text}", ["{1} ost", "{2} ", "{} irb", ""]),
    "a row without the field, commas at the end": ("csv", "id,text\n1,a,\n2\n3,b,,\n", "text", ["a", "", "b"]),
}  # fmt: skip


HERE = {"type": "text", "text": "here"}
LOOK = [{"type": "text", "text": "look"}, HERE]
ROWS = {  # rows of a table, data.field, and the texts that it leads to
    "a list of rows beside columns of the same names": (
        [{"from": "x", "text": "y", "m": [{"from": "ann", "text": "hi"}]}], "m: {from}: {text}", ["ann: hi"],
    ),
    "a path to rows": ([{"id": 1, "m": [{"text": "x"}, {"text": None}]}], "m.text", ["x", ""]),
    "a path": ([{"review": {"text": "good", "stars": 1}}, {"review": {"text": "bad"}}], "review.text", ["good", "bad"]),
    "texts": ([{"lines": ["a", "b"]}, {"lines": ["c"]}], "lines", ["a\nb", "c"]),
    "messages": ([{"m": [{"role": "user", "content": "hi"}, {"role": "bot"}]}], "m", ["user: hi\nbot: "]),
    "parts of a message": ([{"parts": [{"role": "user", "content": LOOK}]}], "parts", ["user: look\nhere"]),
    "conversations": ([{"said": [{"from": "human", "value": "1\r\n2\r"}]}], "said", ["human: 1\n2\n"]),
}  # fmt: skip


WRITERS = {"jsonl": lambda rows: lines(*rows), "json": tree, "parquet": parquet}
CASES = [(kind, write, *row) for row in ROWS.values() for kind, write in WRITERS.items()]
CASES += [(kind, str, *case) for kind, *case in FIELDS.values()]


@pytest.mark.parametrize(("kind", "write", "content", "field", "texts"), CASES)
def test_a_field_is_followed_to_its_texts(kind, write, content, field, texts):
    written = write(content)
    file = io.BytesIO(written.encode() if isinstance(written, str) else written)
    assert [text for _, text in fields(file, f"a.{kind}", field)] == texts


REFUSALS = {  # a file's suffix and content, data.field, and of the refusal
    "name": (
        "json", tree(CHAT), "messages.txt",
        "a.json: data.field=messages.txt: no such field; nearest: messages.text; the fields are "
        "messages, messages.actor, messages.from, messages.id, messages.tags, messages.text, name$",
    ),
    "list of a template": ("json", tree(CHAT), "mesages: {from}: {text}", "=from: no such field; .* messages, name$"),
    "column": ("csv", "id;text\n1;a\n", "{id}: {txt}", "a.csv: data.field=txt: no such field; nearest: text; "),
    "object": (
        "json", tree([CHAT, {"messages": [{"text": {}}]}]), "messages.text",
        "a.json, row 5: data.field must lead to text",
    ),
    "blank lines": ("jsonl", '\n\n{"text": {}}\n', "text", "a.jsonl, line 3: data.field must lead to text"),
    "a text": ("txt", "a\nb\n", "text", r"data.field=text: reads \*.csv, \*.tsv, .*, but not a.txt"),
    "too many values": ("csv", "text\na\nb, c\n", "text", "a.csv, line 3: has more fields"),
    "an open quote": ("csv", 'text\n"a', "text", "a.csv, line 2: cannot be read as a table: "),
    "a field over rows": (
        "tsv", 'id\ttext\n1\t"a\n2\tb"\n3\tc\n', "text", "a.tsv, line 2: begins a field that spans several rows",
    ),
    "cut JSON": ("json", '[{"text": "a"}', "text", "line 1: is not JSON: .*; write an object on each line"),
    "a cut line": ("jsonl", "{", "text", "a.jsonl, line 1: is not JSON: "),
    "a list": ("jsonl", "[]", "text", "a.jsonl, line 1: is not an object"),
    "half a character": ("jsonl", r'{"text": "\ud800"}', "text", "a.jsonl, line 1: .*surrogates not allowed"),
    "encoding": ("jsonl", '{"a": "\xe9"}', "a", "is not utf-8 .*data.encoding=(?!.*JSON)"),
}  # fmt: skip


@pytest.mark.parametrize(("kind", "content", "field", "said"), REFUSALS.values(), ids=REFUSALS)
def test_a_wrong_field_is_refused_with_what_there_is(kind, content, field, said):
    file = io.BytesIO(content.encode("latin-1"))
    message = refusal(InputError, lambda: list(fields(file, f"a.{kind}", field)))
    assert re.search(said, message) and "\n" not in message, message
