import gzip
import os
import platform
import random
import shlex
import sysconfig

import pytest

from base.errors import InputError
from data.config import DataConfig
from data.find import find, without_binary, without_rulers
from data.read import CHUNK
from tests.conftest import refusal
from tests.folders import make


def read(path, **settings):
    opened = find(DataConfig(path=path if path is None else str(path), **settings))
    text = "".join(opened.read(opened.files[0]))
    # a byte is the character of its value
    return text.encode("latin-1") if settings.get("tokenizer") == "byte" else text


def make_named(folder, *names):
    make(folder, {name: name for name in names})


def names(path):
    return [document.name for document in find(DataConfig(path=str(path))).files]


def with_newlines(text):
    return text.replace("\r\n", "\n").replace("\r", "\n")


ENCODINGS = {
    "utf-8": b"", "utf_8": b"\xef\xbb\xbf", "utf-16": b"", "utf-16-le": b"\xff\xfe", "cp1252": b"", "gb18030": b"",
}  # fmt: skip


@pytest.mark.parametrize("chunk", [*range(1, 8), CHUNK])
@pytest.mark.parametrize(("encoding", "mark"), ENCODINGS.items(), ids=ENCODINGS)
def test_text_is_what_python_reads(tmp_path, monkeypatch, encoding, mark, chunk):
    """Without byte order marks, wherever a chunk ends: within a letter, a mark or CRLF."""
    monkeypatch.setattr("data.read.CHUNK", chunk)
    path = tmp_path / "text.txt"
    alphabet = ["a", "\n", "\r", "\r\n", " ", "ö"]
    if encoding != "cp1252":
        alphabet += ["語", "\U0001f600", "\ufeff"]
    text = "x" + "".join(random.Random(encoding).choices(alphabet, k=300)) + "\r"
    path.write_bytes(mark + text.encode(encoding))
    assert read(path, encoding=encoding) == with_newlines(text).replace("\ufeff", "")
    assert read(path, tokenizer="byte") == path.read_bytes()


RUSSIAN = "дом мора на поле ворон\n" * 9
CHINESE = "今天天气很好我们去公园玩\n" * 9
DAMAGED = "one damaged place in text that is otherwise utf-"
NAMES = "data.encoding=NAME, such as cp1252"


UNDECODABLE = {  # content, encoding, what is wrong and what helps
    "cp1252": ("né\nñ".encode("cp1252"), "utf-8", "byte 1 (line 1) is not utf-8", NAMES),
    "cut or cp1252": (b"ab\n" * 65_536 + b"caf\xe9", "utf-8", "byte 196,611 (line 65,537)", NAMES),
    "Cyrillic": (RUSSIAN.encode("cp1251"), "utf-8", "byte 0 (line 1)", NAMES),
    "cut Chinese": (CHINESE.encode("gbk")[:-2], "gbk", "byte 222 (line 9) is not gbk", NAMES),
    "UTF-16 without a mark": (b"a\0b\0", "utf-16", "is not utf-16", "data.encoding=NAME"),
    "UTF-32": ("wide".encode("utf-32"), "utf-8", "is not utf-8", "use data.encoding=utf-32"),
    "UTF-16": ("wide".encode("utf-16"), "utf-8", "is not utf-8", "use data.encoding=utf-16"),
    "cut UTF-8": (RUSSIAN.encode()[:-2], "utf-8", "byte 366 (line 9)", DAMAGED),
    "bytes": (b"6162", "hex", "data.encoding=hex", "is not an encoding of text files"),
    **{
        f"damaged after {at}": (
            b"a" * at + RUSSIAN.encode() + b"\xff" + RUSSIAN.encode(),
            "utf-8",
            f"byte {at + 369:,} (line 10) is not utf-8",
            DAMAGED,
        )
        for at in (0, CHUNK - 400, CHUNK)
    },
}


@pytest.mark.parametrize(
    ("content", "encoding", "what", "way"), UNDECODABLE.values(), ids=UNDECODABLE
)
def test_what_cannot_be_decoded_is_named_with_its_byte_and_line(
    tmp_path, content, encoding, what, way
):
    path = tmp_path / "text.gz"
    path.write_bytes(gzip.compress(content))
    message = refusal(InputError, read, path, encoding=encoding)
    assert what in message
    assert way in message


WESTERN = "né\n".encode("cp1252")
WIDE = "né\n".encode("utf-16")


