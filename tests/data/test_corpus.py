import hashlib
import io
import os
import platform
import random
import re
import socket
import sysconfig
import threading
import unicodedata
import zipfile
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pooch
import pytest

from data import corpus
from data.config import DataConfig
from data.corpus import CHUNK, DataError, find_documents, open_corpus, without_rulers


def read(path, **settings):
    """All of the first document, joined."""
    opened = open_corpus(DataConfig(path=str(path), **settings))
    pieces = list(opened.read(opened.documents[0]))
    return (b"" if settings.get("tokenizer") == "byte" else "").join(pieces)


def names(path):
    return [document.name for document in find_documents(str(path))]


def message_of(path, **settings):
    with pytest.raises(DataError) as caught:
        read(path, **settings)
    message = str(caught.value)
    assert len(message.splitlines()) == 1
    return message


# -- Reading ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("encoding", "mark"),
    [
        ("utf-8", b""), ("utf-8", b"\xef\xbb\xbf"), ("utf_8", b"\xef\xbb\xbf"), ("utf-8-sig", b"\xef\xbb\xbf"),
        ("utf-16", b""), ("utf-16-le", b"\xff\xfe"), ("utf-32", b""), ("latin-1", b""), ("cp1252", b""),
        ("gb18030", b""),
    ],
)  # fmt: skip
def test_text_is_what_python_reads(tmp_path, encoding, mark):
    # Longer than a chunk and with letters of every width, so that chunks end within letters and within CRLF.
    rng = random.Random(encoding)
    alphabet = ["a", "\n", "\r", "\r\n", " ", "ö"] + ([] if encoding in ("latin-1", "cp1252") else ["語", "\U0001f600"])
    for length in (0, 1, 5, CHUNK + 7):
        text = "x" + "".join(rng.choices(alphabet, k=length))
        path = tmp_path / "text.txt"
        path.write_bytes(mark + text.encode(encoding))
        assert read(path, encoding=encoding) == text.replace("\r\n", "\n").replace("\r", "\n")


@pytest.mark.parametrize("ending", ["\r\n", "\r", "\n"])
@pytest.mark.parametrize("shift", [-2, -1, 0, 1])
def test_line_ends_at_the_border_of_a_chunk(tmp_path, ending, shift):
    path = tmp_path / "text.txt"
    path.write_bytes(b"a" * (CHUNK + shift) + ending.encode() * 3 + b"b" + ending.encode())
    assert read(path) == "a" * (CHUNK + shift) + "\n\n\nb\n"


@pytest.mark.parametrize("shift", range(-4, 2))
def test_a_letter_across_the_border_of_a_chunk(tmp_path, shift):
    text = "a" * (CHUNK + shift) + "\U0001f600語é" * 2
    path = tmp_path / "text.txt"
    path.write_text(text, encoding="utf-8")
    assert read(path) == text


