import hashlib
import io
import os
import platform
import random
import socket
import sysconfig
import threading
import zipfile
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pooch
import pytest

from data import downloads
from data.config import DataConfig
from data.corpus import CHUNK, DataError, without_rulers
from data.sources import find_documents, open_corpus
from tests.conftest import refusal
from tests.stores import Folder


def read(path, **settings):
    opened = open_corpus(DataConfig(path=path if path is None else str(path), **settings))
    return (b"" if settings.get("tokenizer") == "byte" else "").join(opened.read(opened.documents[0]))


def make(root, *names):
    Folder(root, {name: name for name in names})


def names(path):
    return [document.name for document in find_documents(str(path))]


def test_text_is_what_python_reads(tmp_path):
    path = tmp_path / "text.txt"  # longer than a chunk and with letters of every width: chunks end within them and CRLF
    for encoding, mark in [
        ("utf-8", b""), ("utf-8", b"\xef\xbb\xbf"), ("utf_8", b"\xef\xbb\xbf"), ("utf-8-sig", b"\xef\xbb\xbf"),
        ("utf-16", b""), ("utf-16-le", b"\xff\xfe"), ("utf-32", b""), ("latin-1", b""), ("cp1252", b""),
        ("gb18030", b""),
    ]:  # fmt: skip
        rng = random.Random(encoding)
        alphabet = ["a", "\n", "\r", "\r\n", " ", "ö"]
        alphabet += [] if encoding in ("latin-1", "cp1252") else ["語", "\U0001f600"]
        for length in (0, 1, 5, CHUNK + 7):
            text = "x" + "".join(rng.choices(alphabet, k=length))
            path.write_bytes(mark + text.encode(encoding))
            assert read(path, encoding=encoding) == text.replace("\r\n", "\n").replace("\r", "\n"), (encoding, length)
    # Across the border of a chunk.
    for shift in range(-4, 2):
        begin = "a" * (CHUNK + shift)
        for ending in ("\r\n", "\r", "\n"):
            path.write_bytes(f"{begin}{ending * 3}b{ending}".encode())
            assert read(path) == begin + "\n\n\nb\n", (shift, ending)
        path.write_text(begin + "\U0001f600語é" * 2, encoding="utf-8")
        assert read(path) == begin + "\U0001f600語é" * 2, shift
    # Only a mark at the start is dropped, and none of bytes.
    for text in ("\ufeffa\ufeffb", "a" * CHUNK + "\ufeffb"):
        path.write_text(text, encoding="utf-8")
        assert read(path) == text.removeprefix("\ufeff")
    content = b"\xef\xbb\xbfa\r\nb\r\xff\x00" + random.Random(0).randbytes(2 * CHUNK)
    path.write_bytes(content)
    assert read(path, tokenizer="byte") == content


def test_invalid_bytes_are_named_with_their_offset(tmp_path):
    path, cut = tmp_path / "text.txt", "語".encode()[:2]
    for offset in (0, 1, 7, CHUNK - 2, CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK + 5):
        for mark in (b"", b"\xef\xbb\xbf"):
            for wrong in (b"\xff" + b"b" * CHUNK, cut, b"\xe8" + b"aaa"):  # the last two: cut off, and broken
                path.write_bytes(mark + b"a" * offset + wrong)
                message = refusal(DataError, read, path)
                assert f"byte {offset + len(mark):,} is not utf-8" in message, (offset, mark, wrong)
                assert str(path) in message and "data.encoding=" in message
    # The likely encoding is proposed.
    for content, encoding, words in [
        ("wide".encode("utf-16"), "utf-8", "such as utf-16, which it looks like"),
        ("größe".encode("latin-1"), "utf-8", "such as latin-1"), ("größe".encode(), "ascii", "such as utf-8"),
        (b"a\0b\0", "utf-16", "is not utf-16"), (b"6162", "hex", "data.encoding=hex"),  # decodes to no text
    ]:  # fmt: skip
        path.write_bytes(content)
        assert words in refusal(DataError, read, path, encoding=encoding)


NAMES = [
    "bücher.txt", "my book (1).txt", "it's.txt", "a,b.txt", "a=b.txt", "[x].txt", "книга.txt", "本.txt", '"q".txt',
    "a*b?.txt", "{a,b}.txt", "x y=[1,2].txt", "$HOME.txt", "back\\slash.txt", "plain", "100%.txt",
]  # fmt: skip


