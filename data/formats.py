"""Unpack compressed and zip files; recognise office documents, binary files and UTF-16 without a BOM."""

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
# Modules with the same `open`. fsspec reads these formats, too, but its fallback for .zst ignores a truncated file.
COMPRESSED = {".gz": "gzip", ".bz2": "bz2", ".xz": "lzma", ".zst": ZSTD}
SAVE = "save it as plain text (.txt) in the program that opens it"
CONVERT = "convert it: ebook-convert {} book.txt"
OFFICE = {  # suffix: what the file is, and how to get text from it
    ".pdf": ("a PDF", "convert it: pdftotext {}"),
    ".doc": ("a Word document", SAVE),
    ".docx": ("a Word document", SAVE),
    ".odt": ("an OpenDocument text", SAVE),
    ".rtf": ("a rich text document", SAVE),
    ".epub": ("an e-book", CONVERT),
    ".mobi": ("an e-book", CONVERT),
}
RTF = b"{\\rtf"  # RTF is ASCII, so `is_binary` does not recognise it


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


def members(path: Path, label: str) -> list[str]:
    """Return the sorted names of the files in the zip file `path`, without hidden files unless all files are hidden."""
    files = {info.filename: info for info in archive(path).infolist() if not info.is_dir()}
    for name, info in files.items():
        if info.flag_bits & 1:
            raise InputError(f"{label}: {printable(name)} needs a password; unpack the zip file and name its folder")
    if not files:
        raise InputError(f"{label}: the zip file holds no files")
    return sorted(name for name in files if "/." not in f"/{name}") or sorted(files)


def office(name: str, first: bytes) -> tuple[str, str] | None:
    """Return (what it is, how to get text from it) for an office document or an e-book, else None."""
    kind = ".rtf" if first.startswith(RTF) else suffix(name)
    if kind not in OFFICE or not (kind == ".rtf" or is_binary(first)):
        return None
    what, way = OFFICE[kind]
    return what, way.format(shlex.quote(PurePath(name).name if "://" in name else name))


def utf16_order(chunk: bytes) -> str:
    """Return the likely byte order, "le" or "be", if bytes look like UTF-16 without a byte order mark, otherwise ""."""
    first, second = chunk[::2].count(0), chunk[1::2].count(0)
    if bool(first) == bool(second) or first + second < len(chunk) / 100:
        return ""
    return "le" if second else "be"


def is_binary(chunk: bytes) -> bool:
    """Return whether `chunk` contains NUL or over 1 % control characters, which UTF-8 and 8-bit encodings do not."""
    controls = bytes(set(range(32)) - set(b"\t\n\f\r\x1a\x1b"))
    return b"\0" in chunk or len(chunk) - len(chunk.translate(None, controls)) > len(chunk) / 100


def damage(file: IO[bytes], wrong: int) -> tuple[int, int, int] | None:
    """Count the damaged bytes of a UTF-8 file, to distinguish it from a file in another encoding."""
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
    """Return a log line which says that only some files of a directory are read, and how to read all of them."""
    return f"{texts:,} of {files:,} files (*.txt); to read all: {shlex.quote(f'data.path={everything}')}"
