"""Choices for a machine: what decides, and what the reason says."""

import shutil
import sys
import sysconfig
from pathlib import Path

import pytest

from gpt.fit import automatic
from gpt.fit.automatic import COMPILE_FROM, choose_compile


@pytest.fixture
def complete(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """A Linux machine with a compiler and Python's headers."""
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(shutil, "which", lambda name: f"/usr/bin/{name}")
    (tmp_path / "Python.h").touch()
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(tmp_path))
    return monkeypatch


def test_compiling_pays_in_long_runs(complete: pytest.MonkeyPatch) -> None:
    assert choose_compile("auto", "cpu", COMPILE_FROM) == (True, "pays in a run this long")
    chosen, why = choose_compile("auto", "cpu", COMPILE_FROM - 1)
    assert not chosen and "it pays on a CPU in runs of more than" in why
    assert choose_compile("auto", "cuda", 1.0)[0]
    assert choose_compile("false", "cpu", 1e9) == (False, "as asked")
    assert choose_compile("true", "cpu", 1.0) == (True, "as asked")


@pytest.mark.parametrize("missing", ["g++", "Python.h"])
def test_compiling_without_what_it_needs(complete: pytest.MonkeyPatch, tmp_path: Path, missing: str) -> None:
    if missing == "g++":
        complete.setattr(shutil, "which", lambda name: None)
    else:
        (tmp_path / "Python.h").unlink()
    chosen, why = choose_compile("auto", "cpu", 1e9)
    assert not chosen and missing in why
    with pytest.raises(ValueError, match=f"^compile=true: there is no .*{missing.replace('+', '.')}"):
        choose_compile("true", "cpu", 1e9)


def test_compiling_is_not_chosen_where_nobody_tried_it(complete: pytest.MonkeyPatch) -> None:
    complete.setattr(sys, "platform", "darwin")
    assert not choose_compile("auto", "cpu", 1e9)[0]


def test_the_same_run_gets_the_same_answer() -> None:
    """Expected from counted operations, not from a clock."""
    assert automatic.expected_seconds(3e12) == 2 * automatic.expected_seconds(1.5e12)
