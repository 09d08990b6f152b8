import errno
import gzip
import hashlib
import os
import re
import stat
import threading
import zipfile
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from unittest.mock import Mock

import pytest

from base.errors import InputError
from data import addresses
from data.addresses import fetch
from data.config import DataConfig
from data.find import find, split_fragment
from tests.conftest import needs, refusal
from tests.folders import make

CONTENT = b"First Citizen:\nBefore we proceed any further, hear me speak.\n" * 2000
HASH = hashlib.sha256(CONTENT).hexdigest()
HALF = CONTENT[: len(CONTENT) // 2]
ZIPPED = gzip.compress(CONTENT)
TEXTS = {"00.txt": "a page\n" * 300, "01.txt": "another page\n" * 300}
ANSWERS = {  # header and body
    "cut": ({"Content-Length": len(CONTENT)}, HALF),
    "endless": ({}, HALF),
    "zipped": ({"Content-Encoding": "gzip", "Content-Length": len(ZIPPED)}, ZIPPED),
}


class Handler(SimpleHTTPRequestHandler):
    def do_GET(self):
        self.server.sent.append(self.path)
        name, _, _ = self.path.strip("/").partition("?")
        if name.isdigit():
            return self.send_error(int(name))
        if name not in ANSWERS:
            return super().do_GET()
        headers, body = ANSWERS[name]
        self.send_response(200)
        for header in headers.items():
            self.send_header(*header)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args):
        pass


@pytest.fixture
def server(tmp_path):
    folder = make(tmp_path / "web", TEXTS | {"good": CONTENT})
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=folder)) as server:
        server.sent = []
        server.url = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture(scope="module")
def bucket():
    """The bucket s3://books on a server of this machine, which this process finds."""
    needs("s3fs", "moto", "flask", "flask_cors", extra="ci")
    import boto3
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ENDPOINT_URL", f"http://{host}:{port}")
        patch.setenv("AWS_ACCESS_KEY_ID", "key")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
        patch.setenv("AWS_DEFAULT_REGION", "us-east-1")
        client = boto3.client("s3")
        client.create_bucket(Bucket="books")
        client.put_object(Bucket="books", Key="dir/a.txt", Body="abc")
        yield
    server.stop()


def kept(cache):
    """The finished and unfinished downloads in a folder."""
    return sorted(path.name for path in cache.glob("*") if path.name != ".lock")


def test_a_file_that_is_present_needs_no_server(tmp_path, server, monkeypatch):
    said = Mock()
    monkeypatch.setattr(addresses.log, "info", said)
    asked = [(f"{server.url}/good?token=hunter2", ""), (f"{server.url}/good", HASH)]
    copies = [fetch(address, tmp_path / "cache", sha256) for address, sha256 in asked]
    assert [copy.read_bytes() for copy in copies] == [CONTENT] * 2 and copies[1].name == HASH
    server.shutdown()
    server.server_close()
    assert [fetch(address, tmp_path / "cache", sha256) for address, sha256 in asked] == copies
    (line,) = said.call_args.args  # only of the one that may be outdated
    assert said.call_count == 1 and str(copies[0]) in line and "hunter2" not in line


def test_a_copy_that_is_deleted_or_unfinished_is_downloaded_again(tmp_path, server):
    make(tmp_path / "cache", {f".{HASH}.0123abcd.tmp": HALF})
    for _ in range(2):
        copy = fetch(f"{server.url}/good", tmp_path / "cache", HASH)
        assert kept(tmp_path / "cache") == [HASH]
        copy.unlink()
    assert server.sent == ["/good"] * 2


def test_who_needs_a_file_at_once_downloads_it_once(tmp_path, server):
    with ThreadPoolExecutor(4) as pool:
        copies = list(pool.map(fetch, [f"{server.url}/good"] * 4, [tmp_path / "cache"] * 4))
    assert copies[0].read_bytes() == CONTENT
    assert set(copies) == {copies[0]} and server.sent == ["/good"]


def test_files_of_stores_and_folders_are_one_text(tmp_path, server, bucket):
    texts = TEXTS | {"good": CONTENT.decode(), "a.txt": "abc", "book.txt": "in a zip file"}
    with zipfile.ZipFile(tmp_path / "web/book.zip", "w") as file:
        file.writestr("book.txt", texts["book.txt"])
    addresses = [f"{server.url}/01.txt", "s3://books/dir/a.txt"]
    addresses += [(tmp_path / "web/00.txt").as_uri(), f"{server.url}/good#name=A B&sha256={HASH}"]
    path = f"[{','.join([*addresses, addresses[0], server.url])}/book.zip?v=1]"
    corpus = find(DataConfig(path=path, cache_dir=str(tmp_path)))
    read = {"".join(corpus.read(file)) for file in corpus.files}
    assert read == set(texts.values()) and len(corpus.files) == 5
    assert server.sent == ["/01.txt", "/good", "/book.zip?v=1"] and "A B" in corpus.name


@pytest.mark.parametrize(
    ("page", "reason"),
    [
        ("cut", "payload is not completed"),
        ("endless", "another checksum"),  # without Content-Length, any end looks right
        ("00.txt", "another checksum"),
    ],
)
def test_a_file_that_is_not_whole_or_not_the_right_one_is_not_kept(tmp_path, server, page, reason):
    assert reason in refusal(InputError, fetch, f"{server.url}/{page}", tmp_path / "cache", HASH)
    assert kept(tmp_path / "cache") == []


