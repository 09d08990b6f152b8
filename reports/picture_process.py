"""Render plots in another process, so that training does not wait for matplotlib.

`python -m reports.picture_process PARENT NICENESS` reads pickled pairs from standard input: the name of a function in
reports/pictures.py, and its arguments. For each pair it writes to standard output a pickled PNG, or an error as a str.
"""

import os
import pickle
import queue
import signal
import subprocess
import sys
import tempfile
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

from base import processes
from base.errors import one_line

NICENESS = 19  # lowest priority: training comes first


def serve(parent: int, niceness: int) -> None:
    """Render until standard input ends. On Linux, also end when the process `parent` ends, even if it is killed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # training handles Ctrl-C and ends this process
    processes.end_with(parent)
    if hasattr(os, "nice"):
        os.nice(niceness)
    import matplotlib

    from reports import pictures

    matplotlib.rcdefaults()  # ignore the user's matplotlibrc
    while True:
        try:
            name, arguments = pickle.load(sys.stdin.buffer)
        except EOFError:
            return
        try:
            answer: bytes | str = getattr(pictures, name)(**arguments)
        except Exception as error:
            answer = f"{type(error).__name__}: {one_line(error)}"
        pickle.dump(answer, sys.stdout.buffer)
        sys.stdout.buffer.flush()


class Renderer:
    """The rendering process: put plots of `picture_data.plots` into `wanted`, get (plot, PNG or error) from `drawn`."""

    def __init__(self) -> None:
        self.complaints = tempfile.TemporaryFile()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "reports.picture_process", str(os.getpid()), str(NICENESS)],
            cwd=Path(__file__).parents[1],
            # Use one core. Set the backend: a notebook's MPLBACKEND may name one that is not installed here.
            env=os.environ | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MPLBACKEND": "agg"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.complaints,
            process_group=0,  # keep Ctrl-C in the terminal from this process
        )
        self.wanted: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        self.drawn: queue.SimpleQueue[tuple[dict[str, Any], bytes | str]] = queue.SimpleQueue()
        # A thread reads and writes the pipes, because both may block.
        self.thread = threading.Thread(target=self._ask, daemon=True)
        self.thread.start()

    def _ask(self) -> None:
        process = self.process
        assert process.stdin and process.stdout
        while (picture := self.wanted.get()) is not None:
            try:
                given = picture["arguments"].items()
                arrays = {key: value.numpy() if hasattr(value, "numpy") else value for key, value in given}
                pickle.dump((picture["name"], arrays), process.stdin)
                process.stdin.flush()
                answer = pickle.load(process.stdout)
            except (OSError, EOFError, pickle.UnpicklingError):
                self.complaints.seek(0)
                last_line = self.complaints.read().decode(errors="replace").strip().rpartition("\n")[2]
                reason = f": {last_line}" if last_line else ""
                self.drawn.put((picture, f"the process that draws has ended{reason}"))
                return
            self.drawn.put((picture, answer))

    def end(self) -> None:
        """End the process; the plots that are not rendered yet are lost."""
        self.wanted.put(None)
        self.process.kill()
        self.thread.join()  # does not block: the killed process has closed the pipes
        with suppress(BrokenPipeError), self.process, self.complaints:
            pass  # leaving the block closes the files and waits for the process


if __name__ == "__main__":
    serve(int(sys.argv[1]), int(sys.argv[2]))