def test_any_name_is_taken_literally(tmp_path):
    make(tmp_path, "x.txt", "axb1.txt", *NAMES)  # the first two would match [x].txt and a*b?.txt
    for name in NAMES:
        assert read(tmp_path / name) == name
        assert names(tmp_path / name) == [name]


def test_directories_and_globs(tmp_path, monkeypatch):
    make(tmp_path, "b.txt", "a.TXT", "sub/c.txt", "sub/deep/d.txt", "e.md", ".hidden.txt", ".git/f.txt", "sub/g.md")
    assert names(tmp_path) == ["a.TXT", "b.txt", "sub/c.txt", "sub/deep/d.txt"]
    assert names(tmp_path / "*.txt") == ["b.txt"]
    assert names(tmp_path / "**" / "*.txt") == ["b.txt", "sub/c.txt", "sub/deep/d.txt"]
    assert names(tmp_path / "sub" / "*") == ["c.txt", "g.md"]
    assert names(tmp_path / "[be].*") == ["b.txt", "e.md"]
    assert names(tmp_path / ".hidden.txt") == [".hidden.txt"]
    assert names(tmp_path / "**" / "*") == ["a.TXT", "b.txt", "e.md", "sub/c.txt", "sub/deep/d.txt", "sub/g.md"]
    make(tmp_path / "none", "b.md", "sub/a", ".hidden")  # without any .txt
    assert names(tmp_path / "none") == ["b.md", "sub/a"]
    monkeypatch.chdir(tmp_path / "sub")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert names("c.txt") == names("*.txt") == names("./*.txt") == ["c.txt"] and names(".") == ["c.txt", "deep/d.txt"]
    assert names("~/b.txt") == names("~/*.txt") == names("../*.txt") == ["b.txt"]


def test_what_is_not_there(tmp_path):
    make(tmp_path, "books/shakespeare.txt", "other")
    (tmp_path / "empty" / "sub").mkdir(parents=True)
    os.mkfifo(tmp_path / "pipe")
    near = tmp_path / "books" / "shakespear.txt"
    assert refusal(DataError, read, near) == f"data.path={near}: no such file or directory; nearest: shakespeare.txt"
    assert refusal(DataError, read, "").endswith("no such file or directory")
    for name, reason in {
        "book": "; nearest: books", "empty": "the directory holds no files", "pipe": "neither a file nor a directory",
        "*.pdf": "no file matches", "*books": "no file matches",  # a directory is no file
        **dict.fromkeys(["zzzzzzzz", "zzzz/a.txt", "a\0b", "two\nlines"], "no such file or directory"),
    }.items():  # fmt: skip
        assert refusal(DataError, read, tmp_path / name).endswith(reason)


def test_the_digest_covers_names_and_content(tmp_path):
    texts = [
        {"a": "1", "b": "2"}, {"a": "0", "b": "2"}, {"aa": "1", "b": "2"}, {"b": "2", "c": "1"},
        {"b": "2", "c": "1", "d": "3"}, {"a": "12", "b": "2"}, {"a": "1", "b": "22"},  # all in all the same bytes
    ]  # fmt: skip
    folders = [Folder(tmp_path / str(number), text) for number, text in enumerate([*texts, texts[0]])]
    digests = [open_corpus(DataConfig(path=str(folder.path))).digest() for folder in folders]
    assert len(set(digests)) == len(texts) and digests[0] == digests[-1]


def test_the_standard_library_without_comments_and_rulers(tmp_path, monkeypatch):
    source = 'a = 1  # stays\n# goes\n    # goes too\n"""\n-----\n  ====== x\n----\n_____\nb = "....."\nxxxxxx\n"""\n#'
    assert without_rulers(source) == 'a = 1  # stays\n"""\n----\nxxxxxx\n"""'
    opened = open_corpus(DataConfig())
    version = platform.python_version()
    assert opened.name == f"Python {version} standard library" and opened.python == version
    found = [document.name for document in opened.documents]
    assert found == sorted(found) and len(found) > 300
    assert {"argparse.py", "json/decoder.py", "asyncio/events.py"} <= set(found)
    left_out = {"test", "tests", "idlelib", "encodings", "lib2to3", "pydoc_data", "turtledemo", "ensurepip"}
    assert not [name for name in found if left_out & {*Path(name).parts[:-1]}]
    assert not [name for name in found if "site-packages" in name or "_sysconfigdata" in name]
    # What counts as standard library.
    make(tmp_path, "b.py", "test/c.py", "json/tests/d.py", "json/e.py", "site-packages/f.py")
    make(tmp_path, "_sysconfigdata_x.py", "g.txt")
    (tmp_path / "a.py").write_bytes(b"x = 1\r\n# gone\r\ny = 2\r\n")
    (tmp_path / "h.py").write_text("é = 1", encoding="utf-8")
    monkeypatch.setattr(sysconfig, "get_paths", lambda: {"stdlib": str(tmp_path)})
    opened = open_corpus(DataConfig())
    assert [document.name for document in opened.documents] == ["a.py", "b.py", "json/e.py"]
    assert list(opened.read(opened.documents[0])) == ["x = 1\ny = 2\n"]
    assert read(None, tokenizer="byte") == b"x = 1\ny = 2\n"
    monkeypatch.setattr(sysconfig, "get_paths", lambda: {"stdlib": str(tmp_path / "test" / "none")})
    with pytest.raises(DataError, match="data.path="):
        open_corpus(DataConfig())


