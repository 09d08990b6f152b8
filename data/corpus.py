"""Where text comes from: the standard library, a download, or what `data.path` names.

Text elsewhere (`s3://…`) is found by data/manifest.py. A corpus is a sorted list of documents and the way to read them.
Files are streamed in chunks, so that a text may be far larger than memory. What reading does to a text:

- characters (`data.tokenizer=char`): decoded with `data.encoding`; a byte order mark at the start is
  dropped; CRLF and lone CR become LF.
- bytes (`data.tokenizer=byte`): the bytes of the file, exactly as they are.
"""

import codecs
import glob
import hashlib
import io
import logging
import os
import platform
import re
import sysconfig
import unicodedata
import zipfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import pooch

from conf.fields import InputError, nearest, printable
from conf.progress import Progress
from data.config import DataConfig

CHUNK = 1 << 16  # bytes read at a time: a chunk and its tokens stay in the processor's cache


class DataError(InputError):
    """Something is wrong with the text that a person named; the message is one line."""


@dataclass(frozen=True)
class Document:
    """One text of a corpus.

    Attributes:
        name: its path within the corpus.
        path: of the file.
        member: its name if `path` is a zip.
        address: where the file is a copy from, for people; empty where it is no copy.
        fetch: makes that copy at the path it is given, opens it, and removes it; None where it is there.
    """

    name: str
    path: Path
    member: str | None = None
    address: str = ""
    fetch: Callable[[Path], AbstractContextManager[IO[bytes]]] | None = None

    @property
    def label(self) -> str:
        """How to name it to people."""
        return printable(self.address or self.path)

    @contextmanager
    def open(self) -> Iterator[IO[bytes]]:
        """Open for reading bytes.

        Raises:
            DataError: the file cannot be opened or read.
        """
        if self.fetch:
            with self.fetch(self.path) as file:
                yield file
            return
        try:
            if self.member is None:
                with open(self.path, "rb") as file:
                    yield file
            else:
                # Read through the zip rather than extracted: a file half extracted cannot exist.
                with zipfile.ZipFile(self.path) as archive, archive.open(self.member) as file:
                    yield file
        except OSError as error:
            raise DataError(f"{self.label}: cannot be read: {error.strerror or error}") from None


@dataclass(frozen=True)
class Corpus:
    """A sorted list of documents and how they are read.

    Attributes:
        name: for people, such as `Python 3.11.7 standard library` or `book.txt`.
        documents: sorted by name.
        encoding: of the files; None reads bytes.
        python: version of the Python whose standard library this is, else empty. Of such source,
            comments and rulers are dropped.
    """

    name: str
    documents: tuple[Document, ...]
    encoding: str | None
    python: str = ""

    def size(self) -> int:
        """Bytes of all documents, those of a zip packed."""
        return sum(document.path.stat().st_size for document in self.documents)

    def digest(self, tick: Callable[[int], object] = lambda size: None) -> str:
        """SHA-256 over the names and the bytes of all documents, in hexadecimal; without the name of a single one."""
        total = hashlib.sha256()
        for document in self.documents:
            with document.open() as file:
                hashed = hashlib.sha256()
                while chunk := file.read(CHUNK):
                    hashed.update(chunk)
                    tick(len(chunk))
                content = hashed.hexdigest()
            name = document.name if len(self.documents) > 1 else ""  # a file that is moved stays the same text
            total.update(f"{name!r} {content}\n".encode())
        return total.hexdigest()

    def read(self, document: Document, tick: Callable[[int], object] = lambda size: None) -> Iterator[str | bytes]:
        """Stream a document: pieces of str, or of bytes where `encoding` is None.

        Raises:
            DataError: the file cannot be read, or is not in `encoding` (with the offset in the file).
        """
        with document.open() as file:
            if self.python:
                source = file.read()
                tick(len(source))
                text = without_rulers(source.decode("ascii").replace("\r\n", "\n"))
                yield text if self.encoding else text.encode()
            elif self.encoding is None:
                while chunk := file.read(CHUNK):
                    tick(len(chunk))
                    yield chunk
            else:
                yield from decode(file, document.label, self.encoding, tick)


