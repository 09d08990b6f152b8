import hashlib
import io
import os
import re
import threading
import zipfile
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from unittest.mock import Mock

import pytest
from data.corpus import open_corpus, split_fragment

from base.errors import InputError
from data import addresses
from data.config import DataConfig
from data.text import open_text
from tests.conftest import refusal
from tests.faults.processes import fork
from tests.stores import differing, make

CONTENT = b"First Citizen:\nBefore we proceed any further, hear me speak.\n" * 2000
ZIPPED = io.BytesIO()
with zipfile.ZipFile(ZIPPED, "w", zipfile.ZIP_DEFLATED) as archive:
    archive.writestr("enwik8", CONTENT)
PAGES = {
    "good": CONTENT,
    "wrong": CONTENT[:-1] + b"?",
    "cut": CONTENT,
    "one.zip": ZIPPED.getvalue(),
}


class Handler(SimpleHTTPRequestHandler):
    def copyfile(self, source, outputfile):
        self.server.sent.append(self.path)
        outputfile.write(CONTENT[: len(CONTENT) // 2] if self.path == "/cut" else source.read())

    def log_message(self, *args):
        pass


@pytest.fixture
def server(tmp_path):
    folder = make(tmp_path / "web", PAGES | differing(3))
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=folder)) as server:
        server.folder, server.sent, server.url = (
            folder,
            [],
            f"http://127.0.0.1:{server.server_port}",
        )
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def kept(folder):
    """The finished and unfinished downloads in a cache."""
    return sorted(path.name for path in (folder / "downloads").glob("*") if path.name != ".lock")


@pytest.mark.parametrize(("count", "tokenizer"), [(1, "byte"), (48, "char")])
def test_a_bucket_is_the_same_text_as_a_folder_and_is_read_once(
    tmp_path, bucket, opened, count, tokenizer
):
    documents = differing(count)
    folder = make(tmp_path / "text", documents)
    bucket.put({f"dir/{name}": content for name, content in documents.items()})
    bucket.put({"dir/.hidden": "ø", "dir/notes.md": "ø"})
    address = f"{bucket.address}/dir"
    paths = [address, f"{address}/*.txt", f"[{address}]", folder.as_uri()]
    here = opened(folder, cache="other", tokenizer=tokenizer)
    there = {path: opened(path, tokenizer=tokenizer) for path in paths}
    assert {path: text.fingerprint for path, text in there.items()} == dict.fromkeys(
        paths, here.fingerprint
    )
    assert {path: text.train.tolist() for path, text in there.items()} == dict.fromkeys(
        paths, here.train.tolist()
    )
    assert {bucket.server.read(f"{bucket.name}/dir/{name}") for name in documents} == {1}
    assert bucket.server.read(f"{bucket.name}/dir/notes.md") == 0


def test_files_of_the_web_are_the_same_text_as_a_folder(server, opened):
    base, whole = server.url, opened(server.folder)
    mixed = f"[{base}/00.txt,{server.folder}/01.txt,{base}/02.txt]"
    assert opened(mixed).tokenizer.characters == whole.tokenizer.characters
    assert opened(f"[{base}/00.txt,{base}/01.txt,{base}/02.txt]").fingerprint == whole.fingerprint
    assert sorted(server.sent) == ["/00.txt", "/01.txt", "/02.txt"]


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("03.txt", "no such file"),
        ("*.txt", "no such file"),
        ("", "a web server cannot list its files"),  # it would answer with a page
    ],
    ids=["missing", "glob", "folder"],
)
def test_a_web_server_gives_only_files_that_are_named(server, opened, name, reason):
    message = refusal(InputError, opened, f"[{server.url}/00.txt,{server.url}/{name}]")
    assert message.startswith(f"data.path={server.url}/{name}: {reason}")


def test_a_store_that_cannot_be_reached_is_not_needed_again(server, opened, monkeypatch):
    path, said = f"[{server.url}/00.txt,{server.url}/01.txt]", Mock()
    opened(path)
    (server.folder / "01.txt").write_text("the newest copy counts")
    newest = opened(path)
    monkeypatch.setattr(addresses.log, "info", said)
    server.shutdown()
    server.server_close()
    assert opened(path).fingerprint == newest.fingerprint
    lines = [each.args[0] for each in said.mock_calls]
    assert len(lines) == 2 and "Cannot connect" in lines[0] and "; using its copy in " in lines[0]
    message = refusal(InputError, opened, f"[{server.url}/00.txt,{server.url}/good]")
    assert message.startswith(f"data.path={server.url}/good: cannot be read: Cannot connect")


