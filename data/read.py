"""Read a file of a text in chunks, because it may be larger than memory: unpack, decode, or refuse it in one line."""

import codecs
import importlib
import io
import re
import sys
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import chain
from pathlib import Path, PurePath
from typing import IO, Any
from urllib.parse import urlsplit

from base.errors import InputError, one_line, printable

ZSTD = "compression.zstd" if sys.version_info >= (3, 14) else "backports.zstd"
# Modules with the same `open`. fsspec reads these formats, too, but its fallback for .zst ignores
# a truncated file.
COMPRESSED = {".gz": "gzip", ".bz2": "bz2", ".xz": "lzma", ".zst": ZSTD}
# How files begin that are not plain text though most of their bytes may be ASCII.
FORMATTED = (b"{\\rtf", b"%PDF-")
LFS = b"version https://git-lfs.github.com/spec/"
SAVE = "save it as plain text (.txt) in the program that opens it"
# What makes text or a table of a file, by suffix.
WAYS = {
    ".parquet": "data.field=NAME reads one of its columns",
    ".tar": "unpack it and name its folder",
    ".tgz": "unpack it and name its folder",
    ".xlsx": "save its sheet as CSV, which data.field=NAME reads",
    ".sqlite": "export a table as CSV, which data.field=NAME reads",
}
# Bytes read at a time. Even in UTF-32, a chunk is below the 128 KiB from which on glibc returns freed
# memory to the system, whose page faults would cost a fifth of the time of encoding.
CHUNK = 24 * 2**10
CONTROLS = sorted(set(map(chr, range(32))) - set("\t\n\f\r\x1a\x1b"))  # rare in text
# called with the bytes of each read and, if they are decoded, their text
Tick = Callable[[bytes, str | None], object]


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
    def place(self) -> str:
        """The file's path or the path of its address, with its path inside a zip file appended if it is in one."""
        place = urlsplit(self.address).path if self.address else str(self.path)
        return f"{place}/{self.member}" if self.member else place

    @property
    def label(self) -> str:
        """The file's place for messages, which an address begins."""
        member = f"/{self.member}" if self.member else ""
        return printable((self.address or str(self.path)) + member)

    @contextmanager
    def open(self) -> Iterator[IO[bytes]]:
        """Context manager that yields a file of the decompressed bytes. Nothing is extracted to disk."""
        with readable(self.label), ExitStack() as stack:
            refuse_pointer(self.path, self.label)
            if self.member:
                stored = stack.enter_context(archive(self.path).open(self.member))
            else:
                stored = stack.enter_context(open(self.path, "rb"))
            yield stack.enter_context(unpacked(stored, self.place))


def refuse_pointer(path: Path, label: str) -> None:
    if not path.is_file():  # a pipe can be read only once
        return
    with open(path, "rb") as file:
        if file.read(len(LFS)) == LFS:
            what = "is a pointer of Git LFS, not the file itself; run git lfs pull"
            raise InputError(f"{label}: {what}")


@contextmanager
def readable(label: str) -> Iterator[None]:
    """Context manager that turns errors from reading or unpacking the file `label` into an `InputError`."""
    try:
        yield
    except (OSError, EOFError, RuntimeError, zipfile.BadZipFile, zlib.error) as error:
        if isinstance(error, OSError) and error.strerror:
            raise InputError(f"{label}: cannot be read: {error.strerror}") from None
        # gzip and bz2 raise an OSError, too, and zipfile a RuntimeError
        what = f"{label}: cannot be unpacked: {one_line(error)}"
        raise InputError(f"{what}; it may be damaged, encrypted or have a wrong name") from None


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
        raise InputError(f"{printable(name)}: needs {module}: pip install {module}") from None
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


def suffix(name: str) -> str:
    """Return the lower-case suffix of a file name, ignoring a compression suffix: .txt for both a.txt and a.txt.gz."""
    if "://" in name:
        name = urlsplit(name).path
    path = PurePath(name.lower())
    if path.suffix in COMPRESSED:
        path = path.with_suffix("")
    return path.suffix


def no_tick(*_: object) -> None:
    pass


def chunks(file: IO[bytes]) -> Iterator[bytes]:
    return iter(partial(file.read, CHUNK), b"")