def decode(
    file: IO[bytes],
    name: Path | str,
    encoding: str,
    tick: Callable[[int], object] = lambda size: None,
    option: str = "data.encoding=",
) -> Iterator[str]:
    """Decode a file in chunks; no mark at the start, LF at the end of lines.

    Args:
        file: open for reading bytes.
        name: of the file, for people.
        encoding: of the file.
        tick: called with the number of bytes that were just read.
        option: what a person writes in front of an encoding to choose it.

    Raises:
        DataError: not in `encoding` (with the offset in the file), or there is no such encoding.
    """
    try:
        io.TextIOWrapper(io.BytesIO(), encoding)  # refuses what turns bytes into bytes, such as hex
        decoder = io.IncrementalNewlineDecoder(codecs.getincrementaldecoder(encoding)(), translate=True)
    except LookupError:
        raise DataError(f"{option}{encoding}: is no encoding of text files") from None
    offset, chunk, mark, at_start = 0, b"", b"", True
    try:
        while chunk := file.read(CHUNK):
            mark = mark or chunk[:2]
            offset += len(chunk)
            text = decoder.decode(chunk)
            tick(len(chunk))
            if text:
                yield text.removeprefix("\ufeff") if at_start else text
                at_start = False
        yield decoder.decode(b"", final=True)
        return
    except UnicodeDecodeError as error:
        # What the decoder was given ends where reading stopped, whatever it had kept from earlier chunks.
        wrong = offset - len(error.object) + error.start
        what = f"byte {wrong:,} is not {encoding} ({error.reason})"
    except UnicodeError as error:
        what = f"is not {encoding} ({error})"
    if mark in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
        likely = "utf-16, which it looks like"
    else:
        likely = "latin-1 or cp1252" if codecs.lookup(encoding).name == "utf-8" else "utf-8"
    raise DataError(f"{printable(name)}: {what}; name its encoding with {option.rstrip()}, such as {likely}")


# -- The standard library ------------------------------------------------------------------------

STDLIB_WITHOUT = {
    "__pycache__", "site-packages", "dist-packages", "test", "tests", "idlelib", "encodings", "lib2to3",
    "pydoc_data", "turtledemo", "ensurepip",
}  # fmt: skip
RULER = re.compile(r"([!-/:-@\[-`{-~])\1{4}")  # five equal punctuation marks of ASCII


def without_rulers(source: str) -> str:
    """Drop comment-only lines and lines with a run of five or more equal punctuation marks.

    With those lines in, samples of a model collapse into rulers of dashes.
    """
    lines = source.split("\n")
    return "\n".join(line for line in lines if not line.lstrip().startswith("#") and not RULER.search(line))


def _is_ascii(document: Document) -> bool:
    with document.open() as file:
        return file.read().isascii()


def _stdlib(encoding: str | None) -> Corpus:
    """The standard library that runs this program: its pure-ASCII source files."""
    root = Path(sysconfig.get_paths()["stdlib"])
    documents = [
        document
        for document in (_walk(root, STDLIB_WITHOUT) if root.is_dir() else [])  # it may be a zip
        if document.name.endswith(".py") and not document.name.startswith("_sysconfigdata") and _is_ascii(document)
    ]
    if not documents:
        raise DataError(
            f"{printable(root)}: holds no source of the standard library; name a text of your own: data.path="
        )
    version = platform.python_version()
    return Corpus(f"Python {version} standard library", tuple(documents), encoding, python=version)


# -- Downloads -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Remote:
    """A text on the network: its address, the sha256 of the file there, its name within it if that is a zip."""

    url: str
    sha256: str
    member: str | None = None


REMOTE = {
    "shakespeare": Remote(
        "https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt",
        "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed",
    ),
    "enwik8": Remote(
        "http://mattmahoney.net/dc/enwik8.zip",
        "547994d9980ebed1288380d652999f38a14fe291a6247c157c3d33d4932534bc",
        "enwik8",
    ),
    "text8": Remote(
        "http://mattmahoney.net/dc/text8.zip",
        "a6640522afe85d1963ad56c05b0ede0a0c000dddc9671758a6cc09b7a38e5232",
        "text8",
    ),
}
REMOTE_NAMES = {"shakespeare": "tiny Shakespeare"}


def cache_dir(config: DataConfig) -> Path:
    """Where encoded text and downloads are kept."""
    return Path(config.cache_dir).expanduser() if config.cache_dir else Path(pooch.os_cache("chargpt"))


def download(name: str, folder: Path) -> Path:
    """Return the file of `REMOTE[name]` in `folder`, downloaded unless it is there, its sha256 checked each time.

    Raises:
        DataError: one line with the address, the file it would go to, the reason and the way round.
    """
    remote = REMOTE[name]
    file_name = name + (".zip" if remote.member else ".txt")
    pooch.get_logger().setLevel(logging.WARNING)
    try:
        with Progress(f"downloading {name}", unit="B") as progress:
            return Path(
                pooch.retrieve(
                    remote.url,
                    known_hash=f"sha256:{remote.sha256}",
                    fname=file_name,
                    path=folder,
                    downloader=pooch.HTTPDownloader(progressbar=progress, timeout=30, chunk_size=CHUNK),
                )
            )
    except (OSError, ValueError) as error:  # every error of requests is an OSError; ValueError: a wrong checksum
        raise DataError(
            f"data.corpus={name}: cannot download {remote.url} to {printable(folder / file_name)}: {_reason(error)}; "
            "or get the text in another way and name it with data.path="
        ) from None


def _reason(error: Exception) -> str:
    """Say in a few words why a download failed."""
    import requests  # as late as pooch does: most runs download nothing

    if isinstance(error, requests.HTTPError) and error.response is not None:
        error.response.close()  # pooch leaves it open
        return f"the server answered {error.response.status_code} {error.response.reason}"
    if isinstance(error, requests.Timeout):
        return "no answer in time"
    if isinstance(error, requests.exceptions.ChunkedEncodingError):
        return "the connection was cut"
    if isinstance(error, requests.ConnectionError):
        return "no connection"
    if isinstance(error, ValueError) and "hash" in str(error):
        return "the file there has another checksum than expected, and was thrown away"
    return printable(getattr(error, "strerror", None) or error)


