import signal
from unittest.mock import Mock

import pytest

from base.command_line import answer
from base.errors import InputError
from tests.conftest import Call


def test_how_a_command_answers_what_goes_wrong(capsys: pytest.CaptureFixture) -> None:
    for error, status, said in (
        (InputError("no\nsuch file"), 2, "x.py: no such file\n"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory"), 2, "x.py: out of memory: too large\n"),
        (MemoryError(), 2, "x.py: out of memory: too large\n"), (OSError("disk on fire"), 1, "x.py: disk on fire\n"),
        (KeyboardInterrupt(), 130, ""),
    ):  # fmt: skip
        assert answer("x.py", Mock(side_effect=error), out_of_memory="too large") == status, error
        assert capsys.readouterr().err == said
    with pytest.raises(RuntimeError, match="a bug"):
        answer("x.py", Mock(side_effect=RuntimeError("a bug")), out_of_memory="too large")


def test_train_py_is_interrupted_before_there_is_a_run(train: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("train.dispatch", Mock(side_effect=KeyboardInterrupt))
    ended = train()
    assert (ended.status, ended.err) == (128 + signal.SIGINT, "\ninterrupted\n")
