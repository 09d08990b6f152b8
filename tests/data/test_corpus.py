import os
import platform
import random
import sysconfig

import pytest

from base.errors import InputError
from data.config import DataConfig
from data.corpus import open_corpus
from data.decoding import CHUNK, without_rulers
from tests.conftest import refusal
from tests.stores import make


def read(path, **settings):
    opened = open_corpus(DataConfig(path=path if path is None else str(path), **settings))
    return (b"" if settings.get("tokenizer") == "byte" else "").join(opened.read(opened.documents[0]))


def make_named(folder, *names):
    make(folder, {name: name for name in names})


def names(path):
    return [document.name for document in open_corpus(DataConfig(path=str(path))).documents]


def test_text_is_what_python_reads(tmp_path):
    path = tmp_path / "text.txt"  # longer than a chunk and with letters of every width: chunks end within them and CRLF
    for encoding, mark in [
        ("utf-8", b""), ("utf_8", b"\xef\xbb\xbf"), ("utf-16", b""), ("utf-16-le", b"\xff\xfe"), ("cp1252", b""),
        ("gb18030", b""),
    ]:  # fmt: skip
        rng = random.Random(encoding)
        alphabet = ["a", "\n", "\r", "\r\n", " ", "ö"]
        alphabet += [] if encoding == "cp1252" else ["語", "\U0001f600"]
        for length in (1, CHUNK + 7):
            text = "x" + "".join(rng.choices(alphabet, k=length))
            path.write_bytes(mark + text.encode(encoding))
            assert read(path, encoding=encoding) == text.replace("\r\n", "\n").replace("\r", "\n"), (encoding, length)
    # Across the border of a chunk.
    for shift in range(-4, 2):
        begin = "a" * (CHUNK + shift)
        for end in ("\r\n\r\n\r\nb\r\n", "\r\r\rb\r", "\n\n\nb\n", "\U0001f600語é" * 2):
            path.write_bytes((begin + end).encode())
            assert read(path) == begin + end.replace("\r\n", "\n").replace("\r", "\n"), (shift, end)
    # Only a mark at the start is dropped, and none of bytes.
    for text in ("\ufeffa\ufeffb", "a" * CHUNK + "\ufeffb"):
        path.write_bytes(text.encode())
        assert read(path) == text.removeprefix("\ufeff")
    content = b"\xef\xbb\xbfa\r\nb\r\xff\x00" + random.Random(0).randbytes(2 * CHUNK)
    path.write_bytes(content)
    assert read(path, tokenizer="byte") == content


def test_another_encoding_is_named(tmp_path):
    path = tmp_path / "text.txt"
    for content, encoding, words in [
        ("wide".encode("utf-16"), "utf-8", "such as utf-16, which it looks like"), ("größe".encode(), "ascii", "utf-8"),
        (b"a\0b\0", "utf-16", "is not utf-16"), (b"6162", "hex", "data.encoding=hex"),  # decodes to no text
    ]:  # fmt: skip
        path.write_bytes(content)
        assert words in refusal(InputError, read, path, encoding=encoding)


def test_any_name_is_taken_literally(tmp_path):
    names_of_all = ["it's x y=[1,2].txt", "[x].txt", '本"q".txt', "a*b?.txt", "{a,b}$HOME.txt", "back\\slash 100%"]
    make_named(tmp_path, "x.txt", "axb1.txt", *names_of_all)  # the first two would match [x].txt and a*b?.txt
    for name in names_of_all:
        assert read(tmp_path / name) == name
        assert names(tmp_path / name) == [name]


def test_directories_and_globs(tmp_path, monkeypatch):
    visible = ["a.TXT", "b.txt", "e.md", "sub/c.txt", "sub/deep/d.txt", "sub/g.md"]
    make_named(tmp_path, *visible, ".hidden.txt", ".git/f.txt")
    for typed, found in {
        ".": ["a.TXT", "b.txt", "sub/c.txt", "sub/deep/d.txt"], "*.txt": ["b.txt"], "sub/*": ["c.txt", "g.md"],
        "**/*.txt": ["b.txt", "sub/c.txt", "sub/deep/d.txt"], "[be].*": ["b.txt", "e.md"], "**/*": visible,
        ".hidden.txt": [".hidden.txt"],
    }.items():  # fmt: skip
        assert names(tmp_path / typed) == found, typed
    make_named(tmp_path / "none", "b.md", "sub/a", ".hidden")  # without any .txt
    assert names(tmp_path / "none") == ["b.md", "sub/a"]
    monkeypatch.chdir(tmp_path / "sub")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert names("c.txt") == names("*.txt") == names("./*.txt") == ["c.txt"] and names(".") == ["c.txt", "deep/d.txt"]
    assert names("~/b.txt") == names("~/*.txt") == names("../*.txt") == ["b.txt"]


