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

from base.errors import InputError, one_line, printable

ZSTD = "compression.zstd" if sys.version_info >= (3, 14) else "backports.zstd"
# Modules with the same `open`. fsspec reads these formats, too, but its fallback for .zst ignores
# a truncated file.
COMPRESSED = {".gz": "gzip", ".bz2": "bz2", ".xz": "lzma", ".zst": ZSTD}
# How files begin that are not plain text though most of their bytes may be ASCII.
FORMATTED = (b"{\\rtf", b"%PDF-")
LFS = b"version https://git-lfs.github.com/spec/"
# What else to do with a file that is not text, by suffix.
WAYS = {
    ".parquet": "data.field=NAME reads one of its columns",
    ".tar": "unpack it and name its folder",
    ".tgz": "unpack it and name its folder",
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
    def label(self) -> str:
        """The file's path or its address without a query, with its path inside a zip file appended if it is in one."""
        address, *_ = re.split("[?#]", self.address)
        place = address or str(self.path)
        return printable(f"{place}/{self.member}" if self.member else place)

    @contextmanager
    def open(self) -> Iterator[IO[bytes]]:
        """Context manager that yields a file of the decompressed bytes. Nothing is extracted to disk."""
        with readable(self.label), ExitStack() as stack:
            refuse_pointer(self.path, self.label)
            if self.member:
                stored = stack.enter_context(archive(self.path).open(self.member))
            else:
                stored = stack.enter_context(open(self.path, "rb"))
            module = COMPRESSED.get(PurePath(self.label.lower()).suffix)
            if module is None:
                yield stored
                return
            try:
                library: Any = importlib.import_module(module)
            except ImportError:
                raise InputError(f"{self.label}: needs {module}: pip install {module}") from None
            # lzma and zstd have their own kind of error; gzip and bz2 raise an OSError. `except ()`
            # catches nothing.
            own_error: Any = getattr(library, "LZMAError", None) or getattr(
                library, "ZstdError", ()
            )
            try:
                yield stack.enter_context(library.open(stored))
            except own_error as error:
                raise EOFError(one_line(error)) from None  # which `readable` reports


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


def archive(path: Path) -> zipfile.ZipFile:
    """Return the zip file `path`, opened for reading and cached, so that the list of files in it is read only once."""
    stat = path.stat()
    return _archive(path, stat.st_size, stat.st_mtime_ns)


@lru_cache(maxsize=1)
def _archive(path: Path, *_: int) -> zipfile.ZipFile:
    return zipfile.ZipFile(path)


def suffix(name: str) -> str:
    """Return the lower-case suffix of a file name, ignoring a compression suffix: .txt for both a.txt and a.txt.gz."""
    path = PurePath(name.lower())
    if path.suffix in COMPRESSED:
        path = path.with_suffix("")
    return path.suffix


def no_tick(*_: object) -> None:
    pass


def chunks(file: IO[bytes]) -> Iterator[bytes]:
    return iter(partial(file.read, CHUNK), b"")


def decode(
    file: IO[bytes], label: str, encoding: str | None, tick: Tick = no_tick
) -> Iterator[str]:
    """Yield the text of the file `label` in chunks, without byte order marks and with LF line ends.

    `encoding=None` reads bytes: each becomes the character whose code point is its value, and
    nothing is changed.
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
        raise InputError(f"data.encoding={encoding}: is not an encoding of text files") from None
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
                check_beginning(chunk, label, encoding, is_decoded=True)
            line += text.count("\n")
            text = text.replace("\ufeff", "")
            tick(chunk, text)
            yield text
    except UnicodeDecodeError as error:
        if offset == len(chunk):  # at the start
            check_beginning(chunk, label, encoding, is_decoded=False)
        # `error.object` may begin with the end of the previous chunk. It ends where reading stopped.
        byte = offset - len(error.object) + error.start
        line += error.object[: error.start].decode(encoding, "ignore").count("\n")
        advice = "name its encoding with data.encoding=NAME, such as cp1252 or utf-16"
        decoded = chunk.decode(encoding, "replace")
        places = len(re.findall("\N{REPLACEMENT CHARACTER}+", decoded))
        letters = sum(not character.isascii() for character in decoded) - places
        if places <= 1 or letters > 10 * places:
            advice = f"one damaged place in text that is otherwise {encoding}, or else {advice}"
        reason = f"{label}: byte {byte:,} (line {line:,}) is not {encoding} ({error.reason})"
        raise WrongEncoding(reason, advice=advice) from None
    except UnicodeError as error:  # UTF-16 without a byte order mark
        advice = "name its encoding: data.encoding=NAME"
        raise WrongEncoding(f"{label}: is not {encoding} ({error})", advice=advice) from None


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


def check_beginning(chunk: bytes, label: str, encoding: str, *, is_decoded: bool) -> None:
    """Raise an `InputError` if a file that begins with `chunk` is not text in this encoding."""
    if codecs.lookup(encoding).name.startswith(("utf-16", "utf-32")):
        return  # NUL bytes are normal
    for mark, true in MARKS.items():
        if chunk.startswith(mark):
            raise WrongEncoding(f"{label}: is not {encoding}", advice=f"use data.encoding={true}")
    controls = sum(map(chunk.decode("latin-1").count, CONTROLS))
    is_binary = controls > len(chunk) * (0.05 if is_decoded else 0.01)
    is_tar = chunk[257:262] == b"ustar"
    if is_binary or is_tar or chunk.startswith(FORMATTED):
        kind = ".tar" if is_tar else suffix(label)
        way = WAYS.get(kind, "save it as plain text (.txt) in the program that opens it")
        raise NotText(f"{label}: is not plain text", advice=way)


MARKS = {
    codecs.BOM_UTF32_LE: "utf-32",
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}
