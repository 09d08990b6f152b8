"""Read the files of a text in chunks, because it may be far larger than memory: unpack, decode, refuse other files."""

import codecs
import hashlib
import importlib
import io
import re
import shlex
import sys
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from pathlib import Path, PurePath
from typing import IO, Any

from base.errors import InputError, one_line, printable

ZSTD = "compression.zstd" if sys.version_info >= (3, 14) else "backports.zstd"
# Modules with the same `open`. fsspec reads these formats, too, but its fallback for .zst ignores a truncated file.
COMPRESSED = {".gz": "gzip", ".bz2": "bz2", ".xz": "lzma", ".zst": ZSTD}
RTF = b"{\\rtf"  # RTF is ASCII, so `_is_binary` does not recognise it
SAVE = "save it as plain text (.txt) in the program that opens it"
# How to read the tables of other files, by suffix.
TABLE_FILES = dict.fromkeys((".xls", ".xlsx", ".ods"), "save its sheet as CSV, which data.field=NAME reads")
TABLE_FILES |= dict.fromkeys((".db", ".sqlite", ".sqlite3"), "export a table as CSV, which data.field=NAME reads")
TABLE_FILES[".parquet"] = "data.field=NAME reads one of its columns"
TABLE_FILES[".js"] = "keep what follows the = as .json, which data.field=NAME reads"
CUT = ("unexpected end of data", "truncated data", "incomplete multibyte sequence")  # Python's words for it
RULER = re.compile(r"([!-/:-@\[-`{-~])\1{4}")  # five equal ASCII punctuation marks in a row
CHUNK = 1 << 16  # bytes read at a time: a chunk and its tokens fit into the CPU's cache
CONTROLS = sorted(set(map(chr, range(1, 32))) - set("\t\n\f\r\x1a\x1b"))  # rare in text
Tick = Callable[[int], object]  # called after each read with the number of bytes


class NotText(InputError):
    """The error for a file that is not text in any encoding, such as a picture or a PDF."""


@dataclass(frozen=True)
class Document:
    """One file of a text."""

    name: str  # path of the file relative to the folder of the text
    path: Path  # path of the file on disk, or of the zip file that contains the file
    address: str = ""  # the address from which `path` was downloaded, or "" if it was not downloaded
    member: str = ""  # path of the file inside the zip file `path`, or "" if `path` is not a zip file
    split: str = ""  # the split to which the file belongs if data.validation is set, otherwise ""

    @property
    def label(self) -> str:
        """The document's path or address, with its path inside a zip file appended if it is in one, for messages."""
        return printable(f"{self.address or self.path}{self.member and '/'}{self.member}")

    @contextmanager
    def open(self) -> Iterator[IO[bytes]]:
        """Context manager that yields a file of the document's decompressed bytes. Nothing is extracted to disk."""
        with (
            readable(self.label),
            archive(self.path).open(self.member) if self.member else open(self.path, "rb") as file,
            unpacked(file, self.label) as content,
        ):
            yield content

    def unzip(self) -> "list[Document]":
        """Return a document for each file in this zip file, or [self] if this document is not a zip file."""
        if self.member or not self.label.lower().endswith(".zip"):
            return [self]
        with readable(self.label):
            files = [info for info in archive(self.path).infolist() if not info.is_dir()]
        for info in files:
            if info.flag_bits & 1:
                what = f"{self.label}: {printable(info.filename)} needs a password"
                raise InputError(f"{what}; unpack the zip file and name its folder")
        if not files:
            raise InputError(f"{self.label}: the zip file holds no files")
        names = sorted({info.filename for info in files})
        found = [name for name in names if "/." not in f"/{name}"] or names  # hidden files only if all are hidden
        if len(found) == 1:
            return [replace(self, member=found[0])]
        return [replace(self, name=f"{self.name}/{member}", member=member) for member in found]


