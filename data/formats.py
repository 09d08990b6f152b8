"""Tell by name and first bytes what a file is: compressed, a zip, an office document or a binary file."""

import codecs
import importlib
import re
import shlex
import sys
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path, PurePath
from typing import IO, Any

from base.errors import InputError, one_line, printable

ZSTD = "compression.zstd" if sys.version_info >= (3, 14) else "backports.zstd"
# Modules with the same `open`. fsspec has these formats, too, but its fallback for .zst ends a cut file in silence.
COMPRESSED = {".gz": "gzip", ".bz2": "bz2", ".xz": "lzma", ".zst": ZSTD}
SAVE = "save it as plain text (.txt) in the program that opens it"
CONVERT = "convert it: ebook-convert {} book.txt"
OFFICE = {  # suffix: what it is, and how to get text from it
    ".pdf": ("a PDF", "convert it: pdftotext {}"),
    ".doc": ("a Word document", SAVE),
    ".docx": ("a Word document", SAVE),
    ".odt": ("an OpenDocument text", SAVE),
    ".rtf": ("a rich text document", SAVE),
    ".epub": ("an e-book", CONVERT),
    ".mobi": ("an e-book", CONVERT),
}
RTF = b"{\\rtf"  # such a document is ASCII


def suffix(name: str) -> str:
    """Return the lower-case suffix of a file without that of its compression: .txt for a.txt.gz."""
    path = PurePath(name.lower())
    return path.with_suffix("").suffix if path.suffix in COMPRESSED else path.suffix


@contextmanager
def readable(label: str) -> Iterator[None]:
    """Turn the errors of files that cannot be read or unpacked into an `InputError`."""
    try:
        yield
    except (OSError, EOFError, NotImplementedError, zipfile.BadZipFile, zlib.error) as error:
        if isinstance(error, OSError) and error.strerror:
            raise InputError(f"{label}: cannot be read: {error.strerror}") from None
        what = f"{label}: cannot be unpacked: {one_line(error)}"  # gzip and bz2 raise an OSError, too
        raise InputError(f"{what}; it is damaged, or its name is wrong") from None


@contextmanager
def unpacked(file: IO[bytes], name: str) -> Iterator[IO[bytes]]:
    """Decompress a file if its `name` has the suffix of a compression."""
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
    """Open a zip file. Its list of files is read once, for all of them."""
    stat = path.stat()
    return _archive(path, stat.st_size, stat.st_mtime_ns)


@lru_cache(maxsize=1)
def _archive(path: Path, *_: int) -> zipfile.ZipFile:
    return zipfile.ZipFile(path)


def members(path: Path, label: str) -> list[str]:
    """Return the names of the files in a zip file, without hidden ones unless there are no others."""
    files = {info.filename: info for info in archive(path).infolist() if not info.is_dir()}
    for name, info in files.items():
        if info.flag_bits & 1:
            raise InputError(f"{label}: {printable(name)} needs a password; unpack the zip file and name its folder")
    if not files:
        raise InputError(f"{label}: the zip file holds no files")
    return sorted(name for name in files if "/." not in f"/{name}") or sorted(files)


def office(name: str, first: bytes) -> tuple[str, str] | None:
    """Return what an office document or e-book is, and how to get text from it; None for other files."""
    kind = ".rtf" if first.startswith(RTF) else suffix(name)
    if kind not in OFFICE or not (kind == ".rtf" or is_binary(first)):
        return None
    what, way = OFFICE[kind]
    return what, way.format(shlex.quote(PurePath(name).name if "://" in name else name))


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


def damage(file: IO[bytes], wrong: int) -> tuple[int, int, int] | None:
    """Return the line of byte `wrong`, the number of bytes that are not UTF-8, and of characters beyond ASCII that are.

    Return None if the file cannot be read again.
    """
    if not file.seekable():
        return None
    file.seek(0)
    decoder = codecs.getincrementaldecoder("utf-8-sig")("surrogateescape")
    damaged = letters = offset = line = 0
    while chunk := file.read(1 << 16):
        line += chunk.count(b"\n", 0, max(0, wrong - offset))
        offset += len(chunk)
        found = re.findall("[^\0-\x7f]", decoder.decode(chunk))
        bad = sum("\udc80" <= letter <= "\udcff" for letter in found)
        damaged, letters = damaged + bad, letters + len(found) - bad
    damaged += len(decoder.decode(b"", final=True))
    return line + 1, damaged, letters


def part_of(texts: int, files: int, everything: str) -> str:
    """Return a line about a directory of which only `*.txt` is read; `everything` is the pattern for all its files."""
    return f"{texts:,} of {files:,} files (*.txt); all: {shlex.quote(f'data.path={everything}')}"
