"""The log: lines on the console and in a run's train.log, with symbols for control characters. Does not load torch."""

import logging
import sys
from pathlib import Path

from base import ranks
from base.errors import public, visible
from base.progress import discard, hidden

log = logging.getLogger("chargpt")
log.setLevel(logging.INFO)
log.propagate = False


def _line(record: logging.LogRecord) -> str:
    return visible(public(record.getMessage()))


class _Console(logging.Handler):
    """Prints rank 0's messages to standard output, and the errors of every rank to standard error."""

    def emit(self, record: logging.LogRecord) -> None:
        error = record.levelno >= logging.ERROR
        if not error and ranks.rank():
            return
        out = sys.stderr if error else sys.stdout
        try:
            with hidden():
                print(_line(record), file=out, flush=True)
        except BrokenPipeError:  # the reader, such as `head`, has left; the run continues
            discard(out)


class _LogFile(logging.Handler):
    """Appends each message to the file `path`, while its directory exists."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path

    def emit(self, record: logging.LogRecord) -> None:
        if not self.path.parent.is_dir():
            return
        try:
            with open(self.path, "a", encoding="utf-8") as file:
                file.write(f"{_line(record)}\n")
        except OSError:
            # A line that cannot be written ends the run, which then logs an error: that one may be
            # lost.
            if record.levelno < logging.ERROR:
                raise


def to_console() -> None:
    log.handlers[:] = [_Console()]


def to_file(path: Path) -> None:
    """Print the log, and append it to the file `path` and to no other file."""
    log.handlers[:] = [_Console(), _LogFile(path)]