def test_what_has_changed_is_downloaded_again_and_nothing_else(bucket, opened):
    documents = differing(3)
    bucket.put(documents)
    first = opened(bucket.address)
    bucket.put({"01.txt": documents["01.txt"].swapcase()})  # of the same size
    assert opened(bucket.address).fingerprint != first.fingerprint
    assert [bucket.server.read(f"{bucket.name}/{name}") for name in documents] == [1, 2, 1]
    bucket.put({"01.txt": documents["01.txt"]})
    assert opened(bucket.address).fingerprint == first.fingerprint


def test_a_damaged_copy_is_never_used(tmp_path, server, opened):
    first = opened(f"{server.url}/good")
    (name,) = kept(tmp_path / "cache")
    (tmp_path / "cache/downloads" / name).write_bytes(CONTENT[:1000])
    # of a process that was killed
    (tmp_path / f"cache/downloads/.{name}.0123abcd.tmp").write_bytes(CONTENT[:1000])
    assert opened(f"{server.url}/good").fingerprint == first.fingerprint
    assert server.sent == ["/good"] * 2
    assert kept(tmp_path / "cache") == [name]


def test_a_cut_download_is_never_used(tmp_path, server, opened):
    assert "payload is not completed" in refusal(InputError, opened, f"{server.url}/cut")
    assert kept(tmp_path / "cache") == []


def test_a_cache_that_cannot_be_written_is_one_line(tmp_path, server, opened):
    (tmp_path / "file").write_text("in the way")
    message = refusal(InputError, opened, f"{server.url}/good", cache="file")
    assert "Not a directory; data.cache_dir=" in message


def open_with(variables, config):
    os.environ.update(variables)  # the server that forks may have begun without them
    open_text(config, 4)


@pytest.mark.slow
def test_processes_that_start_at_once_share_a_download(tmp_path, bucket, opened):
    documents = differing(4)
    bucket.put(documents)
    config = DataConfig(path=bucket.address, cache_dir=str(tmp_path / "cache"))
    processes = [fork(open_with, bucket.environment(), config) for _ in range(3)]
    for process in processes:
        process.join(60)
    assert [process.exitcode for process in processes] == [0, 0, 0]
    assert all(bucket.server.read(f"{bucket.name}/{name}") == 1 for name in documents)
    assert len(kept(tmp_path / "cache")) == 4


UNREADABLE = {  # what is typed, and of the refusal
    "bucket": (
        "s3://no-such-bucket/a.txt",
        "no such file, directory or bucket|bucket does not exist",
    ),
    "glob": ("BUCKET/no/*.txt", "no file matches"),
    "file": ("[BUCKET/a.txt,BUCKET/b.txt]", r"data\.path=BUCKET/b\.txt: no such file"),
    "kind of address": ("s33://books/a.txt", "nearest: s3"),
    "folder": ("file:///no/such/dir", "no such file, directory or bucket"),
    "encoding": ("BUCKET/latin", r"BUCKET/latin/1\.txt: byte 400 \(line 1\) .*data\.encoding="),
}


@pytest.mark.parametrize(("typed", "said"), UNREADABLE.values(), ids=UNREADABLE)
def test_what_cannot_be_read_is_one_line(bucket, opened, typed, said):
    bucket.put({"a.txt": "abc", "latin/0.txt": "ab" * 200, "latin/1.txt": b"ab" * 200 + b"\xe9 "})
    message = refusal(InputError, opened, typed.replace("BUCKET", bucket.address))
    assert re.search(said.replace("BUCKET", bucket.address), message)
    assert len(message) < 300


@pytest.mark.parametrize(
    ("error", "reason"),
    [(PermissionError("no"), "access is denied"), (RuntimeError("a\nb"), "cannot be read: a b")],
    ids=["no access", "any error"],
)
def test_an_error_of_a_store_is_one_line(opened, monkeypatch, error, reason):
    monkeypatch.setattr(addresses, "_find", Mock(side_effect=error))
    assert refusal(InputError, opened, "file:///a.txt") == f"data.path=file:///a.txt: {reason}"