def decode(
    file: IO[bytes],
    name: str,
    encoding: str | None,
    tick: Tick = no_tick,
    option: str = "data.encoding=",
) -> Iterator[str]:
    """Yield the text of a file in chunks, without byte order marks and with LF line ends.

    `encoding=None` reads bytes: each becomes the character whose code point is its value, and
    nothing is changed. `name` is the file's, and `option` how the command line sets its encoding,
    both for messages.
    """
    if encoding is None:
        for chunk in chunks(file):
            tick(chunk, None)
            yield chunk.decode("latin-1")
        return
    try:
        # refuses codecs of something else than files, such as hex and idna
        b"a".decode(encoding, "replace")
        codec = codecs.getincrementaldecoder(encoding)()
    except (LookupError, UnicodeError):
        raise InputError(f"{option}{encoding}: is not an encoding of text files") from None
    decoder = io.IncrementalNewlineDecoder(codec, translate=True)
    offset = 0  # bytes read
    line = 1
    chunk = b""
    try:
        for chunk in chain(chunks(file), [b""]):
            at_start = offset == 0
            offset += len(chunk)
            text = decoder.decode(chunk, final=not chunk)
            if at_start and chunk:
                check_beginning(chunk, name, encoding, option, is_decoded=True)
            line += text.count("\n")
            text = text.replace("\ufeff", "")
            tick(chunk, text)
            yield text
    except UnicodeDecodeError as error:
        if offset == len(chunk):  # at the start
            check_beginning(chunk, name, encoding, option, is_decoded=False)
        # `error.object` may begin with the end of the previous chunk. It ends where reading stopped.
        byte = offset - len(error.object) + error.start
        line += error.object[: error.start].decode(encoding, "ignore").count("\n")
        what = (
            f"{printable(name)}: byte {byte:,} (line {line:,}) is not {encoding} ({error.reason})"
        )
        raise WrongEncoding(what, advice=_about_damage(chunk, encoding, option)) from None
    except UnicodeError as error:  # UTF-16 without a byte order mark
        raise WrongEncoding(
            f"{printable(name)}: is not {encoding} ({error})",
            advice=f"name its encoding: {option}NAME",
        ) from None


def is_binary(source: SourceFile, encoding: str | None) -> bool:
    """Return whether a file begins like one that is not text; any bytes decode as latin-1."""
    try:
        with source.open() as file:
            next(decode(file, source.label, encoding or "latin-1"))
    except NotText:
        return True
    except InputError:  # raised where the text is read
        pass
    return False


def lines(texts: Iterable[str]) -> Iterator[str]:
    """Yield the lines of a file, given in parts, without their newlines."""
    pieces: list[str] = []  # of the line that is not complete
    for text in texts:
        first, *others = text.split("\n")
        pieces.append(first)
        if others:
            *complete, rest = others
            yield "".join(pieces)
            yield from complete
            pieces = [rest]
    last = "".join(pieces)
    if last:
        yield last


def _about_damage(chunk: bytes, encoding: str, option: str) -> str:
    advice = f"name its encoding with {option}NAME, such as cp1252 or utf-16"
    text = chunk.decode(encoding, "replace")
    places = len(re.findall("\N{REPLACEMENT CHARACTER}+", text))
    letters = sum(not character.isascii() for character in text) - places
    if places <= 1 or letters > 10 * places:
        return f"one damaged place in text that is otherwise {encoding}, or else {advice}"
    return advice


def check_beginning(
    chunk: bytes, name: str, encoding: str, option: str, *, is_decoded: bool
) -> None:
    """Raise an `InputError` if a file that begins with `chunk` is not text in this encoding."""
    label = printable(name)
    if codecs.lookup(encoding).name.startswith(("utf-16", "utf-32")):
        return  # NUL bytes are normal
    for mark, true in MARKS.items():
        if chunk.startswith(mark):
            raise WrongEncoding(f"{label}: is not {encoding}", advice=f"use {option}{true}")
    half = len(chunk) // 2
    for first, true in ((0, "utf-16-be"), (1, "utf-16-le")):
        zeros = chunk[first::2].count(0)
        if half and zeros > 0.4 * half and chunk.count(0) - zeros < 0.1 * half:
            what = f"{label}: is not {encoding}: every second byte is NUL"
            raise WrongEncoding(what, advice=f"if it is text: {option}{true}")
    controls = sum(map(chunk.decode("latin-1").count, CONTROLS))
    is_binary = controls > len(chunk) * (0.05 if is_decoded else 0.01)
    is_tar = chunk[257:262] == b"ustar"
    if is_binary or is_tar or chunk.startswith(FORMATTED):
        kind = ".tar" if is_tar else suffix(name)
        raise NotText(f"{label}: is not plain text", advice=WAYS.get(kind, SAVE))


MARKS = {
    codecs.BOM_UTF32_LE: "utf-32",
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}
