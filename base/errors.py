"""Exceptions for expected errors, and functions that format their one-line messages."""

import difflib
import os
import re
from collections.abc import Iterable
from itertools import takewhile
from typing import TextIO
from unicodedata import category

HIDDEN = "***"  # replaces a password or a token
# What nanoGPT and transformers call options of sample.py.
ELSEWHERE = {
    "start": "--prompt",
    "max_new_tokens": "--num-chars",
    "tokens": "--num-chars",
    "temp": "--temperature",
}
# In a URL. A password may contain anything up to the last @, even what a URL must quote, such as / and spaces.
USER = r"[^/?#,\[\]\s:]*"
PASSWORD = r"[^?#,\[\]\r\n]*"
# words in the names of URL query parameters that are secret
SECRET = "token|sig|credential|password|passwd|secret|key"
JOINERS = "\N{ZERO WIDTH NON-JOINER}\N{ZERO WIDTH JOINER}"
# An absolute path, an address, or an argument with either; neither 90/5/5 nor km/h is a place.
PLACE = re.compile(r"""(^|[\s'"(\[,=])(/\S|~/|\\\\|[a-z]:[/\\])|://|data\.path=""", re.IGNORECASE)


def is_out_of_memory(error: BaseException) -> bool:
    # torch raises the second on a GPU
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    # Messages of PyTorch's allocators for CPUs, on Windows and elsewhere, and for CUDA and MPS; of
    # cuBLAS; and of the dynamic loader.
    words = "out of memory|not enough memory|can't allocate memory|STATUS_ALLOC_FAILED|failed to map segment"
    return re.search(words, str(error)) is not None


class InputError(ValueError):
    """Input that cannot be used. The message says why in one line: `key: reason; advice`.

    `reason` names no settings, so a command whose options have other names can report it alone.
    """

    status = 2  # exit status of a command that ends with this error

    def __init__(self, reason: str, key: str = "", advice: str = "") -> None:
        prefix = f"{key}: " if key else ""
        suffix = f"; {advice}" if advice else ""
        super().__init__(prefix + reason + suffix)
        self.reason = reason


class RunFailed(Exception):
    """A run that cannot continue. The message says why in one line."""

    status = 1


def describe_os_error(error: OSError, path: object = None) -> str:
    """Return one line: the file (`path` if the error names none; of a lock, its folder), what is wrong."""
    name = os.fsdecode(error.filename or str(path or "")).removesuffix("/.lock")
    if name and error.strerror:
        return one_line(f"{name}: {error.strerror}")
    return one_line(error)


def most_similar(word: str, names: Iterable[str], ending: str = "") -> str | None:
    """Return the name most similar to `word`, ignoring case and `ending`, or None if no name is similar.

    A word of `ELSEWHERE` is similar to ours for the same thing.
    """
    word = word.casefold()
    ending = ending.casefold()
    folded = {name.casefold().removesuffix(ending): name for name in names}
    ours = ELSEWHERE.get(word.lstrip("-").replace("-", "_"))
    if ours in folded:
        return ours
    # short words, such as tpu and gpu, are similar by chance
    cutoff = 0.7 if len(word) < 8 else 0.6
    close = difflib.get_close_matches(word.removesuffix(ending), folded, n=1, cutoff=cutoff)
    return folded[close[0]] if close else None


def nearest(word: str, names: Iterable[str], ending: str = "") -> str:
    """Return the end of an error line: `; nearest: NAME` (see `most_similar`), or "" if no name is similar."""
    name = most_similar(word, names, ending)
    return f"; nearest: {name}" if name else ""


def redacted(text: str) -> str:
    """Return `text` with `***` for user, password and tokens in URLs: `https://USER:PASSWORD@a.org/b.txt?token=…`."""
    text = re.sub(rf"(://)(?:{USER}:{PASSWORD}|{USER})@", rf"\1{HIDDEN}@", text)
    return re.sub(
        rf"([?&][^=&\s]*(?:{SECRET})[^=&\s]*=)[^&#,\]\s]+",
        rf"\1{HIDDEN}",
        text,
        flags=re.IGNORECASE,
    )


def public(text: str) -> str:
    """For files in UTF-8: return `text`, `redacted`, with U+FFFD for each surrogate, which UTF-8 cannot encode."""
    return re.sub("[\ud800-\udfff]", "\N{REPLACEMENT CHARACTER}", redacted(text))


def without_folders(name: str) -> str:
    """For what is sent to others: return the file name of a path, an address or a list ("[a/b,c/d]": "b, d")."""
    name = printable(name)
    if name.startswith("[") and name.endswith("]"):
        return ", ".join(map(without_folders, name[1:-1].split(",")))
    if "://" in name:
        name = re.split(r"[?#]", name)[0]
    return re.split(r"[/\\]", name.rstrip("/\\"))[-1]


def without_places(note: str) -> str:
    """For what is sent to others: return a line up to the first of its parts, between "; ", that may name a folder."""
    parts = printable(note).split("; ")
    return "; ".join(takewhile(lambda part: not PLACE.search(part), parts))


def printable(text: object) -> str:
    """For one line or one cell: return `text`, `redacted`, with U+FFFD for line breaks and control characters.

    Spaces of all widths and joiners stay, which `isprintable` refuses: French, Persian and emoji
    need them.
    """
    letters = []
    for letter in redacted(str(text)):
        is_shown = letter.isprintable() or letter in JOINERS or category(letter) == "Zs"
        letters.append(letter if is_shown else "\N{REPLACEMENT CHARACTER}")
    return "".join(letters)


def visible(text: str) -> str:
    """For many lines on a terminal: return `text` with symbols for control characters except tabs and line breaks."""
    # they could move the cursor
    symbols = {code: chr(0x2400 + code) for code in range(32) if code not in (9, 10)}
    symbols[127] = "\u2421"
    # the last two ranges could reorder the text
    for code in (*range(128, 160), *range(0x202A, 0x202F), *range(0x2066, 0x206A)):
        symbols[code] = chr(code).encode("unicode_escape").decode()
    return text.translate(symbols)


def for_output(text: str, out: TextIO) -> str:
    return visible(text) if out.isatty() else text


def one_line(text: object) -> str:
    """Return a message or an exception on one line, `printable`; of an `OSError`, only the system's description."""
    return printable(" ".join(str(getattr(text, "strerror", None) or text).split()))