def test_only_a_mark_at_the_start_is_dropped(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("\ufeffa\ufeffb", encoding="utf-8")
    assert read(path) == "a\ufeffb"
    path.write_text("a" * CHUNK + "\ufeffb", encoding="utf-8")
    assert read(path) == "a" * CHUNK + "\ufeffb"


def test_bytes_are_left_alone(tmp_path):
    path = tmp_path / "text.bin"
    content = b"\xef\xbb\xbfa\r\nb\r\xff\x00" + random.Random(0).randbytes(2 * CHUNK)
    path.write_bytes(content)
    assert read(path, tokenizer="byte") == content


@pytest.mark.parametrize("offset", [0, 1, 7, CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK + 5])
@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
def test_invalid_bytes_are_named_with_their_offset(tmp_path, offset, mark):
    path = tmp_path / "text.txt"
    path.write_bytes(mark + b"a" * offset + b"\xff" + b"b" * CHUNK)
    message = message_of(path)
    assert f"byte {offset + len(mark):,} is not utf-8" in message
    assert str(path) in message and "data.encoding=" in message


@pytest.mark.parametrize("offset", [3, CHUNK - 1, CHUNK - 2, 2 * CHUNK])
def test_a_letter_cut_off_at_the_end_of_the_file(tmp_path, offset):
    path = tmp_path / "text.txt"
    path.write_bytes(b"a" * offset + "語".encode()[:2])
    assert f"byte {offset:,} is not utf-8" in message_of(path)


def test_a_letter_that_breaks_behind_the_border_of_a_chunk(tmp_path):
    path = tmp_path / "text.txt"
    path.write_bytes(b"a" * (CHUNK - 1) + b"\xe8" + b"aaa")
    assert f"byte {CHUNK - 1:,} is not utf-8" in message_of(path)


def test_the_likely_encoding_is_proposed(tmp_path):
    path = tmp_path / "text.txt"
    path.write_bytes("wide".encode("utf-16"))
    assert "utf-16, which it looks like" in message_of(path)
    path.write_bytes("größe".encode("latin-1"))
    assert "latin-1" in message_of(path)
    assert read(path, encoding="latin-1") == "größe"
    path.write_text("größe", encoding="utf-8")
    assert "utf-8" in message_of(path, encoding="ascii").split("such as")[1]
    path.write_bytes(b"a\0b\0")
    assert "utf-16" in message_of(path, encoding="utf-16")


def test_what_decodes_to_no_text_is_no_encoding(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("6162")
    assert "data.encoding=hex" in message_of(path, encoding="hex")


def test_a_file_that_may_not_be_read(tmp_path, monkeypatch):
    path = tmp_path / "text.txt"
    path.write_text("abc")

    def refuse(*args):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(corpus, "open", refuse, raising=False)  # root may read everything, so chmod shows nothing
    assert message_of(path) == f"{path}: cannot be read: Permission denied"


def test_a_directory_that_may_not_be_read(tmp_path, monkeypatch):
    def refuse(*args):
        raise PermissionError(13, "Permission denied", str(tmp_path))

    monkeypatch.setattr(os, "scandir", refuse)
    assert message_of(tmp_path) == f"{tmp_path}: cannot be read: Permission denied"


# -- Finding ---------------------------------------------------------------------------------------

NAMES = [
    "bücher.txt", "my book (1).txt", "it's.txt", "a,b.txt", "a=b.txt", "[x].txt", "книга.txt", "本.txt", '"q".txt',
    "a*b?.txt", "{a,b}.txt", "x y=[1,2].txt", "$HOME.txt", "back\\slash.txt", "plain", "100%.txt",
]  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_any_name_is_taken_literally(tmp_path, name):
    (tmp_path / name).write_text(name, encoding="utf-8")
    (tmp_path / "x.txt").write_text("what [x].txt would match")
    (tmp_path / "axb1.txt").write_text("what a*b?.txt would match")
    assert read(tmp_path / name) == name
    assert names(tmp_path / name) == [name]


@pytest.mark.parametrize("stored", ["NFC", "NFD"])
@pytest.mark.parametrize("typed", ["NFC", "NFD"])
def test_letters_composed_or_not(tmp_path, stored, typed):
    (tmp_path / unicodedata.normalize(stored, "bücher.txt")).write_text("text")
    assert read(tmp_path / unicodedata.normalize(typed, "bücher.txt")) == "text"
    # The name within the corpus, on which the split depends, is the same on every system.
    assert names(tmp_path / unicodedata.normalize(typed, "bü*.txt")) == [unicodedata.normalize("NFC", "bücher.txt")]
    assert names(tmp_path) == [unicodedata.normalize("NFC", "bücher.txt")]


def make(root, *files):
    for name in files:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(name)


def test_directories_and_globs(tmp_path):
    make(tmp_path, "b.txt", "a.TXT", "sub/c.txt", "sub/deep/d.txt", "e.md", ".hidden.txt", ".git/f.txt", "sub/g.md")
    assert names(tmp_path) == ["a.TXT", "b.txt", "sub/c.txt", "sub/deep/d.txt"]
    assert names(tmp_path / "*.txt") == ["b.txt"]
    assert names(tmp_path / "**" / "*.txt") == ["b.txt", "sub/c.txt", "sub/deep/d.txt"]
    assert names(tmp_path / "sub" / "*") == ["c.txt", "g.md"]
    assert names(tmp_path / "[be].*") == ["b.txt", "e.md"]
    assert names(tmp_path / ".hidden.txt") == [".hidden.txt"]
    assert names(tmp_path / "**" / "*") == ["a.TXT", "b.txt", "e.md", "sub/c.txt", "sub/deep/d.txt", "sub/g.md"]


def test_a_directory_without_txt_gives_all_its_files(tmp_path):
    make(tmp_path, "b.md", "sub/a", ".hidden")
    assert names(tmp_path) == ["b.md", "sub/a"]


def test_relative_and_home(tmp_path, monkeypatch):
    make(tmp_path, "a.txt", "sub/b.txt")
    monkeypatch.chdir(tmp_path / "sub")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert names("b.txt") == names("*.txt") == names("./*.txt") == names(".") == ["b.txt"]
    assert names("~/a.txt") == names("~/*.txt") == names("../*.txt") == ["a.txt"]


def test_what_is_not_there(tmp_path):
    make(tmp_path, "books/shakespeare.txt", "other")
    missing = tmp_path / "books" / "shakespear.txt"
    assert message_of(missing) == f"data.path={missing}: no such file or directory; nearest: shakespeare.txt"
    assert message_of(tmp_path / "book").endswith("; nearest: books")
    assert message_of(tmp_path / "zzzzzzzz").endswith("no such file or directory")
    assert message_of(tmp_path / "zzzz" / "a.txt").endswith("no such file or directory")
    assert message_of("").endswith("no such file or directory")
    assert message_of("a\0b").endswith("no such file or directory")
    assert message_of(tmp_path / "*.pdf").endswith("no file matches")
    assert message_of(tmp_path / "*books").endswith("no file matches")  # a directory is no file
    (tmp_path / "empty" / "sub").mkdir(parents=True)
    assert message_of(tmp_path / "empty").endswith("the directory holds no files")
    assert message_of(tmp_path / "two\nlines").endswith("no such file or directory")


def test_a_pipe_is_no_file(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    assert message_of(tmp_path / "pipe").endswith("is neither a file nor a directory")


def test_the_digest_covers_names_and_content(tmp_path):
    def digest():
        return open_corpus(DataConfig(path=str(tmp_path / "texts"))).digest()

    make(tmp_path, "texts/a.txt", "texts/b.txt")
    seen = {digest()}
    (tmp_path / "texts" / "a.txt").write_text("A.txt")
    seen.add(digest())
    (tmp_path / "texts" / "a.txt").rename(tmp_path / "texts" / "aa.txt")  # the order stays
    seen.add(digest())
    (tmp_path / "texts" / "aa.txt").rename(tmp_path / "texts" / "c.txt")
    seen.add(digest())
    make(tmp_path, "texts/d.txt")
    seen.add(digest())
    # What one file ends with must not be mistaken for what the next begins with.
    (tmp_path / "texts" / "c.txt").write_text("A.txtb")
    (tmp_path / "texts" / "b.txt").write_text(".txt")
    seen.add(digest())
    assert len(seen) == 6
    before = digest()
    (tmp_path / "texts").rename(tmp_path / "moved")
    assert open_corpus(DataConfig(path=str(tmp_path / "moved"))).digest() == before


# -- The standard library --------------------------------------------------------------------------


def test_comments_and_rulers_go():
    source = 'a = 1  # stays\n# goes\n    # goes too\n"""\n-----\n  ====== x\n----\n_____\nb = "....."\nxxxxxx\n"""\n#'
    assert without_rulers(source) == 'a = 1  # stays\n"""\n----\nxxxxxx\n"""'


def test_the_standard_library():
    opened = open_corpus(DataConfig())
    version = platform.python_version()
    assert opened.name == f"Python {version} standard library" and opened.python == version
    found = [document.name for document in opened.documents]
    assert found == sorted(found) and len(found) > 300
    assert {"argparse.py", "json/decoder.py", "asyncio/events.py"} <= set(found)
    for part in ("test", "tests", "idlelib", "encodings", "lib2to3", "pydoc_data", "turtledemo", "ensurepip"):
        assert not [name for name in found if part in Path(name).parts[:-1]]
    assert not [name for name in found if "site-packages" in name or "_sysconfigdata" in name]
    texts = {document.name: "".join(opened.read(document)) for document in opened.documents}
    # argparse line by line, as the issue puts it.
    source = (Path(sysconfig.get_paths()["stdlib"]) / "argparse.py").read_text()
    kept = [
        line
        for line in source.split("\n")
        if not line.strip().startswith("#") and not re.search(r"([^\w\s]|_)\1\1\1\1", line)
    ]
    assert texts["argparse.py"] == "\n".join(kept) != source
    whole = "".join(texts.values())
    assert whole.isascii() and "\r" not in whole
    assert 5e6 < len(whole) < 12e6
    as_bytes = open_corpus(DataConfig(tokenizer="byte"))
    assert b"".join(as_bytes.read(as_bytes.documents[5])).decode() == texts[as_bytes.documents[5].name]


def test_what_counts_as_standard_library(tmp_path, monkeypatch):
    make(
        tmp_path,
        "b.py",
        "test/c.py",
        "json/tests/d.py",
        "json/e.py",
        "site-packages/f.py",
        "_sysconfigdata_x.py",
        "g.txt",
    )
    (tmp_path / "a.py").write_bytes(b"x = 1\r\n# gone\r\ny = 2\r\n")
    (tmp_path / "h.py").write_text("é = 1", encoding="utf-8")
    monkeypatch.setattr(sysconfig, "get_paths", lambda: {"stdlib": str(tmp_path)})
    opened = open_corpus(DataConfig())
    assert [document.name for document in opened.documents] == ["a.py", "b.py", "json/e.py"]
    assert list(opened.read(opened.documents[0])) == ["x = 1\ny = 2\n"]
    monkeypatch.setattr(sysconfig, "get_paths", lambda: {"stdlib": str(tmp_path / "test" / "none")})
    with pytest.raises(DataError, match="data.path="):
        open_corpus(DataConfig())


# -- Downloads -------------------------------------------------------------------------------------

CONTENT = b"First Citizen:\nBefore we proceed any further, hear me speak.\n" * 2000
ZIPPED = io.BytesIO()
with zipfile.ZipFile(ZIPPED, "w", zipfile.ZIP_DEFLATED) as archive:
    archive.writestr("enwik8", CONTENT)


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.server.asked.append(self.path)
        content = {"/good": CONTENT, "/wrong": CONTENT[:-1] + b"?", "/cut": CONTENT, "/zip": ZIPPED.getvalue()}
        if self.path not in content:
            return self.send_error(404, "Not Found")
        body = content[self.path]
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body[: len(body) // 2] if self.path == "/cut" else body)

    def log_message(self, *args):
        pass


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.asked = []
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def point(server, monkeypatch):
    """Let a corpus come from a page of the local server."""

    def change(name, page, content=CONTENT):
        changed = replace(
            corpus.REMOTE[name],
            url=f"http://127.0.0.1:{server.server_port}{page}",
            sha256=hashlib.sha256(content).hexdigest(),
        )
        monkeypatch.setitem(corpus.REMOTE, name, changed)
        return changed.url

    return change


def downloaded(tmp_path, name="shakespeare", **settings):
    opened = open_corpus(DataConfig(corpus=name, cache_dir=str(tmp_path), **settings))
    return b"".join(opened.read(opened.documents[0])) if settings else "".join(opened.read(opened.documents[0]))


def test_a_download_is_kept(tmp_path, server, point, monkeypatch):
    point("shakespeare", "/good")
    said = []
    pooch.get_logger().setLevel("INFO")
    monkeypatch.setattr(pooch.get_logger().handlers[0], "emit", said.append)
    assert downloaded(tmp_path) == downloaded(tmp_path) == CONTENT.decode()
    assert server.asked == ["/good"]
    assert [path.name for path in (tmp_path / "downloads").iterdir()] == ["shakespeare.txt"]
    assert said == []
    assert open_corpus(DataConfig(corpus="shakespeare", cache_dir=str(tmp_path))).name == "tiny Shakespeare"


def test_a_damaged_download_is_never_used(tmp_path, server, point):
    point("shakespeare", "/good")
    (tmp_path / "downloads").mkdir()
    (tmp_path / "downloads" / "shakespeare.txt").write_bytes(CONTENT[:1000])
    assert downloaded(tmp_path) == CONTENT.decode()
    assert server.asked == ["/good"]


def test_a_zip_is_read_without_being_unpacked(tmp_path, point):
    point("enwik8", "/zip", ZIPPED.getvalue())
    assert downloaded(tmp_path, "enwik8", tokenizer="byte") == CONTENT
    assert downloaded(tmp_path, "enwik8") == CONTENT.decode()
    assert [path.name for path in (tmp_path / "downloads").iterdir()] == ["enwik8.zip"]


@pytest.mark.parametrize(
    ("page", "reason"),
    [("/wrong", "another checksum"), ("/cut", "connection was cut"), ("/nowhere", "answered 404 Not Found")],
)
def test_a_failed_download_is_one_line_and_leaves_nothing(tmp_path, point, page, reason):
    url = point("shakespeare", page)
    with pytest.raises(DataError) as caught:
        downloaded(tmp_path)
    check_failure(str(caught.value), url, tmp_path, reason)


def test_offline_is_one_line(tmp_path, monkeypatch):
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}/good"
    monkeypatch.setitem(corpus.REMOTE, "shakespeare", replace(corpus.REMOTE["shakespeare"], url=url))
    with pytest.raises(DataError) as caught:
        downloaded(tmp_path)
    check_failure(str(caught.value), url, tmp_path, "no connection")


def check_failure(message, url, tmp_path, reason):
    target = tmp_path / "downloads" / "shakespeare.txt"
    assert len(message.splitlines()) == 1
    assert all(part in message for part in (url, str(target), reason, "data.path="))
    assert list((tmp_path / "downloads").iterdir()) == []


def test_a_cache_that_cannot_be_made(tmp_path, point):
    point("shakespeare", "/good")
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(DataError, match="data.path="):
        downloaded(tmp_path / "file")


def test_the_addresses_are_pinned():
    for name in ("shakespeare", "enwik8", "text8"):
        assert re.fullmatch("[0-9a-f]{64}", corpus.REMOTE[name].sha256)
