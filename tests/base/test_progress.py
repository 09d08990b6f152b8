import os
import re
import select
import signal
import struct
import subprocess
import sys
import time

import pytest

from tests.conftest import ROOT


class Terminal:
    def __init__(self, *command):
        import fcntl
        import pty
        import termios

        self.ours, theirs = pty.openpty()
        # rows and columns
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 100, 0, 0))
        self.begun = time.monotonic()
        self.process = subprocess.Popen(
            [sys.executable, *command], stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
        )  # fmt: skip
        os.close(theirs)
        self.text = ""
        self.known = 0  # characters of it that `until` has seen

    def read(self):
        """Wait a moment for more; whether there may still be more."""
        assert time.monotonic() - self.begun < 300, self.text[-500:]
        if not select.select([self.ours], [], [], 0.1)[0]:
            return True
        try:
            piece = os.read(self.ours, 1 << 16)
        except OSError:  # Linux' way to say that nobody writes any more
            return False
        self.text += piece.decode("utf-8", "replace")
        return bool(piece)

    def until(self, expected):
        while not (found := re.search(expected, self.text[self.known :])):
            assert self.read(), self.text[-500:]
        self.known += found.end()

    def watch(self):
        try:
            while self.read():
                pass
            self.process.wait(60)
        finally:
            self.close()
        return self.text

    def close(self):
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        os.close(self.ours)


pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="no pseudo-terminals")

WORK = """
import time
from base import progress
progress.LINE_SECONDS, progress.PATIENCE_SECONDS = 0.2, 0.25
with progress.Progress("encoding", 2000, "B") as work:
    for _ in range(20):
        work.update(100)
        time.sleep(0.05)
"""


def test_where_there_is_no_terminal_there_are_lines():
    command = [sys.executable, "-c", WORK]
    ended = subprocess.run(
        command, capture_output=True, text=True, env=os.environ | {"PYTHONPATH": str(ROOT)}
    )
    assert ended.returncode == 0 and ended.stdout == "", ended
    assert re.fullmatch(r"(encoding: [2-9]\d %, 0:0\d so far\n){1,4}", ended.stderr), ended
