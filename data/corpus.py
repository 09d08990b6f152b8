"""Read the documents of a corpus in chunks: a text may be far larger than memory.

- With `data.tokenizer=char` a document is decoded with `data.encoding`. A byte order mark at the start is dropped; CRLF
  and lone CR become LF.
- With `data.tokenizer=byte` a document is the bytes of its file, unchanged.
"""

import codecs
import hashlib
import io
import re
import zipfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from base.errors import InputError, printable

CHUNK = 1 << 16  # bytes read at a time: a chunk and its tokens fit into the CPU's cache
RULER = re.compile(r"([!-/:-@\[-`{-~])\1{4}")  # five equal ASCII punctuation marks
Tick = Callable[[int], object]  # called after each read with the number of bytes
Fetch = Callable[[Path], AbstractContextManager[IO[bytes]]]  # opens a downloaded copy; deletes it at the end


class DataError(InputError):
    """Text that cannot be used; the message is one line."""


@dataclass(frozen=True)
class Document:
    """One text of a corpus."""

    name: str  # path within the corpus
    path: Path  # path of the file; for a remote document, of the temporary copy
    member: str | None = None  # name of the document if `path` is a zip
    address: str = ""  # address of a remote document
    fetch: Fetch | None = None  # downloads a remote document to `path` and opens it

    @property
    def label(self) -> str:
        """The document's name in messages."""
        return printable(self.address or self.path)

    @contextmanager
    def open(self) -> Iterator[IO[bytes]]:
        """Open the document for reading bytes."""
        if self.fetch:
            with self.fetch(self.path) as file:
                yield file
            return
        try:
            if self.member is None:
                with open(self.path, "rb") as file:
                    yield file
            else:
                # Read inside the zip: an interrupted extraction could leave half a file.
                with zipfile.ZipFile(self.path) as archive, archive.open(self.member) as file:
                    yield file
        except OSError as error:
            raise DataError(f"{self.label}: cannot be read: {error.strerror or error}") from None


@dataclass(frozen=True)
class Corpus:
    """Documents and how they are read."""

    name: str  # for messages, such as `Python 3.11.7 standard library` or `book.txt`
    documents: tuple[Document, ...]  # sorted by name
    encoding: str | None  # of the files; None reads bytes
    python: str = ""  # version of Python if this is its standard library, which is read through `without_rulers`

    def size(self) -> int:
        """Return the number of bytes of all files; of a zip, the compressed size."""
        return sum(size for size, _ in self.stamps())

    def stamps(self) -> list[tuple[int, int]]:
        """Return the size and modification time of each file; comparing them detects a changed file."""
        stats = [document.path.stat() for document in self.documents]
        return [(each.st_size, each.st_mtime_ns) for each in stats]

    def digest(self, tick: Tick = lambda size: None) -> str:
        """Hash the names and bytes of all documents: SHA-256 in hexadecimal. A single document's name is left out."""
        total = hashlib.sha256()
        for document in self.documents:
            with document.open() as file:
                hashed = hashlib.sha256()
                while chunk := file.read(CHUNK):
                    hashed.update(chunk)
                    tick(len(chunk))
                content = hashed.hexdigest()
            name = document.name if len(self.documents) > 1 else ""  # a renamed single file is the same text
            total.update(f"{name!r} {content}\n".encode())
        return total.hexdigest()

    def read(self, document: Document, tick: Tick = lambda size: None) -> Iterator[str | bytes]:
        """Read a document in chunks: str, or bytes if `encoding` is None."""
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
    file: IO[bytes], name: str, encoding: str, tick: Tick = lambda size: None, option: str = "data.encoding="
) -> Iterator[str]:
    """Decode a file in chunks, without byte order mark, with LF line ends.

    `name` is the name of the file and `option` the option that sets the encoding, both for error messages.
    """
    try:
        io.TextIOWrapper(io.BytesIO(), encoding)  # refuses codecs from bytes to bytes, such as hex
        decoder = io.IncrementalNewlineDecoder(codecs.getincrementaldecoder(encoding)(), translate=True)
    except LookupError:
        raise DataError(f"{option}{encoding}: is no encoding of text files") from None
    offset, chunk, first, at_start = 0, b"", b"", True
    try:
        while chunk := file.read(CHUNK):
            first = first or chunk
            offset += len(chunk)
            text = decoder.decode(chunk)
            tick(len(chunk))
            if text:
                yield text.removeprefix("\ufeff") if at_start else text
                at_start = False
        yield decoder.decode(b"", final=True)
        return
    except UnicodeDecodeError as error:
        # `error.object` may begin with bytes of the previous chunk. It ends at `offset`, where reading stopped.
        wrong = offset - len(error.object) + error.start
        what = f"byte {wrong:,} is not {encoding} ({error.reason})"
    except UnicodeError as error:
        what = f"is not {encoding} ({error})"
    if first[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
        likely = "utf-16, which it looks like"
    elif order := utf16_order(first):
        likely = f"utf-16-{order}, which it looks like"
    elif is_binary(first) or is_binary(chunk):
        way = "; data.tokenizer=byte reads any file" if option.startswith("data.") else ""
        raise DataError(f"{printable(name)}: is a binary file, not text: {what}{way}")
    else:
        likely = "latin-1 or cp1252" if codecs.lookup(encoding).name == "utf-8" else "utf-8"
    raise DataError(f"{printable(name)}: {what}; name its encoding with {option.rstrip()}, such as {likely}")


def utf16_order(chunk: bytes) -> str:
    """Guess the byte order of UTF-16 without a byte order mark, where every second byte is often NUL: le, be or ""."""
    first, second = chunk[::2].count(0), chunk[1::2].count(0)
    if bool(first) == bool(second) or first + second < len(chunk) / 100:
        return ""
    return "le" if second else "be"


def is_binary(chunk: bytes) -> bool:
    """Whether bytes hold a NUL or over 1 % control characters, which a text in a superset of ASCII does not."""
    controls = bytes(set(range(32)) - set(b"\t\n\f\r\x1a\x1b"))
    return b"\0" in chunk or len(chunk) - len(chunk.translate(None, controls)) > len(chunk) / 100


def without_rulers(source: str) -> str:
    """Drop lines with a comment only or with a ruler, such as `-----`: models repeat them endlessly in samples."""
    lines = source.split("\n")
    return "\n".join(line for line in lines if not line.lstrip().startswith("#") and not RULER.search(line))