def test_the_length_of_a_compressed_transfer_is_not_that_of_the_file(tmp_path, server):
    assert fetch(f"{server.url}/zipped", tmp_path / "cache").read_bytes() == CONTENT


NO_FILE = "no such file or bucket; an address names one file"
UNREADABLE = {
    "WEB/none": NO_FILE, "WEB/": NO_FILE, "WEB": NO_FILE, "WEB/*.txt": NO_FILE, "s3://no-such-bucket/a.txt": NO_FILE,
    "s3://books": NO_FILE, "s3://books/dir": NO_FILE, "s3://books/*.txt": NO_FILE,
    "s33://books/a.txt": "cannot be downloaded: Protocol not known",
    "WEB/401?token=hunter2": "access is denied$", "WEB/403": "access is denied$",
    "WEB/500?X-Amz-Signature=hunter2": r"cannot be downloaded: 500, .*=\*\*\*",
    "http://ann:hunter2@127.0.0.1:9/a": "cannot be downloaded: Cannot connect",
}  # fmt: skip


@pytest.mark.parametrize(("typed", "said"), UNREADABLE.items(), ids=UNREADABLE)
def test_what_cannot_be_downloaded_is_one_line(tmp_path, server, bucket, typed, said):
    address = typed.replace("WEB", server.url)
    message = refusal(InputError, fetch, address, tmp_path / "cache")
    assert re.search(f": {said}", message) and message.startswith("data.path=")
    assert len(message) < 400 and "hunter2" not in message
    assert kept(tmp_path / "cache") == []


def send_half(path, target, callback):
    callback.set_size(len(CONTENT))
    Path(target).write_bytes(HALF)


FULL = os.strerror(errno.ENOSPC)
STORES = {  # what downloads a file there
    "s3fs": (ImportError("Install s3fs to access S3"), r"needs s3fs: pip install .*\[s3\]'$"),
    "anything": (RuntimeError("a\nb"), "cannot be downloaded: a b$"),
    "full": (OSError(errno.ENOSPC, FULL), f"cache/[0-9a-f]{{64}}: {FULL}; data.cache_dir= sets"),
    "cut": (send_half, "connection was cut$"),
    "folder": (lambda path, target, callback: Path(target).mkdir(), NO_FILE),
}


@pytest.mark.parametrize(("get_file", "said"), STORES.values(), ids=STORES)
def test_what_a_store_cannot_send_is_one_line(tmp_path, monkeypatch, get_file, said):
    store = Mock(get_file=Mock(side_effect=get_file))
    monkeypatch.setattr(addresses.fsspec, "url_to_fs", lambda address: (store, "b/c"))
    assert re.search(said, refusal(InputError, fetch, "ftp://a/b/c", tmp_path / "cache"))
    assert kept(tmp_path / "cache") == []


@pytest.mark.skipif(os.name != "posix", reason="modes of POSIX")
def test_a_group_shares_a_cache(tmp_path, server):
    before = os.umask(0o022)
    fetch(f"{server.url}/good", tmp_path)  # by one whose files others may not write
    os.umask(0o002)
    copy = fetch(f"{server.url}/00.txt", tmp_path / "cache")
    os.umask(before)
    paths = [copy, copy.parent, copy.parent / ".lock", tmp_path / ".lock"]
    modes = [stat.S_IMODE(path.stat().st_mode) for path in paths]
    assert modes == [0o664, 0o775, 0o664, 0o664]


ADDRESS = "https://a.org/b.txt"
UPPER = "AB" * 32
FRAGMENTS = {
    f"{ADDRESS}#name=A%20Book&sha256={UPPER}": (ADDRESS, "A Book", UPPER.lower()),
    f"{ADDRESS}#sha256={UPPER}": (ADDRESS, ADDRESS, UPPER.lower()),
} | {plain: (plain, plain, "") for plain in (ADDRESS, "s3://b/no#1.txt", f"b.txt#sha256={UPPER}")}


def test_a_name_and_a_hash_stand_after_an_address_and_nothing_else():
    assert {entry: split_fragment(entry) for entry in FRAGMENTS} == FRAGMENTS
    for wrong in ("sha256=abc", "name=A", f"name=A&sha256={UPPER}&size=3"):
        assert "64 hexadecimal" in refusal(InputError, split_fragment, f"{ADDRESS}#{wrong}")


def test_the_password_of_an_address_is_in_config_yaml_alone(server, train, score, export):
    address = f"{server.url.replace('://', '://ann:hunter2@')}/00.txt?X-Amz-Signature=hunter2&v=1"
    ended = train(f"data.path={address}", "name=online", "logger=[tensorboard,csv]")
    said = [ended, score("online", "--split", "validation")]
    said.append(export("online", "--to", "card", "card.md"))
    assert [each.status for each in said] == [0] * len(said), said
    hidden = f"{server.url.replace('://', '://***@')}/00.txt?X-Amz-Signature=***&v=1"
    assert "ann" not in ended.out and hidden in ended.out
    said.append(train(f"data.path={address.replace('00', 'none')}", "name=none"))
    said.append(train(f"data.path={address}", f"data.test={address}"))
    said.append(train(f"data.paht={address}"))
    assert [each.status for each in said[-3:]] == [2] * 3 and "hunter2" not in repr(said), said
    files = [path for path in Path().rglob("*") if path.is_file()]
    secret = [str(path) for path in files if b"hunter2" in path.read_bytes()]
    assert secret == ["runs/online/config.yaml"] and Path("card.md") in files
