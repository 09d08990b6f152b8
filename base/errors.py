"""Errors caused by input, and their messages on one line."""

import difflib
import errno
import os
import re
from collections.abc import Iterable
from typing import TextIO

HIDDEN = "***"  # stands for a password or a token
SECRET = "token|sig|credential|password|passwd|secret|key"  # in the name of a query's field
LONGEST = 80  # characters of an argument in a message


def is_out_of_memory(error: BaseException) -> bool:
    """Whether a device or the machine has run out of memory."""
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":  # the second is torch's, on a GPU
        return True
    # Messages from torch's CPU allocator, on Windows and elsewhere, and from the loader of its libraries.
    return re.search("not enough memory|can't allocate memory|failed to map segment", str(error)) is not None


class InputError(ValueError):
    """Input that cannot be used; the message says why in one line.

    The names of settings are in `key`, such as `data.path=a.txt`, and in `advice`: a command with other names for them
    uses `reason` alone.
    """

    status = 2  # exit status of a command that ends with this error

    def __init__(self, reason: str, key: str = "", advice: str = "") -> None:
        super().__init__(f"{f'{key}: ' if key else ''}{reason}{f'; {advice}' if advice else ''}")
        self.reason = reason


class RunFailed(Exception):
    """A run that cannot continue; the message says why in one line."""

    status = 1


def describe_os_error(error: OSError, path: object = None) -> str:
    """Return one line: the file of an error, or else `path`; what is wrong; what helps.

    For a lock, the line names the folder that was being locked.
    """
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
        return one_line(f"{name}: cannot be read: {error.strerror}; make it readable for you")
    return one_line(f"{f'{name}:' if name else 'a file'} could not be written: {error.strerror}; {helps[error.errno]}")


def nearest(word: str, names: Iterable[str]) -> str:
    """Return `; nearest: NAME` for the most similar of `names`, whatever the case; nothing when none is similar."""
    folded = {name.casefold(): name for name in names}
    close = difflib.get_close_matches(word.casefold(), folded, n=1, cutoff=0.5)
    return f"; nearest: {folded[close[0]]}" if close else ""


def redacted(text: str) -> str:
    """Replace user, password and tokens in addresses, such as `https://USER:PASSWORD@a.org/b.txt?token=…`, by `***`."""
    text = re.sub(r"(://)[^/\s]*@", rf"\1{HIDDEN}@", text)
    return re.sub(rf"([?&][^=&\s]*(?:{SECRET})[^=&\s]*=)[^&#,\]\s]+", rf"\1{HIDDEN}", text, flags=re.IGNORECASE)


def public(text: str) -> str:
    """Return a `redacted` text that can be written as UTF-8: bytes of a file name that are not become U+FFFD."""
    return re.sub("[\ud800-\udfff]", "\N{REPLACEMENT CHARACTER}", redacted(text))


def printable(text: object) -> str:
    """Replace line breaks and characters that cannot be printed in a `redacted` text."""
    return "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in redacted(str(text)))


def visible(text: str) -> str:
    """Replace control characters, which could move a cursor, and changes of direction by visible symbols."""
    pictures = {code: chr(0x2400 + code) for code in range(32) if code not in (9, 10)} | {127: "\u2421"}
    pictures |= {code: f"\\x{code:x}" for code in range(128, 160)}
    turns = (*range(0x202A, 0x202F), *range(0x2066, 0x206A))  # of the direction of the text
    return text.translate(pictures | {code: f"\\u{code:x}" for code in turns})


def for_output(text: str, out: TextIO) -> str:
    """Make text `visible` if `out` is a terminal."""
    return visible(text) if out.isatty() else text


def shorten(message: str, arguments: Iterable[str]) -> str:
    """Cut the value of each long argument where a message first has it; a command at its end stays whole."""
    for argument in arguments:
        value = one_line(argument.partition("=")[2] or argument)
        if len(value) > LONGEST:
            message = message.replace(value, f"{value[:LONGEST]}…", 1)
    return message


def one_line(text: object) -> str:
    """Put a message on one line; of an `OSError`, only what the system says."""
    return printable(" ".join(str(getattr(text, "strerror", None) or text).split()))
