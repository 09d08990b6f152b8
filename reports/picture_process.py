"""The process that renders pictures, from both ends.

`python -m reports.picture_process PARENT NICENESS` reads pickled requests, each the name of a function in
reports/pictures.py and its arguments, from standard input until that ends. It answers each with the pickled PNG, or
with a line that says why there is none.
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

NICENESS = 19  # of the process that draws: it takes the time that nobody else wants


def serve(parent: int, niceness: int) -> None:
    """Draw until there is nothing more to read; end with the process that asks, whatever ends that."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for training, which ends this process
    processes.end_with(parent)
    if hasattr(os, "nice"):
        os.nice(niceness)
    import matplotlib

    from reports import pictures

    matplotlib.rcdefaults()  # not as someone's own settings have it
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
    """A process that draws, one picture after the other; it ends with this one."""

    def __init__(self) -> None:
        self.complaints = tempfile.TemporaryFile()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "reports.picture_process", str(os.getpid()), str(NICENESS)],
            cwd=Path(__file__).parents[1],
            # One core is enough; notebooks name a back end of their own, which may not be there.
            env=os.environ | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MPLBACKEND": "agg"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.complaints,
            process_group=0,  # Ctrl-C in a terminal is not for it
        )
        self.wanted: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        self.drawn: queue.SimpleQueue[tuple[dict[str, Any], bytes | str]] = queue.SimpleQueue()
        # Neither end of a pipe may hold up training.
        self.thread = threading.Thread(target=self._ask, daemon=True)
        self.thread.start()

    def _ask(self) -> None:
        process = self.process
        assert process.stdin and process.stdout
        while (picture := self.wanted.get()) is not None:
            try:
                plain = {key: as_array(value) for key, value in picture["arguments"].items()}
                pickle.dump((picture["name"], plain), process.stdin)
                process.stdin.flush()
                answer = pickle.load(process.stdout)
            except (OSError, EOFError, pickle.UnpicklingError):
                self.drawn.put((picture, self._why()))
                return
            self.drawn.put((picture, answer))

    def _why(self) -> str:
        """What the process has said last, where it has ended by itself."""
        self.complaints.seek(0)
        said = self.complaints.read().decode(errors="replace").strip().rpartition("\n")[2]
        return "the process that draws has ended" + (f": {said}" if said else "")

    def end(self) -> None:
        """End the process, drawn or not."""
        self.wanted.put(None)
        self.process.kill()
        self.thread.join()  # it reads the end of what is drawn
        with suppress(BrokenPipeError):
            with self.process, self.complaints:  # waits, and closes the pipes
                pass


def as_array(value: Any) -> Any:
    """A tensor as NumPy has it; anything else as it is."""
    return value.numpy() if hasattr(value, "numpy") else value


if __name__ == "__main__":
    serve(int(sys.argv[1]), int(sys.argv[2]))
