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
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from pathlib import Path, PurePath
from typing import IO, Any

from base.errors import InputError, one_line, printable
from base.progress import count

ZSTD = "compression.zstd" if sys.version_info >= (3, 14) else "backports.zstd"
# Modules with the same `open`. fsspec reads these formats, too, but its fallback for .zst ignores
# a truncated file.
COMPRESSED = {".gz": "gzip", ".bz2": "bz2", ".xz": "lzma", ".zst": ZSTD}
FORMATTED = (b"{\\rtf", b"%PDF-")  # RTF is ASCII, so `_is_binary` does not recognise it
SAVE = "save it as plain text (.txt) in the program that opens it"
# How to read the tables of other files, by suffix.
TABLE_FILES = dict.fromkeys(
    (".xls", ".xlsx", ".ods"), "save its sheet as CSV, which data.field=NAME reads"
)
TABLE_FILES |= dict.fromkeys(
    (".db", ".sqlite", ".sqlite3"), "export a table as CSV, which data.field=NAME reads"
)
TABLE_FILES[".parquet"] = "data.field=NAME reads one of its columns"
TABLE_FILES[".js"] = "keep what follows the = as .json, which data.field=NAME reads"
ENCODINGS = (
    "cp1252 (Western), cp1250 (Central European), cp1251 (Cyrillic), gbk or big5 (Chinese), "
    "shift_jis (Japanese), euc-kr (Korean), utf-16-le, …"
)
RULER = re.compile(r"([!-/:-@\[-`{-~])\1{4}")  # five equal ASCII punctuation marks in a row
CHUNK = 1 << 16  # bytes read at a time: a chunk and its tokens fit into the CPU's cache
CONTROLS = sorted(set(map(chr, range(1, 32))) - set("\t\n\f\r\x1a\x1b"))  # rare in text
Tick = Callable[[int], object]  # called after each read with the number of bytes


class NotText(InputError):
    """The error for a file that is not text in any encoding, such as a picture or a PDF."""


class WrongEncoding(InputError):
    """The error for a text whose encoding is not the given one."""


@dataclass(frozen=True)
class SourceFile:
    """One file of a text."""

    name: str  # path of the file relative to the folder of the text
    path: Path  # path of the file on disk, or of the zip file that contains the file
    # the address from which `path` was downloaded, or "" if it was not downloaded
    address: str = ""
    # path of the file inside the zip file `path`, or "" if `path` is not a zip file
    member: str = ""
    split: str = ""  # the split to which the file belongs if data.validation is set, otherwise ""

    @property
    def label(self) -> str:
        """The file's path or address, with its path inside a zip file appended if it is in one, for messages."""
        label = self.address or str(self.path)
        if self.member:
            label += f"/{self.member}"
        return printable(label)

    @contextmanager
    def open(self) -> Iterator[IO[bytes]]:
        """Context manager that yields a file of the decompressed bytes. Nothing is extracted to disk."""
        with (
            readable(self.label),
            self._open_stored() as file,
            unpacked(file, self.label) as content,
        ):
            yield content

    def _open_stored(self) -> IO[bytes]:
        if self.member:
            return archive(self.path).open(self.member)
        return open(self.path, "rb")

    def unzip(self) -> "list[SourceFile]":
        """Return each file in this zip file, or [self] if this is not a zip file."""
        if self.member or not self.label.lower().endswith(".zip"):
            return [self]
        with readable(self.label):
            members = archive(self.path).infolist()
        names = set[str]()  # a zip file may contain a name twice
        for info in members:
            if info.is_dir():
                continue
            is_encrypted = info.flag_bits & 1
            if is_encrypted:
                what = f"{self.label}: {printable(info.filename)} needs a password"
                raise InputError(f"{what}; unpack the zip file and name its folder")
            names.add(info.filename)
        if not names:
            raise InputError(f"{self.label}: the zip file holds no files")
        hidden = {name for name in names if "/." in f"/{name}"}
        chosen = sorted(names - hidden or hidden)  # hidden files only if all are hidden
        return [replace(self, name=f"{self.name}/{name}", member=name) for name in chosen]