@pytest.fixture
def downloaded(tmp_path, server):
    """Read a page of the server by its address and the hash of what it should be."""

    def download(page, content=CONTENT, **settings):
        path = f"{server.url}/{page}#name=A Book&sha256={hashlib.sha256(content).hexdigest()}"
        corpus = open_corpus(DataConfig(path=path, cache_dir=str(tmp_path), **settings))
        assert corpus.name == "A Book"
        return (b"" if settings else "").join(corpus.read(corpus.files[0]))

    return download


HASH = hashlib.sha256(CONTENT).hexdigest()


@pytest.mark.parametrize(
    ("page", "reason"), [("wrong", "the expected checksum"), ("cut", "payload is not completed")]
)
def test_a_download_without_its_hash_is_refused(tmp_path, server, downloaded, page, reason):
    message = refusal(InputError, downloaded, page)
    target = tmp_path / "downloads" / HASH
    assert message.startswith(f"cannot download {server.url}/{page} to {target}: ")
    assert reason in message
    assert kept(tmp_path) == []


def test_an_address_with_a_hash_is_downloaded_once(tmp_path, server, downloaded):
    assert downloaded("good") == downloaded("good") == CONTENT.decode()
    assert server.sent == ["/good"]
    assert kept(tmp_path) == [HASH]


def test_a_copy_that_has_lost_its_hash_is_downloaded_again(tmp_path, server, downloaded):
    downloaded("good")
    (tmp_path / "downloads" / HASH).write_bytes(PAGES["wrong"])
    assert downloaded("good") == CONTENT.decode()
    assert server.sent == ["/good"] * 2


def test_a_zip_file_with_a_hash_is_read_without_being_unpacked(tmp_path, downloaded):
    zipped = PAGES["one.zip"]
    assert downloaded("one.zip", zipped, tokenizer="byte") == CONTENT
    assert kept(tmp_path) == [hashlib.sha256(zipped).hexdigest()]


ADDRESS = "https://a.org/b.txt"
UPPER = "AB" * 32


def test_a_name_and_a_hash_stand_after_an_address():
    parts = split_fragment(f"{ADDRESS}#name=A%20Book&sha256={UPPER}")
    assert parts == (ADDRESS, "A Book", UPPER.lower())


@pytest.mark.parametrize("plain", [ADDRESS, "s3://bucket/notes#1.txt", f"b.txt#sha256={UPPER}"])
def test_elsewhere_a_number_sign_is_part_of_a_name(plain):
    assert split_fragment(plain) == (plain, plain, "")


@pytest.mark.parametrize("wrong", ["sha256=abc", "name=A", f"name=A&sha256={UPPER}&size=3"])
def test_anything_else_after_an_address_is_refused(wrong):
    assert "64 hexadecimal digits" in refusal(InputError, split_fragment, f"{ADDRESS}#{wrong}")


def test_the_password_of_an_address_is_in_config_yaml_alone(server, train, score, sample, export):
    address = f"{server.url.replace('://', '://ann:hunter2@')}/00.txt?X-Amz-Signature=hunter2&v=1"
    ended = train(f"data.path={address}", "name=online", "logger=[tensorboard,csv]")
    said = [ended, score("online", "--split", "validation"), sample("online", "--novelty")]
    said.append(train("resume=runs/online", "trainer.max_steps=40", defaults=False))
    for kind, out in (("card", "card.md"), ("web", "page.html")):
        said.append(export("online", "--to", kind, out))
    assert [each.status for each in said] == [0] * len(said), said
    hidden = f"{server.url.replace('://', '://***@')}/00.txt?X-Amz-Signature=***&v=1"
    assert "ann" not in ended.out and hidden in ended.out
    said.append(train(f"data.path={address.replace('00', 'none')}", "name=none"))
    said.append(train(f"data.path={address}", f"data.test={address}"))
    said.append(train(f"data.paht={address}"))
    assert [each.status for each in said[-3:]] == [2] * 3 and "hunter2" not in repr(said), said
    files = [
        path
        for path in [*Path("runs").rglob("*"), Path("card.md"), Path("page.html")]
        if path.is_file()
    ]
    assert [path.name for path in files if b"hunter2" in path.read_bytes()] == ["config.yaml"], (
        files
    )
    # in which the text could be compressed
    archives = map(zipfile.ZipFile, Path("runs").rglob("*.ckpt"))
    members = [archive.read(name) for archive in archives for name in archive.namelist()]
    assert len(files) > 10 and members and b"hunter2" not in b"".join(members)