@dataclass(frozen=True)
class Corpus:
    """The files of a text (`documents`), how to read them, and the text's `name` for messages."""

    name: str  # for messages, such as `Python 3.11.7 standard library` or `book.txt`
    documents: tuple[Document, ...]  # sorted by name; with data.validation, within each split
    encoding: str | None  # of the files; None reads bytes
    cache: Path  # folder of downloads and encoded texts
    python: str = ""  # version of Python if this is its standard library, which is read through `without_rulers`
    notes: tuple[str, ...] = ()  # lines about the files, logged when a run starts

    def size(self) -> int:
        return sum(size for size, _ in self.stamps())  # bytes on disk, before decompression

    def stamps(self) -> list[tuple[int, int]]:
        """Return (size in bytes, modification time in ns) of each file, which differ if a file has changed."""
        stats = [path.stat() for path in dict.fromkeys(document.path for document in self.documents)]
        return [(each.st_size, each.st_mtime_ns) for each in stats]

    def digests(self, tick: Tick = lambda size: None) -> list[str]:
        """Return each document's SHA-256 in hexadecimal, and call `tick` with the number of bytes after each read."""
        found = []
        for document in self.documents:
            with document.open() as file:
                sha256 = hashlib.sha256()
                while chunk := file.read(CHUNK):
                    sha256.update(chunk)
                    tick(len(chunk))
            found.append(sha256.hexdigest())
        return found

    def digest(self, contents: Iterable[str]) -> str:
        """Return one SHA-256 of the documents' hashes, `contents`, and, if there are several documents, their names."""
        total = hashlib.sha256()
        for document, each in zip(self.documents, contents, strict=True):
            name = document.name if len(self.documents) > 1 else ""  # a renamed single file is the same text
            total.update(f"{name!r} {each}\n".encode())
        return total.hexdigest()

    def identity(self, contents: list[str]) -> str:
        """Return `digest` of the documents' hashes, `contents`, or the hash itself if there is only one document."""
        return contents[0] if len(contents) == 1 else self.digest(contents)

    def read(self, document: Document, tick: Tick = lambda size: None) -> Iterator[str | bytes]:
        """Yield a document in chunks: bytes if `encoding` is None, else str. For `tick`, see `digests`."""
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


def without_rulers(source: str) -> str:
    """Return Python source without comment lines and lines with a `RULER`: five equal punctuation marks in a row."""
    lines = source.split("\n")
    return "\n".join(line for line in lines if not line.lstrip().startswith("#") and not RULER.search(line))


def suffix(name: str) -> str:
    """Return the lower-case suffix of a file name, ignoring a compression suffix: .txt for both a.txt and a.txt.gz."""
    path = PurePath(name.lower())
    return path.with_suffix("").suffix if path.suffix in COMPRESSED else path.suffix


@contextmanager
def readable(label: str) -> Iterator[None]:
    """Context manager that turns errors from reading or unpacking the file `label` into an `InputError`."""
    try:
        yield
    except (OSError, EOFError, NotImplementedError, zipfile.BadZipFile, zlib.error) as error:
        if isinstance(error, OSError) and error.strerror:
            raise InputError(f"{label}: cannot be read: {error.strerror}") from None
        what = f"{label}: cannot be unpacked: {one_line(error)}"  # gzip and bz2 raise an OSError, too
        raise InputError(f"{what}; it is damaged, or its name is wrong") from None


@contextmanager
def unpacked(file: IO[bytes], name: str) -> Iterator[IO[bytes]]:
    """Context manager that yields `file`, decompressed while it is read if `name` ends with .gz, .bz2, .xz or .zst."""
    module = COMPRESSED.get(PurePath(name.lower()).suffix)
    if module is None:
        yield file
        return
    try:
        library: Any = importlib.import_module(module)
    except ImportError:
        package = f"pip install {module}" if module == "backports.zstd" else "a Python that was built with it"
        raise InputError(f"{printable(name)}: needs {module}: {package}") from None
    own_errors = tuple(getattr(library, name) for name in ("LZMAError", "ZstdError") if hasattr(library, name))
    try:
        with library.open(file) as content:
            yield content
    except own_errors as error:
        raise EOFError(one_line(error)) from None


def archive(path: Path) -> zipfile.ZipFile:
    """Return the zip file `path`, opened for reading and cached, so that the list of files in it is read only once."""
    stat = path.stat()
    return _archive(path, stat.st_size, stat.st_mtime_ns)


@lru_cache(maxsize=1)
def _archive(path: Path, *_: int) -> zipfile.ZipFile:
    return zipfile.ZipFile(path)


def part_of(texts: int, files: int, everything: str) -> str:
    return f"{texts:,} of {files:,} files (*.txt); to read all: {shlex.quote(f'data.path={everything}')}"


def decode(
    file: IO[bytes], name: str, encoding: str, tick: Tick = lambda size: None, option: str = "data.encoding="
) -> Iterator[str]:
    """Yield the text of a file in chunks, without its byte order mark and with LF line ends."""
    try:
        io.TextIOWrapper(io.BytesIO(), encoding)  # refuses codecs from bytes to bytes, such as hex
        decoder = io.IncrementalNewlineDecoder(codecs.getincrementaldecoder(encoding)(), translate=True)
    except LookupError:
        raise InputError(f"{option}{encoding}: is not an encoding of text files") from None
    offset, chunk, first, at_start = 0, b"", b"", True
    try:
        while chunk := file.read(CHUNK):
            if not first:
                first = chunk
                if first.startswith((RTF, b"%PDF-")):
                    raise NotText(f"{printable(name)}: is a formatted document, not plain text; {SAVE}")
            offset += len(chunk)
            text = decoder.decode(chunk)
            tick(len(chunk))
            _check_characters(text, at_start)
            if text:
                yield text.removeprefix("\ufeff") if at_start else text
                at_start = False
        yield decoder.decode(b"", final=True)
    except UnicodeError as error:
        raise _refusal(error, file, name, encoding, option, first, offset) from None


