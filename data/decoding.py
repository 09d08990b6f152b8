"""Decode files in chunks, and refuse what is not text in the given encoding."""

import codecs
import io
from collections.abc import Callable, Iterator
from typing import IO, NamedTuple, NoReturn

from base.errors import InputError, printable
from data.formats import damage, is_binary, office, utf16_order

CHUNK = 1 << 16  # bytes read at a time: a chunk and its tokens fit into the CPU's cache
CONTROLS = sorted(set(map(chr, range(1, 32))) - set("\t\n\f\r\x1a\x1b"))  # rare in text
Tick = Callable[[int], object]  # called after each read with the number of bytes


class NotText(InputError):
    """The error for a file that is not text in any encoding, such as a picture or a PDF."""


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
                if document := office(name, first):
                    raise NotText(f"{printable(name)}: is {document[0]}, not text; {document[1]}")
            offset += len(chunk)
            text = decoder.decode(chunk)
            tick(len(chunk))
            _check_characters(text, at_start)
            if text:
                yield text.removeprefix("\ufeff") if at_start else text
                at_start = False
        yield decoder.decode(b"", final=True)
    except UnicodeDecodeError as error:
        # `error.object` may begin with bytes of the previous chunk. It ends at `offset`, where reading stopped.
        wrong = offset - len(error.object) + error.start
        what = f"byte {wrong:,} is not {encoding} ({error.reason})"
        cut = 0 if chunk else offset - wrong  # bytes of the character that the end of the file cuts off
        _refuse(file, name, encoding, option, _Failure(what, wrong, cut, first, chunk))
    except UnicodeError as error:
        _refuse(file, name, encoding, option, _Failure(f"is not {encoding} ({error})", 0, 0, first, chunk))


class _Failure(NamedTuple):
    what: str  # that the file is not in its encoding
    wrong: int  # position of the first wrong byte
    cut: int  # bytes of the character that the end of the file cuts off
    first: bytes  # the first chunk
    last: bytes  # the chunk that could not be decoded; empty at the end of the file


def _refuse(file: IO[bytes], name: str, encoding: str, option: str, failure: _Failure) -> NoReturn:
    """Raise the `InputError` or `NotText` that `decode` raises for a file that is not in `encoding`."""
    what, wrong, cut, first, chunk = failure
    codec, fix, end = codecs.lookup(encoding).name, "", ""
    if cut:
        fix = "get the whole file if it was cut, or "
        last = "byte" if cut == 1 else f"{cut} bytes"
        end = f"the file ends in the middle of a character; get the whole file, or remove its last {last}"
    if first[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
        likely = "utf-16, which it looks like"
    elif order := utf16_order(first):
        likely = f"utf-16-{order}, which it looks like"
    elif is_binary(first) or is_binary(chunk):
        way = "data.tokenizer=byte reads any file" if option.startswith("data.") else ""
        raise NotText(f"{printable(name)}: is a binary file, not text: {what}", advice=way)
    elif codec == "utf-8":
        likely = "cp1252 or latin-1"
        if damaged := damage(file, wrong):
            line, bad, letters = damaged
            name = f"{name}, line {line:,}"
            _refuse_damaged_utf8(f"{printable(name)}: {what}", bad, letters, end)
            fix = fix or "correct that byte, the only one that is not ASCII, or " * (bad == 1)
    else:
        likely = "utf-8"
    if likely.startswith("utf-16") and codec.startswith("utf-16"):
        raise InputError(f"{printable(name)}: {what}: {end or 'the file is damaged there'}")
    way = f"{fix}name its encoding with {option.rstrip()}, such as {likely}"
    raise InputError(f"{printable(name)}: {what}", advice=way)


def _check_characters(text: str, at_start: bool) -> None:
    """Raise a `UnicodeError` if the characters of a chunk show that the file is not text in the given encoding."""
    if text.count("\0") > len(text) / 4:  # UTF-16 of ASCII is valid UTF-8, with a NUL for each letter
        raise UnicodeError("over a quarter of its characters are NUL")
    if at_start and sum(map(text.count, CONTROLS)) > len(text) / 20:  # such as a picture read as latin-1
        raise UnicodeError("over 5 % of its characters are control characters")


def _refuse_damaged_utf8(what: str, bad: int, letters: int, end: str) -> None:
    """Refuse a file that is UTF-8 except for a few damaged bytes: another encoding would not help."""
    if end and letters:
        raise InputError(f"{what}: {end}")
    if letters >= 10 * bad:
        number = "one damaged byte" if bad == 1 else f"the first of {bad:,} damaged bytes"
        raise InputError(f"{what}: {number} in a text that is otherwise UTF-8; correct it")
