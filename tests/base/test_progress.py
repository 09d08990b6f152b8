import os
import re
import select
import signal
import struct
import subprocess
import sys
import time

import pytest

from base import progress
from tests.conftest import ROOT


class Terminal:
    def __init__(self, *command: str) -> None:
        import fcntl
        import pty
        import termios

        self.ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 100, 0, 0))  # rows and columns
        self.begun = time.monotonic()
        self.process = subprocess.Popen(
            [sys.executable, *command], stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
        )  # fmt: skip
        os.close(theirs)
        self.pieces: list[tuple[float, str]] = []
        self.known = 0  # characters of it that `until` has seen

    @property
    def text(self) -> str:
        return "".join(piece for _, piece in self.pieces)

    def read(self) -> bool:
        """Wait a moment for more; whether there may still be more."""
        assert time.monotonic() - self.begun < 300, self.text[-500:]
        if not select.select([self.ours], [], [], 0.1)[0]:
            return True
        try:
            piece = os.read(self.ours, 1 << 16)
        except OSError:  # Linux' way to say that nobody writes any more
            return False
        self.pieces.append((time.monotonic() - self.begun, piece.decode("utf-8", "replace")))
        return bool(piece)

    def until(self, expected: str) -> None:
        while not (found := re.search(expected, self.text[self.known :])):
            assert self.read(), self.text[-500:]
        self.known += found.end()

    def watch(self) -> str:
        try:
            while self.read():
                pass
            self.process.wait(60)
        finally:
            self.close()
        return self.text

    def close(self) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        os.close(self.ours)


def left(text: str) -> list[str]:
    """The lines that a terminal shows in the end: after \\r, what is written replaces what was there."""
    lines = [""] * (text.count("\n") + 1)
    for row, line in enumerate(text.split("\n")):
        for part in line.split("\r"):
            lines[row] = part + lines[row][len(part) :]
    return [line.rstrip() for line in lines if line.strip()]


pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="no pseudo-terminals")

WORK = """
import sys, time
from base import progress
seconds, total, progress.LINE_SECONDS, progress.PATIENCE_SECONDS = map(float, sys.argv[1:5])
print("before", flush=True)
with progress.Progress("encoding", total, "B") as work:
    until = time.monotonic() + seconds
    said = False
    while (now := time.monotonic()) < until:
        work.update(total * 0.05 / seconds)
        time.sleep(0.05)
        if not said and until - now < seconds / 4:
            said = True
            with progress.hidden():
                print("meanwhile", flush=True)
print("after", flush=True)
print("tqdm" in sys.modules, flush=True)
"""


@pytest.mark.slow
def test_slow_work_shows_a_bar_that_goes_away() -> None:
    assert progress.PATIENCE_SECONDS == 2.0
    for total in ("2000", "0"):
        terminal = Terminal("-c", WORK, "2.9", total, "10", "2")
        text = terminal.watch()
        begun, first = (next(at for at, piece in terminal.pieces if said in piece) for said in ("before", "encoding"))
        assert first - begun > 1.9  # from its third second on
        assert ("left" in text and "%" in text) == (total != "0") and re.search(r"00:0[23]", text)
        assert left(text) == ["before", "meanwhile", "after", "True"]


def test_where_there_is_no_terminal_there_are_lines() -> None:
    command = [sys.executable, "-c", WORK, "1.9", "2000", "0.4", "0.5"]
    ended = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"PYTHONPATH": str(ROOT)})
    assert ended.stdout == "before\nmeanwhile\nafter\nFalse\n"
    shares = [int(each) for each in re.findall(r"^encoding: (\d+) %, 0:0\d left$", ended.stderr, re.MULTILINE)]
    assert 1 <= len(shares) == ended.stderr.count("\n") <= 3
    assert shares == sorted(shares) and 20 <= shares[0] < 100
