"""Exceptions for expected errors, and functions that format their one-line messages."""

import difflib
import errno
import os
import re
from collections.abc import Iterable
from typing import TextIO

HIDDEN = "***"  # replaces a password or a token
SECRET = "token|sig|credential|password|passwd|secret|key"  # words in the names of URL query parameters that are secret
LONGEST = 80  # maximum characters of an argument in a message


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether `error` says that a device or the machine has run out of memory."""
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":  # torch raises the second on a GPU
        return True
    # Messages of the CPU allocator in torch, on Windows and elsewhere, and of the dynamic loader.
    return re.search("not enough memory|can't allocate memory|failed to map segment", str(error)) is not None


class InputError(ValueError):
    """Input that cannot be used. The message says why in one line."""

    status = 2  # exit status of a command that ends with this error

    def __init__(self, reason: str, key: str = "", advice: str = "") -> None:
        super().__init__(f"{f'{key}: ' if key else ''}{reason}{f'; {advice}' if advice else ''}")
        self.reason = reason


class RunFailed(Exception):
    """A run that cannot continue. The message says why in one line."""

    status = 1


def describe_os_error(error: OSError, path: object = None) -> str:
    """Return one line about an `OSError`: the file that it concerns, what is wrong, and what helps."""
    name = os.fsdecode(error.filename or str(path or "")).removesuffix("/.lock")
    helps = {
        **dict.fromkeys((errno.EACCES, errno.EPERM, errno.EROFS), "work in a folder that you may write to"),
        **dict.fromkeys((errno.ENOSPC, errno.EDQUOT, errno.EFBIG), "free some space or work on another disk"),
    }
    if error.errno not in helps or not error.strerror:
        return one_line(f"{name}: {error.strerror}" if name and error.strerror else error.strerror or error)
    folder = os.path.dirname(name) or "."
    closed = any(os.path.exists(one) and not os.access(one, mode) for one, mode in ((folder, os.X_OK), (name, os.R_OK)))
    if closed and error.errno in (errno.EACCES, errno.EPERM):
        return one_line(f"{name}: cannot be read: {error.strerror}; change its permissions")
    return one_line(f"{f'{name}:' if name else 'a file'} could not be written: {error.strerror}; {helps[error.errno]}")


def most_similar(word: str, names: Iterable[str], ending: str = "") -> str | None:
    """Return the element of `names` that is most similar to `word`, ignoring case, or None if no name is similar."""
    word, ending = word.casefold(), ending.casefold()
    folded = {name.casefold().removesuffix(ending): name for name in names}
    cutoff = 0.7 if len(word) < 8 else 0.6  # short words, such as tpu and gpu, are similar by chance
    close = difflib.get_close_matches(word.removesuffix(ending), folded, n=1, cutoff=cutoff)
    return folded[close[0]] if close else None


def nearest(word: str, names: Iterable[str], ending: str = "") -> str:
    """Return `; nearest: NAME`, where NAME is the result of `most_similar`, or "" if no name is similar."""
    name = most_similar(word, names, ending)
    return f"; nearest: {name}" if name else ""


def redacted(text: str) -> str:
    """Return `text` with user, password and tokens in its URLs replaced by `***`."""
    text = re.sub(r"(://)[^/\s]*@", rf"\1{HIDDEN}@", text)
    return re.sub(rf"([?&][^=&\s]*(?:{SECRET})[^=&\s]*=)[^&#,\]\s]+", rf"\1{HIDDEN}", text, flags=re.IGNORECASE)


def public(text: str) -> str:
    """Return `text` without passwords in URLs (see `redacted`) and with U+FFFD for each surrogate."""
    return re.sub("[\ud800-\udfff]", "\N{REPLACEMENT CHARACTER}", redacted(text))


def printable(text: object) -> str:
    """Return `text` without passwords in URLs (see `redacted`) and with U+FFFD for each unprintable character."""
    return "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in redacted(str(text)))


def visible(text: str) -> str:
    """Return `text` with a visible symbol for each control character except tabs and line breaks."""
    pictures = {code: chr(0x2400 + code) for code in range(32) if code not in (9, 10)} | {127: "\u2421"}
    pictures |= {code: f"\\x{code:x}" for code in range(128, 160)}
    turns = (*range(0x202A, 0x202F), *range(0x2066, 0x206A))  # bidirectional controls
    return text.translate(pictures | {code: f"\\u{code:x}" for code in turns})


def for_output(text: str, out: TextIO) -> str:
    """Return `text`, with symbols for control characters (see `visible`) if the stream `out` is a terminal."""
    return visible(text) if out.isatty() else text


def shorten(message: str, arguments: Iterable[str]) -> str:
    """Return `message` with the values of command-line arguments cut off after `LONGEST` characters."""
    for argument in arguments:
        value = one_line(argument.partition("=")[2] or argument)
        if len(value) > LONGEST:
            message = message.replace(value, f"{value[:LONGEST]}…", 1)
    return message


def one_line(text: object) -> str:
    """Return `text`, a message or an exception, on one line and without unprintable characters (see `printable`)."""
    return printable(" ".join(str(getattr(text, "strerror", None) or text).split()))
