import errno
import subprocess
import sys
from pathlib import Path
from unittest.mock import Mock

import pytest

from base import processes
from base.command_line import main
from base.errors import InputError, redacted
from base.log import log, to_console, to_file
from tests.conftest import ROOT


@pytest.mark.parametrize(
    ("error", "status", "line"),
    [
        (InputError("no\nsuch file"), 2, "x.py: no such file\n"),
        (RecursionError("maximum recursion depth"), 2, "x.py: a value or a file is nested too deeply\n"),
        (MemoryError(), 2, "x.py: out of memory: too large\n"),
        (RuntimeError("MPS backend out of memory (MPS allocated: 1 GB)"), 2, "x.py: out of memory: too large\n"),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when"), 2, "x.py: out of memory: too large\n"),
        (KeyboardInterrupt(), 130, ""),
        (OSError(errno.EACCES, "Permission denied", "runs/x/.lock"), 1, "x.py: runs/x: Permission denied\n"),
        (OSError(errno.ENOSPC, "No space left on device", "a/b.st"), 1, "x.py: a/b.st: No space left on "),
        (OSError(errno.EROFS, "Read-only file system"), 1, "x.py: Read-only file system\n"),
    ],
    ids=repr,
)  # fmt: skip
def test_how_a_command_answers_what_goes_wrong(capsys, error, status, line):
    to_console()
    assert main("x.py", Mock(side_effect=error), out_of_memory="too large") == status
    ended = capsys.readouterr()
    assert ended.err.startswith(line)
    assert ended.err.count("\n") == bool(line)


def test_a_bug_keeps_its_traceback():
    with pytest.raises(RuntimeError, match="a bug"):
        main("x.py", Mock(side_effect=RuntimeError("a bug")), out_of_memory="too large")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
def test_output_that_cannot_be_written_is_said_once(trained):
    with open("/dev/full", "w") as full:
        command = [sys.executable, str(ROOT / "sample.py"), "first", "--num-chars", "5"]
        ended = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True)
    assert ended.returncode == 1
    said = "sample.py: No space left on device"
    assert ended.stderr.splitlines()[-1].startswith(said), ended.stderr


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("http://bob:pa/ss@host/a.txt", "http://***@host/a.txt"),
        ("http://bob:pa ss@w@host/a.txt?v=@", "http://***@host/a.txt?v=@"),
        ("[http://bob:pw@a.org/b,c@d.txt]", "[http://***@a.org/b,c@d.txt]"),
        ("s3://token@host/a#b@c", "s3://***@host/a#b@c"),
        ("https://a.org/repository@main/b.txt", "https://a.org/repository@main/b.txt"),
        ("path: http://a.org:80/b\nname: c@d", "path: http://a.org:80/b\nname: c@d"),
    ],
)
def test_a_password_ends_with_the_last_at_sign(text, shown):
    assert redacted(text) == shown


def test_no_log_line_has_a_password_or_a_byte_that_utf_8_cannot_write(tmp_path, capsys):
    path = tmp_path / "train.log"
    to_console()
    to_file(path)
    try:
        log.info("to read all: 'data.path=https://ann:hunter2@a.org/caf\udce9/**/*'")
    finally:
        to_console()
    line = "to read all: 'data.path=https://***@a.org/caf\ufffd/**/*'\n"
    assert capsys.readouterr().out == path.read_text("utf-8") == line


def test_a_printed_command_works_in_the_folder_in_which_it_is_printed(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", [str(ROOT / "train.py")])
    for folder, script in ((ROOT, "score.py"), (tmp_path, ROOT / "score.py")):
        monkeypatch.chdir(folder)
        assert processes.command("python", "score.py", "a b").endswith(f"python {script} 'a b'")
