"""The log: lines on the console and in a run's train.log. Imports nothing heavy."""

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from base import processes
from base.errors import for_output
from base.progress import discard, hidden

log = logging.getLogger("chargpt")
log.setLevel(logging.INFO)
log.propagate = False


class _Console(logging.Handler):
    """Write rank 0's information to standard output, and every process's errors to standard error."""

    def emit(self, record: logging.LogRecord) -> None:
        error = record.levelno >= logging.ERROR
        if not error and processes.rank():
            return
        out = sys.stderr if error else sys.stdout
        try:
            with hidden():
                print(for_output(record.getMessage(), out), file=out, flush=True)
        except BrokenPipeError:  # the reader, such as `head`, has left; the run continues
            discard(out)


class _LogFile(logging.Handler):
    """Append lines to a file once its directory exists; an error of the disk ends the run."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path

    def emit(self, record: logging.LogRecord) -> None:
        if self.path.parent.is_dir():
            with open(self.path, "a", encoding="utf-8") as file:
                file.write(record.getMessage() + "\n")


def to_console() -> None:
    """Send the log to the console only."""
    log.handlers[:] = [_Console()]


@contextmanager
def to_file(path: Path) -> Iterator[None]:
    """Have rank 0 append the log to a file, too."""
    handler = _LogFile(path) if processes.rank() == 0 else logging.NullHandler()
    log.addHandler(handler)
    try:
        yield
    finally:
        log.removeHandler(handler)
