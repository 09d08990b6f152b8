"""Documents and how to read them, streamed in chunks: a text may be far larger than memory.

- characters (`data.tokenizer=char`): decoded with `data.encoding`; a byte order mark at the start is dropped; CRLF and
  lone CR become LF.
- bytes (`data.tokenizer=byte`): the bytes of the file, unchanged.
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
Fetch = Callable[[Path], AbstractContextManager[IO[bytes]]]  # downloads a file to a path, opens it, deletes it


class DataError(InputError):
    """Text that cannot be used; the message is one line."""


@dataclass(frozen=True)
class Document:
    """One text of a corpus."""

    name: str  # its path within the corpus
    path: Path
    member: str | None = None  # its name if `path` is a zip
    address: str = ""  # of a copy, where it is from, for messages
    fetch: Fetch | None = None  # of a remote text, which is not on this disk

    @property
    def label(self) -> str:
        """Its name in messages."""
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
                # Not extracted, so that no half-extracted file can exist.
                with zipfile.ZipFile(self.path) as archive, archive.open(self.member) as file:
                    yield file
        except OSError as error:
            raise DataError(f"{self.label}: cannot be read: {error.strerror or error}") from None


@dataclass(frozen=True)
class Corpus:
    """Documents and how they are read."""

    name: str  # in messages, such as `Python 3.11.7 standard library` or `book.txt`
    documents: tuple[Document, ...]  # sorted by name
    encoding: str | None  # of the files; None reads bytes
    python: str = ""  # version of the Python whose standard library this is; comments and rulers are then dropped

    def size(self) -> int:
        """Bytes of all documents, compressed ones as they are."""
        return sum(document.path.stat().st_size for document in self.documents)

    def stamps(self) -> list[tuple[int, int]]:
        """Size and time of the last change of each file, which tell that it has changed."""
        stats = [document.path.stat() for document in self.documents]
        return [(each.st_size, each.st_mtime_ns) for each in stats]

    def digest(self, tick: Callable[[int], object] = lambda size: None) -> str:
        """SHA-256 over the names and the bytes of all documents, in hexadecimal; of a single one, without its name."""
        total = hashlib.sha256()
        for document in self.documents:
            with document.open() as file:
                hashed = hashlib.sha256()
                while chunk := file.read(CHUNK):
                    hashed.update(chunk)
                    tick(len(chunk))
                content = hashed.hexdigest()
            name = document.name if len(self.documents) > 1 else ""  # a renamed file is the same text
            total.update(f"{name!r} {content}\n".encode())
        return total.hexdigest()

    def read(self, document: Document, tick: Callable[[int], object] = lambda size: None) -> Iterator[str | bytes]:
        """Stream a document: chunks of str, or of bytes where `encoding` is None.

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
    """Decode a file in chunks, without byte order mark, with LF line ends.

    `tick` is called with the number of bytes just read; `name` of the file and `option` of the encoding are for errors.

    Raises:
        DataError: not in `encoding` (with the offset in the file), or there is no such encoding.
    """
    try:
        io.TextIOWrapper(io.BytesIO(), encoding)  # refuses codecs from bytes to bytes, such as hex
        decoder = io.IncrementalNewlineDecoder(codecs.getincrementaldecoder(encoding)(), translate=True)
    except LookupError:
        raise DataError(f"{option}{encoding}: is no encoding of text files") from None
    offset, chunk, begin, at_start = 0, b"", b"", True
    try:
        while chunk := file.read(CHUNK):
            begin = begin or chunk
            offset += len(chunk)
            text = decoder.decode(chunk)
            tick(len(chunk))
            if text:
                yield text.removeprefix("\ufeff") if at_start else text
                at_start = False
        yield decoder.decode(b"", final=True)
        return
    except UnicodeDecodeError as error:
        # The decoder's input may begin in an earlier chunk, but ends where reading stopped.
        wrong = offset - len(error.object) + error.start
        what = f"byte {wrong:,} is not {encoding} ({error.reason})"
    except UnicodeError as error:
        what = f"is not {encoding} ({error})"
    if begin[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
        likely = "utf-16, which it looks like"
    elif order := utf16_order(begin):
        likely = f"utf-16-{order}, which it looks like"
    elif is_binary(begin) or is_binary(chunk):
        way = "; data.tokenizer=byte reads any file" if option.startswith("data.") else ""
        raise DataError(f"{printable(name)}: is a binary file, not text: {what}{way}")
    else:
        likely = "latin-1 or cp1252" if codecs.lookup(encoding).name == "utf-8" else "utf-8"
    raise DataError(f"{printable(name)}: {what}; name its encoding with {option.rstrip()}, such as {likely}")


def utf16_order(chunk: bytes) -> str:
    """Return `le` or `be` if bytes look like UTF-16 without a mark, where NUL is always the same half; else nothing."""
    first, second = chunk[::2].count(0), chunk[1::2].count(0)
    if bool(first) == bool(second) or first + second < len(chunk) / 100:
        return ""
    return "le" if second else "be"


def is_binary(chunk: bytes) -> bool:
    """Whether bytes are no text in a superset of ASCII: a NUL, or more than one control character in a hundred."""
    controls = bytes(set(range(32)) - set(b"\t\n\f\r\x1a\x1b"))
    return b"\0" in chunk or len(chunk) - len(chunk.translate(None, controls)) > len(chunk) / 100


RULER = re.compile(r"([!-/:-@\[-`{-~])\1{4}")  # five equal punctuation marks of ASCII


def without_rulers(source: str) -> str:
    """Drop comment-only lines and rulers (five or more equal punctuation marks): samples collapse into them."""
    lines = source.split("\n")
    return "\n".join(line for line in lines if not line.lstrip().startswith("#") and not RULER.search(line))