@pytest.mark.parametrize("notes", [["né", WIDE], ["plain", WESTERN], [WESTERN, "naïve"]], ids=str)
def test_an_encoding_that_may_spoil_other_files_is_not_the_only_advice(tmp_path, opened, notes):
    make(tmp_path / "text", {f"{number}.md": note for number, note in enumerate(notes)})
    message = refusal(InputError, opened)
    assert "data.encoding=" in message
    assert message.endswith(
        "; if the other files are right, convert this one: iconv -f ENCODING -t utf-8 FILE"
    )


@pytest.mark.parametrize(
    "name",
    [
        "it's x y=[1,2].txt",
        "[x].txt",
        '本"q".txt',
        "a*b?.txt",
        "{a,b}$HOME.txt",
        "back\\slash 100%",
    ],
)
def test_any_name_is_taken_literally(tmp_path, name):
    # which [x].txt and a*b?.txt would match
    make_named(tmp_path, "x.txt", "axb1.txt", name)
    assert read(tmp_path / name) == name
    assert names(tmp_path / name) == [name]


VISIBLE = ["a.TXT", "b.txt", "e.md", "sub/c.txt", "sub/deep/d.txt", "sub/g.md"]


@pytest.mark.parametrize(
    ("typed", "files"),
    [
        ("c.txt", ["c.txt"]),
        (".", ["c.txt", "deep/d.txt"]),
        ("*", ["c.txt", "g.md"]),
        ("~", ["a.TXT", "b.txt", "sub/c.txt", "sub/deep/d.txt"]),
        ("~/*.txt", ["b.txt"]),
        ("../**/*.txt", ["b.txt", "sub/c.txt", "sub/deep/d.txt"]),
        ("../[be].*", ["b.txt", "e.md"]),
        ("../**/*", VISIBLE),
        ("../.hidden.txt", [".hidden.txt"]),
    ],
)
def test_names_and_globs_begin_at_the_working_directory_or_at_home(
    tmp_path, monkeypatch, typed, files
):
    make_named(tmp_path, *VISIBLE, ".hidden.txt", ".git/f.txt")
    monkeypatch.chdir(tmp_path / "sub")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert names(typed) == files


RUN = ("config.yaml", "train.log", "report.html", "checkpoints/last.ckpt")


OTHERS = {
    "a run": [f"runs/a/{name}" for name in RUN],
    "a sweep": ["runs/s/sweep.csv", *(f"runs/s/1/{name}" for name in RUN)],
    "an environment": ["venv/pyvenv.cfg", "venv/lib/a.md"],
    "packages": ["sub/node_modules/a/README.md"],
}


@pytest.mark.parametrize("others", OTHERS.values(), ids=OTHERS)
def test_runs_and_environments_are_not_part_of_a_text(tmp_path, monkeypatch, others):
    # no checkpoints beside the config.yaml
    notes = ["a.md", "config.yaml", "sub/b.md", "sub/checkpoints/c.md"]
    make_named(tmp_path, *notes, *others)
    monkeypatch.chdir(tmp_path)
    assert names(".") == names("**/*") == names("./**/*") == names(tmp_path) == notes
    assert names("**/*.md") == [name for name in notes if name.endswith(".md")]
    assert names(others[0]) == [others[0].rpartition("/")[2]]  # but can be named


def test_a_folder_of_which_only_txt_is_read_counts_the_others(tmp_path):
    make_named(
        tmp_path,
        *"a.txt b.TXT.gz c.md d.md.gz e.py LICENSE f.csv sub/g.md".split(),
        "runs/a/config.yaml",
    )
    (tmp_path / "runs/a/checkpoints").mkdir()
    opened = find(DataConfig(path=str(tmp_path)))
    kinds = "3 .md, 1 without a suffix, 1 .py, …"
    assert [source.name for source in opened.files] == ["a.txt", "b.TXT.gz"]
    apart, note = opened.notes
    assert apart.startswith("left out 1 folder (runs, environments or closed): ")
    assert note.startswith(f"2 *.txt files read, 6 other files left out: {kinds}; to read all: ")
    (way,) = shlex.split(note.partition("to read all: ")[2])
    assert len(names(way.removeprefix("data.path="))) == 8