@dataclass(frozen=True)
class Corpus:
    """The `files` of a text, how to read them, and the text's `name` for messages."""

    name: str  # for messages, such as `Python 3.11.7 standard library` or `book.txt`
    files: tuple[SourceFile, ...]  # sorted by name; with data.validation, within each split
    encoding: str | None  # of the files; None reads bytes
    cache: Path  # folder of downloads and encoded texts
    # version of Python if this is its standard library, which is read through `without_rulers`
    python: str = ""
    notes: tuple[str, ...] = ()  # lines about the files, logged when a run starts

    def size(self) -> int:
        return sum(size for size, _ in self.stamps())  # bytes on disk, before decompression

    def stamps(self) -> list[tuple[int, int]]:
        """Return (size in bytes, modification time in ns) of each file, which differ if a file has changed."""
        # a zip file may contain several of them
        paths = dict.fromkeys(source.path for source in self.files)
        return [(stat.st_size, stat.st_mtime_ns) for stat in map(Path.stat, paths)]

    def digests(self, tick: Tick = lambda size: None) -> list[str]:
        """Return each file's SHA-256 in hexadecimal, and call `tick` with the number of bytes after each read."""
        digests = []
        for source in self.files:
            sha256 = hashlib.sha256()
            with source.open() as file:
                for chunk in _chunks(file, tick):
                    sha256.update(chunk)
            digests.append(sha256.hexdigest())
        return digests

    def digest(self, digests: Iterable[str]) -> str:
        """Return one SHA-256 of the files' hashes, `digests`, and, if there are several files, their names."""
        total = hashlib.sha256()
        for source, file_digest in zip(self.files, digests, strict=True):
            # a renamed single file is the same text
            name = source.name if len(self.files) > 1 else ""
            total.update(f"{name!r} {file_digest}\n".encode())
        return total.hexdigest()

    def identity(self, digests: list[str]) -> str:
        """Return `digest` of the files' hashes, `digests`, or the hash itself if there is only one file."""
        if len(digests) == 1:
            return digests[0]
        return self.digest(digests)

    def read(self, source: SourceFile, tick: Tick = lambda size: None) -> Iterator[str | bytes]:
        """Yield a file in chunks: bytes if `encoding` is None, else str. For `tick`, see `digests`."""
        with source.open() as file:
            if self.python:
                code = file.read()
                tick(len(code))
                text = without_rulers(code.decode("ascii").replace("\r\n", "\n"))
                yield text if self.encoding else text.encode()
            elif self.encoding is None:
                yield from _chunks(file, tick)
            else:
                yield from decode(file, source.label, self.encoding, tick)


def _chunks(file: IO[bytes], tick: Tick) -> Iterator[bytes]:
    for chunk in iter(partial(file.read, CHUNK), b""):
        tick(len(chunk))
        yield chunk


def without_rulers(source: str) -> str:
    """Return Python source without comment lines and lines with a `RULER`: five equal punctuation marks in a row.

    A model trained with these lines writes endless rows of dashes.
    """
    lines = []
    for line in source.split("\n"):
        is_comment = line.lstrip().startswith("#")
        if not is_comment and not RULER.search(line):
            lines.append(line)
    return "\n".join(lines)


def suffix(name: str) -> str:
    """Return the lower-case suffix of a file name, ignoring a compression suffix: .txt for both a.txt and a.txt.gz."""
    path = PurePath(name.lower())
    if path.suffix in COMPRESSED:
        path = path.with_suffix("")
    return path.suffix


@contextmanager
def readable(label: str) -> Iterator[None]:
    """Context manager that turns errors from reading or unpacking the file `label` into an `InputError`."""
    try:
        yield
    except (OSError, EOFError, NotImplementedError, zipfile.BadZipFile, zlib.error) as error:
        if isinstance(error, OSError) and error.strerror:
            raise InputError(f"{label}: cannot be read: {error.strerror}") from None
        # gzip and bz2 raise an OSError, too, and zipfile a NotImplementedError
        what = f"{label}: cannot be unpacked: {one_line(error)}"
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
        way = "a Python that was built with it"
        if module == "backports.zstd":
            way = f"pip install {module}"
        raise InputError(f"{printable(name)}: needs {module}: {way}") from None
    # lzma and zstd have their own kind of error; gzip and bz2 raise an OSError. `except ()`
    # catches nothing.
    library_error: Any = getattr(library, "LZMAError", None) or getattr(library, "ZstdError", ())
    try:
        with library.open(file) as content:
            yield content
    except library_error as error:
        raise EOFError(one_line(error)) from None  # which `readable` reports


def archive(path: Path) -> zipfile.ZipFile:
    """Return the zip file `path`, opened for reading and cached, so that the list of files in it is read only once."""
    stat = path.stat()
    return _archive(path, stat.st_size, stat.st_mtime_ns)


@lru_cache(maxsize=1)
def _archive(path: Path, *_: int) -> zipfile.ZipFile:
    return zipfile.ZipFile(path)


def texts_first(files: dict[str, Any], notes: list[str], way: str) -> dict[str, Any]:
    """Return the `*.txt` of files, which are given by name, or all if there are none.

    A note counts the others, and ends with the `way` to read them.
    """
    kinds = Counter(suffix(name) or "without a suffix" for name in files)
    texts = kinds.pop(".txt", 0)
    if not texts or not kinds:
        return files
    text_files = count(texts, "*.txt file")
    other_files = count(kinds.total(), "other file")
    others = first_three([f"{number:,} {kind}" for kind, number in kinds.most_common()])
    notes.append(f"{text_files} read, {other_files} left out: {others}; {way}")
    return {name: file for name, file in files.items() if suffix(name) == ".txt"}