def test_what_is_not_there(tmp_path):
    make_named(tmp_path, "books/shakespeare.txt", "books/book.txt", "two words.txt", "env.sh")
    (tmp_path / "empty" / "sub").mkdir(parents=True)
    os.mkfifo(tmp_path / "pipe")
    assert refusal(InputError, read, "").endswith("no such file or directory")
    for name, end in {
        "books/shakespear.txt": "books/shakespear.txt: no such file or directory; nearest: shakespeare.txt",
        "books/SHAKESPEARE.TXT": "; nearest: shakespeare.txt", "book": "; nearest: books",
        "empty": "the directory holds no files", "pipe": "neither a file nor a directory",
        "*books": "no file matches", **dict.fromkeys(["gone.txt", "a\0b", "two\nlines"], "no such file or directory"),
    }.items():  # fmt: skip
        assert refusal(InputError, read, tmp_path / name).endswith(end), name


def test_the_digest_covers_names_and_content(tmp_path):
    texts = [{"a": "1", "b": "22"}, {"a": "0", "b": "22"}, {"a": "12", "b": "2"}, {"aa": "1", "b": "22"}]
    folders = [make(tmp_path / str(number), text) for number, text in enumerate([*texts, texts[0]])]
    corpora = [open_corpus(DataConfig(path=str(folder))) for folder in folders]
    digests = [corpus.digest(corpus.digests()) for corpus in corpora]
    assert len(set(digests)) == len(texts) and digests[0] == digests[-1]


def test_the_standard_library_without_comments_and_rulers(tmp_path, monkeypatch):
    source = 'a = 1  # stays\n# goes\n    # goes too\n"""\n-----\n  ====== x\n----\n_____\nb = "....."\nxxxxxx\n"""\n#'
    assert without_rulers(source) == 'a = 1  # stays\n"""\n----\nxxxxxx\n"""'
    opened, version = open_corpus(DataConfig()), platform.python_version()
    assert opened.name == f"Python {version} standard library" and opened.python == version
    assert {"argparse.py", "json/decoder.py", "asyncio/events.py"} <= {each.name for each in opened.documents}
    make_named(tmp_path, "b.py", "json/e.py", "test/d.py", "json/tests/d.py", "site-packages/d.py")
    make(tmp_path, {"_sysconfigdata_x.py": "", "g.txt": "", "a.py": "x = 1\r\n# gone\r\ny = 2\r\n", "h.py": "é = 1"})
    monkeypatch.setattr(sysconfig, "get_paths", lambda: {"stdlib": str(tmp_path)})
    opened = open_corpus(DataConfig())
    assert [document.name for document in opened.documents] == ["a.py", "b.py", "json/e.py"]
    assert list(opened.read(opened.documents[0])) == ["x = 1\ny = 2\n"]
    assert read(None, tokenizer="byte") == b"x = 1\ny = 2\n"
    monkeypatch.setattr(sysconfig, "get_paths", lambda: {"stdlib": str(tmp_path / "test" / "none")})
    with pytest.raises(InputError, match="data.path="):
        open_corpus(DataConfig())


ROLES = {  # names of the files of a text, and what a run says of them
    "a list": (["train.txt", "valid.txt", "test.txt"], "data.validation= and data.test="),
    "one is held out": (["wiki.train.tokens", "wiki.dev.tokens"], "use data.validation= to"),
    "a folder of code": (["train.py", "test_a.py", "model.py"], ""),
    "no held-out file": (["train.txt"], ""),
}


@pytest.mark.parametrize("kind", ROLES)
def test_published_splits_that_are_joined_are_named(tmp_path, kind):
    names, said = ROLES[kind]
    make_named(tmp_path, *names)
    notes = [note for note in open_corpus(DataConfig(path=str(tmp_path))).notes if "published" in note]
    assert len(notes) == bool(said) and all(said in note for note in notes)