CONTENT = b"First Citizen:\nBefore we proceed any further, hear me speak.\n" * 2000
ZIPPED = io.BytesIO()
with zipfile.ZipFile(ZIPPED, "w", zipfile.ZIP_DEFLATED) as archive:
    archive.writestr("enwik8", CONTENT)
PAGES = {"/good": CONTENT, "/wrong": CONTENT[:-1] + b"?", "/cut": CONTENT, "/zip": ZIPPED.getvalue()}


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.server.asked.append(self.path)
        body = PAGES.get(self.path)
        if body is None:
            return self.send_error(404, "Not Found")
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body[: len(body) // 2] if self.path == "/cut" else body)

    def log_message(self, *args):
        pass


@pytest.fixture
def point(monkeypatch):
    """Let a corpus come from a page of a server on this machine; `asked` are the pages that it was asked for."""

    def change(name, page, content=CONTENT, port=None):
        url = f"http://127.0.0.1:{port or server.server_port}{page}"
        changed = replace(downloads.DOWNLOADS[name], url=url, sha256=hashlib.sha256(content).hexdigest())
        monkeypatch.setitem(downloads.DOWNLOADS, name, changed)
        return url

    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        change.asked = server.asked = []
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield change
        server.shutdown()
        thread.join()


def downloaded(tmp_path, name="shakespeare", **settings):
    return read(None, corpus=name, cache_dir=str(tmp_path), **settings)


def test_a_download_is_kept_and_a_damaged_one_never_used(tmp_path, point, monkeypatch):
    point("shakespeare", "/good")
    said = []
    pooch.get_logger().setLevel("INFO")
    monkeypatch.setattr(pooch.get_logger().handlers[0], "emit", said.append)
    assert downloaded(tmp_path) == downloaded(tmp_path) == CONTENT.decode()
    assert point.asked == ["/good"]
    assert os.listdir(tmp_path / "downloads") == ["shakespeare.txt"]
    (tmp_path / "downloads" / "shakespeare.txt").write_bytes(CONTENT[:1000])
    assert downloaded(tmp_path) == CONTENT.decode()
    assert point.asked == ["/good"] * 2 and said == []
    assert open_corpus(DataConfig(corpus="shakespeare", cache_dir=str(tmp_path))).name == "tiny Shakespeare"
    point("enwik8", "/zip", ZIPPED.getvalue())  # is read without being unpacked
    assert downloaded(tmp_path, "enwik8", tokenizer="byte") == CONTENT
    assert downloaded(tmp_path, "enwik8") == CONTENT.decode()
    assert sorted(os.listdir(tmp_path / "downloads")) == ["enwik8.zip", "shakespeare.txt"]


def test_a_failed_download_is_one_line_and_leaves_nothing(tmp_path, point):
    with socket.create_server(("127.0.0.1", 0)) as server:
        closed = server.getsockname()[1]
    for page, port, reason in [
        ("/wrong", None, "another checksum"), ("/cut", None, "connection was cut"),
        ("/nowhere", None, "answered 404 Not Found"), ("/good", closed, "no connection"),
    ]:  # fmt: skip
        url = point("shakespeare", page, port=port)
        message, target = refusal(DataError, downloaded, tmp_path), tmp_path / "downloads" / "shakespeare.txt"
        assert all(part in message for part in (url, str(target), reason, "data.path=")), message
        assert os.listdir(tmp_path / "downloads") == []
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(DataError, match="data.path="):
        downloaded(tmp_path / "file")