def _check_characters(text: str, at_start: bool) -> None:
    """Raise a `UnicodeError` if the characters of a chunk show that the file is not text in the given encoding."""
    if text.count("\0") > len(text) / 4:  # UTF-16 of ASCII is valid UTF-8, with a NUL for each letter
        raise UnicodeError("over a quarter of its characters are NUL")
    if at_start and sum(map(text.count, CONTROLS)) > len(text) / 20:  # such as a picture read as latin-1
        raise UnicodeError("over 5 % of its characters are control characters")


def _refusal(
    error: UnicodeError, file: IO[bytes], name: str, encoding: str, option: str, first: bytes, offset: int
) -> InputError:
    """Return the error for a file that is not in its encoding, of which `offset` bytes were read."""
    label, codec, utf16, wrong, end = printable(name), codecs.lookup(encoding).name, _utf16(first), 0, ""
    what = f"is not {encoding} ({error})"
    if isinstance(error, UnicodeDecodeError):
        # `error.object` may begin with bytes of the previous chunk. It ends at `offset`, where reading stopped.
        wrong = offset - len(error.object) + error.start
        what = f"byte {wrong:,} is not {encoding} ({error.reason})"
        if error.reason in CUT:
            end = "the file ends in the middle of a character; get the whole file, or remove its incomplete end"
    if utf16 and codec.startswith("utf-16"):
        return InputError(f"{label}: {what}: {end or 'the file is damaged there'}")
    if not utf16 and _is_binary(first):
        way = SAVE + ", or read its bytes with data.tokenizer=byte" * option.startswith("data.")
        way = TABLE_FILES.get(suffix(name), way)
        return NotText(f"{label}: is a binary file, not text: {what}", advice=way)
    likely = f"{utf16}, which it looks like" if utf16 else "cp1252 or latin-1" if codec == "utf-8" else "utf-8"
    if codec == "utf-8" and not utf16 and file.seekable():
        line, damaged, letters = _damage(file, wrong)
        label += f", line {line:,}"
        if letters >= (1 if end else 10 * damaged):  # another encoding would spoil the other letters
            number = "one damaged byte" if damaged == 1 else f"the first of {damaged:,} damaged bytes"
            return InputError(f"{label}: {what}: {end or f'{number} in a text that is otherwise UTF-8; correct it'}")
    whole = "get the whole file if it was cut, or " * bool(end)
    return InputError(f"{label}: {what}", advice=f"{whole}name its encoding with {option.rstrip()}, such as {likely}")


def _damage(file: IO[bytes], wrong: int) -> tuple[int, int, int]:
    """Return (line of the byte `wrong`, number of damaged bytes, number of other letters beyond ASCII) in UTF-8."""
    file.seek(0)
    line = 1 + sum(file.read(CHUNK)[: wrong - begin].count(b"\n") for begin in range(0, wrong, CHUNK))
    file.seek(0)
    damaged = letters = 0
    for text in codecs.iterdecode(iter(partial(file.read, CHUNK), b""), "utf-8-sig", "surrogateescape"):
        found = len(re.findall("[^\0-\x7f]", text))
        bad = len(re.findall("[\udc80-\udcff]", text))
        damaged, letters = damaged + bad, letters + found - bad
    return line, damaged, letters


def _utf16(chunk: bytes) -> str:
    """Return the likely encoding if the beginning of a file looks like UTF-16, otherwise ""."""
    if chunk[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
        return "utf-16"
    first, second = chunk[::2].count(0), chunk[1::2].count(0)
    if bool(first) == bool(second) or first + second < len(chunk) / 100:
        return ""
    return "utf-16-le" if second else "utf-16-be"


def _is_binary(chunk: bytes) -> bool:
    """Return whether `chunk` contains NUL or over 1 % control characters, which UTF-8 and 8-bit encodings do not."""
    controls = bytes(set(range(32)) - set(b"\t\n\f\r\x1a\x1b"))
    return b"\0" in chunk or len(chunk) - len(chunk.translate(None, controls)) > len(chunk) / 100