def first_three(names: list[str]) -> str:
    more = ", …" if len(names) > 3 else ""
    return ", ".join(map(printable, names[:3])) + more


def to_read_all(folder: str) -> str:
    everything = f"data.path={folder.rstrip('/')}/**/*"
    return f"to read all: {shlex.quote(everything)}"


def decode(
    file: IO[bytes],
    name: str,
    encoding: str,
    tick: Tick = lambda size: None,
    option: str = "data.encoding=",
) -> Iterator[str]:
    """Yield the text of a file in chunks, without byte order marks and with LF line ends.

    `name` is the file's, and `option` how the command line sets its encoding, both for messages.
    """
    try:
        # refuses codecs of something else than files, such as hex and idna
        b"a".decode(encoding, "replace")
        decoder = io.IncrementalNewlineDecoder(
            codecs.getincrementaldecoder(encoding)(), translate=True
        )
    except (LookupError, UnicodeError):
        raise InputError(f"{option}{encoding}: is not an encoding of text files") from None
    first = b""
    chunk = b""
    offset = 0  # bytes read
    line = 1
    try:
        for chunk in _chunks(file, tick):
            at_start = offset == 0
            if at_start:
                first = chunk
                if first.startswith(FORMATTED):
                    raise NotText(
                        f"{printable(name)}: is a formatted document, not plain text; {SAVE}"
                    )
            offset += len(chunk)
            text = decoder.decode(chunk)
            _check_characters(text, at_start)
            line += text.count("\n")
            yield text.replace("\ufeff", "")
        yield decoder.decode(b"", final=True)
    except UnicodeError as error:
        what = f"is not {encoding} ({error})"
        if isinstance(error, UnicodeDecodeError):
            # `error.object` may begin with the end of the previous chunk. It ends at `offset`,
            # where reading stopped.
            byte = offset - len(error.object) + error.start
            line += error.object[: error.start].decode(encoding, "ignore").count("\n")
            what = f"byte {byte:,} (line {line:,}) is not {encoding} ({error.reason})"
        raise _refusal(name, what, encoding, option, first, chunk) from None


def _check_characters(text: str, at_start: bool) -> None:
    """Raise a `UnicodeError` if the characters of a chunk show that the file is not text in the given encoding."""
    # UTF-16 of ASCII is valid UTF-8, with a NUL for each letter
    if text.count("\0") > len(text) / 4:
        raise UnicodeError("over a quarter of its characters are NUL")
    if at_start and _controls(text) > len(text) / 20:  # such as a picture read as latin-1
        raise UnicodeError("over 5 % of its characters are control characters")


def _refusal(
    name: str, what: str, encoding: str, option: str, first: bytes, chunk: bytes
) -> InputError:
    """Return the error for a file that begins with `first` and cannot be decoded in `chunk`."""
    reason = f"{printable(name)}: {what}"
    codec = codecs.lookup(encoding).name
    proven = _proven_encoding(first, chunk)
    is_utf16 = proven == "utf-16" or codec.startswith("utf-16")  # in which NUL bytes are normal
    if not is_utf16 and _is_binary(first):
        way = SAVE
        if option.startswith("data."):
            way += ", or read its bytes with data.tokenizer=byte"
        reason = f"{printable(name)}: is a binary file, not text: {what}"
        return NotText(reason, advice=TABLE_FILES.get(suffix(name), way))
    if not proven:
        return WrongEncoding(reason, advice=f"name its encoding with {option}NAME: {ENCODINGS}")
    if codec.startswith(proven):  # also utf-8-sig and utf-16-le; no other encoding would help
        return InputError(
            reason, advice=f"the text around it is {proven}, so the file is damaged or cut there"
        )
    return WrongEncoding(reason, advice=f"it is {proven}: use {option}{proven}")


def _proven_encoding(first: bytes, chunk: bytes) -> str:
    """Return the encoding if a byte order mark or many letters beyond ASCII prove it, else ""."""
    if first.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "utf-16"
    text = chunk.decode("utf-8", "replace")
    not_ascii = len(re.findall("[^\0-\x7f]", text))
    damaged = text.count("\N{REPLACEMENT CHARACTER}")
    return "utf-8" if not_ascii > 10 * damaged else ""


def _is_binary(chunk: bytes) -> bool:
    """Return whether `chunk` contains NUL or over 1 % control characters, which UTF-8 and 8-bit encodings do not."""
    return b"\0" in chunk or _controls(chunk.decode("latin-1")) > len(chunk) / 100


def _controls(text: str) -> int:
    return sum(map(text.count, CONTROLS))
