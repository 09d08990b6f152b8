"""What slow work shows, in a real terminal and without one."""

import os
import re
import select
import signal
import struct
import subprocess
import sys
import time
from pathlib import Path

import pytest

from conf import progress
from tests.conftest import ROOT, TINY


class Terminal:
    """A process in a pseudo-terminal, and what it shows there: pieces of text and when they came."""

    def __init__(self, *command: str, environment: dict[str, str] | None = None) -> None:
        import fcntl
        import pty
        import termios

        self.ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 100, 0, 0))  # rows and columns
        self.begun = time.monotonic()
        self.process = subprocess.Popen(
            [sys.executable, *command], stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True,
            env=os.environ | {"PYTHONPATH": str(ROOT)} | (environment or {}),
        )  # fmt: skip
        os.close(theirs)
        self.pieces: list[tuple[float, str]] = []

    def watch(self, limit: float = 300.0) -> str:
        """All that it shows to its end."""
        try:
            while True:
                assert time.monotonic() - self.begun < limit, self.text[-500:]
                if select.select([self.ours], [], [], 0.1)[0]:
                    try:
                        piece = os.read(self.ours, 1 << 16)
                    except OSError:  # Linux' way to say that nobody writes any more
                        break
                    if not piece:
                        break
                    self.pieces.append((time.monotonic() - self.begun, piece.decode("utf-8", "replace")))
        finally:
            if self.process.poll() is None and time.monotonic() - self.begun >= limit:
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait(30)
            os.close(self.ours)
        return self.text

    @property
    def text(self) -> str:
        """All so far."""
        return "".join(piece for _, piece in self.pieces)


def left(text: str) -> list[str]:
    """The lines that a terminal shows in the end: what is written replaces what was there."""
    lines, row, column = [""], 0, 0
    for part in re.findall(r"\x1b\[A|\r|\n|[^\x1b\r\n]+", text):
        if part == "\r":
            column = 0
        elif part == "\n":
            row += 1
            lines += [""] * (row == len(lines))
        elif part == "\x1b[A":
            row = max(0, row - 1)
        else:
            before = lines[row].ljust(column)
            lines[row] = before[:column] + part + before[column + len(part) :]
            column += len(part)
    return [line.rstrip() for line in lines if line.strip()]


pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="no pseudo-terminals")

WORK = """
import sys, time
from conf import progress
seconds, total, progress.EVERY, progress.PATIENCE = map(float, sys.argv[1:5])
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
    if len(sys.argv) > 5:
        raise SystemExit("failed")
print("after", flush=True)
print("tqdm" in sys.modules, flush=True)
"""


def test_quick_work_shows_nothing_and_loads_nothing(tmp_path: Path) -> None:
    terminal = Terminal("-c", WORK, "0.5", "1000", "10", "2")
    assert left(terminal.watch()) == ["before", "meanwhile", "after", "False"]
    assert "encoding" not in terminal.text


@pytest.mark.slow
@pytest.mark.parametrize("total", [2000, 0])
def test_slow_work_shows_a_bar_that_goes_away(total: int) -> None:
    assert progress.PATIENCE == 2.0
    terminal = Terminal("-c", WORK, "2.9", str(total), "10", "2")
    text = terminal.watch()
    first = next(at for at, piece in terminal.pieces if "encoding" in piece)
    begun = next(at for at, piece in terminal.pieces if "before" in piece)
    assert first - begun > 1.9  # from its third second on
    assert ("left" in text and "%" in text) == bool(total)
    assert re.search(r"00:0[23]", text)
    assert left(text) == ["before", "meanwhile", "after", "True"]


def test_where_there_is_no_terminal_there_are_lines() -> None:
    command = [sys.executable, "-c", WORK, "1.9", "2000", "0.4", "0.5"]
    ended = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"PYTHONPATH": str(ROOT)})
    assert ended.stdout == "before\nmeanwhile\nafter\nFalse\n"
    lines = ended.stderr.splitlines()
    assert 1 <= len(lines) <= 3
    assert all(re.fullmatch(r"encoding: \d+ %, 0:0\d left", line) for line in lines), lines
    shares = [int(re.findall(r"\d+", line)[0]) for line in lines]
    assert shares == sorted(shares) and 20 <= shares[0] < 100


def test_work_that_fails_leaves_the_terminal_as_it_was() -> None:
    terminal = Terminal("-c", WORK, "1.5", "2000", "10", "0.3", "fail")
    assert left(terminal.watch()) == ["before", "meanwhile", "failed"]
    assert "encoding" in terminal.text


def test_only_the_first_of_several_processes_shows() -> None:
    terminal = Terminal("-c", WORK, "1", "2000", "10", "0.3", environment={"LOCAL_RANK": "1"})
    assert "encoding" not in terminal.watch()


@pytest.mark.slow
def test_a_run_shows_what_takes_long(workplace: Path) -> None:
    """A text on a slow disk, a slow first step, slow validations: each is shown in a terminal, nothing of it stays."""
    arguments = ["data.path=book.txt", "data.split=[0.8,0.2,0]", "name=slow", "trainer.max_steps=2", "logger=none"]
    code = f"""
import sys, time
import tqdm
import data.corpus, data.batches, data.datamodule, gpt.fit.module
from conf import progress
from contextlib import contextmanager
progress.PATIENCE = 0.2
open_file, fetch, windows = data.corpus.Document.open, data.datamodule.train_batch, data.batches.evaluation_windows
window_totals = gpt.fit.module.window_totals
slow = set()

def take_long_once(what):
    time.sleep(0 if what in slow else 1)
    slow.add(what)

class Slow:
    def __init__(self, file): self.file = file
    def read(self, size):
        time.sleep(0.3)
        return self.file.read(min(size, 10_000))

@contextmanager
def slow_disk(document):
    with open_file(document) as file:
        yield Slow(file)

def slow_first_batch(*given):
    take_long_once("batch")
    return fetch(*given)

def slow_totals(*given):
    take_long_once("validation")
    return window_totals(*given)

def slow_windows(*given, **named):
    for each in windows(*given, **named):
        take_long_once("stride" if "stride" in named else "evaluation")  # a passage to draw is no evaluation
        yield each

data.corpus.Document.open = slow_disk
data.datamodule.train_batch = slow_first_batch
gpt.fit.module.window_totals = slow_totals
data.batches.evaluation_windows = slow_windows
import train
train.SAMPLE_LENGTH = 5
sys.argv = ["train.py", *{[*TINY, *arguments]!r}]
sys.exit(train.cli())
"""
    terminal = Terminal("-c", code)
    text = terminal.watch()
    assert terminal.process.returncode == 0, text[-2000:]
    for what in ("hashing the text", "encoding", "the first step", "validating", "evaluating the last"):
        assert what in text, what
    shown = left(text)
    assert not any("encoding" in line or "evaluating" in line or "validating" in line for line in shown), shown
    assert any(line.startswith("validation loss") for line in shown), shown