# -- A text of one's own -------------------------------------------------------------------------


def _walk(root: Path, without: set[str] | frozenset[str] = frozenset()) -> list[Document]:
    """All regular files below `root` that are not hidden, sorted; directories named in `without` left out."""

    def fail(error: OSError) -> None:
        raise DataError(f"{printable(error.filename)}: cannot be read: {error.strerror}")

    documents = []
    for folder, folders, files in os.walk(root, onerror=fail):
        folders[:] = [name for name in folders if not name.startswith(".") and name not in without]
        paths = (Path(folder, name) for name in files if not name.startswith("."))
        documents += [_document(path, root) for path in paths if path.is_file()]
    return sorted(documents, key=lambda document: document.name)


def _document(path: Path, root: Path) -> Document:
    """Name a file by its path below `root`, alike on systems that compose letters and those that do not."""
    return Document(unicodedata.normalize("NFC", path.relative_to(root).as_posix()), path)


def _spellings(path: str) -> list[str]:
    """A path as typed, with its letters composed (NFC), and decomposed (NFD), as file systems keep them."""
    path = os.path.expanduser(path)
    return list(dict.fromkeys([path, unicodedata.normalize("NFC", path), unicodedata.normalize("NFD", path)]))


def is_remote(path: str | None) -> bool:
    """Whether `data.path` names text by an address, such as `s3://bucket/dir`."""
    return path is not None and any("://" in entry for entry in entries(path))


def entries(path: str) -> list[str]:
    """What a list such as `[a.txt,b.txt]` names; anything else, and a file of that very name, is one entry.

    Raises:
        DataError: an entry is empty.
    """
    if not (path.startswith("[") and path.endswith("]")) or any(map(os.path.exists, _spellings(path))):
        return [path]
    names = [name.strip() for name in path[1:-1].split(",")]
    if not all(names):
        raise DataError(f"data.path={printable(path)}: a name in the list is empty; write [a.txt,b.txt]")
    return names


def find_documents(path: str) -> list[Document]:
    """Find the files that `data.path` names, sorted by name.

    - A list, `[a.txt,b.txt]`: what its entries name, each file once. A comma in a name is written `?`.
    - A file: that file. A name that exists is never read as a pattern, so `[a].txt` is found.
    - A directory: the files in it and below; those named `*.txt` if there are any, else all.
    - Else a glob, where `**` stands for any number of directories: the files that match.

    Hidden files and directories are left out unless they are named; directories behind links too.

    Raises:
        DataError: nothing is there, with the nearest name that is; or no file is found.
    """
    names = entries(path)
    if len(names) > 1:
        found = {document.path.absolute() for name in names for document in find_documents(name)}
        root = Path(os.path.commonpath([each.parent for each in found]))
        return sorted((_document(each, root) for each in found), key=lambda document: document.name)
    spellings = _spellings(path := names[0])
    for spelling in spellings:
        if os.path.isdir(spelling):
            documents = _walk(Path(spelling))
            if not documents:
                raise DataError(f"data.path={printable(path)}: the directory holds no files")
            texts = [document for document in documents if document.name.lower().endswith(".txt")]
            return texts or documents
        if os.path.isfile(spelling):
            return [_document(Path(spelling), Path(spelling).parent)]
        if os.path.exists(spelling):
            raise DataError(f"data.path={printable(path)}: is neither a file nor a directory")
    if not glob.has_magic(path):
        whole = Path(spellings[0])
        others = os.listdir(whole.parent) if path and whole.parent.is_dir() and os.access(whole.parent, os.R_OK) else []
        raise DataError(
            f"data.path={printable(path)}: no such file or directory{printable(nearest(whole.name, others))}"
        )
    for spelling in spellings:
        matches = [Path(match) for match in glob.glob(spelling, recursive=True) if os.path.isfile(match)]
        if matches:
            fixed = Path(spelling[: re.search(r"[*?[]", spelling).start()] + "_").parent  # type: ignore[union-attr]
            return sorted((_document(match, fixed) for match in set(matches)), key=lambda document: document.name)
    raise DataError(f"data.path={printable(path)}: no file matches")


def open_corpus(config: DataConfig) -> Corpus:
    """Find the text that `config` names; downloads it if need be, reads none of it.

    Raises:
        DataError: there is no such text; one line.
    """
    encoding = None if config.tokenizer == "byte" else "utf-8"
    if config.path is not None:
        documents = tuple(find_documents(config.path))
        return Corpus(printable(config.path), documents, encoding and config.encoding)
    if config.corpus == "stdlib":
        return _stdlib(encoding)
    path = download(config.corpus, cache_dir(config) / "downloads")
    document = Document(config.corpus, path, REMOTE[config.corpus].member)
    return Corpus(REMOTE_NAMES.get(config.corpus, config.corpus), (document,), encoding)