NOT_THERE = {  # what is typed, and of the refusal
    "": "no such file or directory",
    "books/shakespear.txt": "shakespear.txt: no such file or directory; nearest: shakespeare.txt",
    "book": "; nearest: books",
    "empty": "holds no files that can be read",
    "pipe": "neither a file nor a directory",
    "*books": "no file matches",
    "nosuch/**/*.txt": "no file matches",
    "a\0b": "no such file or directory",
    "two\nlines": "no such file or directory",
}


@pytest.mark.parametrize("typed", NOT_THERE)
def test_what_is_not_there(tmp_path, monkeypatch, typed):
    make_named(tmp_path, "books/shakespeare.txt", "books/book.txt", "two words.txt", "env.sh")
    (tmp_path / "empty" / "sub").mkdir(parents=True)
    os.mkfifo(tmp_path / "pipe")
    monkeypatch.chdir(tmp_path)
    assert refusal(InputError, read, typed).endswith(NOT_THERE[typed])


def test_links_to_folders_and_closed_folders_are_not_entered(tmp_path, monkeypatch):
    make_named(tmp_path, "a.md", "sub/b.md", "closed/c.md")
    (tmp_path / "sub/up").symlink_to(tmp_path)
    monkeypatch.setattr(os, "scandir", closed(os.scandir))
    assert names(tmp_path) == names(tmp_path / "**/*") == ["a.md", "sub/b.md"]
    (note,) = find(DataConfig(path=str(tmp_path))).notes
    assert (
        note.startswith("left out 1 folder (runs, environments or closed): ") and "closed" in note
    )
    assert names(tmp_path / "sub/up/sub") == ["b.md"]  # but can be named


def closed(scandir):
    """As root can read everything, a folder of this name cannot be opened."""

    def scan(folder):
        if str(folder).endswith("closed"):
            raise PermissionError(13, "Permission denied", str(folder))
        return scandir(folder)

    return scan


def test_tables_come_first_where_a_field_is_read(tmp_path):
    make(tmp_path, {"README.txt": "read me\n", "a.jsonl": '{"text": "a"}\n'})
    opened = find(DataConfig(path=str(tmp_path), field="text"))
    assert [source.name for source in opened.files] == ["a.jsonl"]
    assert opened.notes[0].startswith("1 table read, 1 other file left out: 1 .txt")


def test_comments_and_rulers_are_left_out():
    source = 'a = 1  # stays\n# goes\n    # goes too\n"""\n-----\n  ====== x\n----\n_____\nb = "....."\nxxxxxx\n"""\n#'
    assert without_rulers(source) == 'a = 1  # stays\n"""\n----\nxxxxxx\n"""'


def test_without_a_path_the_text_is_the_standard_library():
    opened, version = find(DataConfig()), platform.python_version()
    assert opened.name == f"Python {version} standard library"
    assert opened.python == version
    found = {each.name for each in opened.files}
    assert {"argparse.py", "json/decoder.py", "asyncio/events.py"} <= found


def test_tests_packages_and_generated_files_are_not_the_standard_library(tmp_path, monkeypatch):
    make_named(tmp_path, "b.py", "json/e.py", "test/d.py", "json/tests/d.py", "site-packages/d.py")
    make(tmp_path, {"_sysconfigdata_x.py": "", "g.txt": "", "h.py": "é = 1"})
    make(tmp_path, {"a.py": "x = 1\r\n# gone\r\ny = 2\r\n"})
    monkeypatch.setattr(sysconfig, "get_paths", lambda: {"stdlib": str(tmp_path)})
    opened = without_binary(find(DataConfig()), with_field=False)
    assert [document.name for document in opened.files] == ["a.py", "b.py", "json/e.py"]
    assert list(opened.read(opened.files[0])) == ["x = 1\ny = 2\n"]
    assert read(None, tokenizer="byte") == b"x = 1\ny = 2\n"


ROLES = {  # names of the files of a text, and what a run says of them
    "a list": (["train.txt", "valid.txt", "test.txt"], "data.validation= and data.test="),
    "one is held out": (["wiki.train.tokens", "wiki.dev.tokens"], "use data.validation= to"),
    "a folder of code": (["train.py", "test_a.py", "model.py"], ""),
    "no held-out file": (["train.txt"], ""),
}


@pytest.mark.parametrize(("names", "said"), ROLES.values(), ids=ROLES)
def test_published_splits_that_are_joined_are_named(tmp_path, names, said):
    make_named(tmp_path, *names)
    notes = find(DataConfig(path=str(tmp_path))).notes
    published = [said in note for note in notes if "published" in note]
    assert published == ([True] if said else [])
