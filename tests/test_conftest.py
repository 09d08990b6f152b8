"""What the tests lack is said at their end, and where CI=true it is a failure."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT

TESTS = """
import pytest
from tests.conftest import missing, needs

@pytest.mark.parametrize("extra", ["export", "export", "search"])
def test_needs(extra):
    needs("nothing_here", extra=extra)

def test_program():
    missing("no browser (package chromium)")

@pytest.mark.skipif(True, reason="no GPU here")
def test_gpu():
    pass
"""
SAID = (
    "not run: 2 (extra export), 1 (extra search), 1 (no GPU here), 1 (package chromium); "
    "to run all: apt install chromium && make test EXTRAS=dev,export,search"
)


@pytest.mark.slow
@pytest.mark.parametrize(("workers", "ci"), [("0", "true"), ("1", "")])
def test_what_was_not_run(tmp_path: Path, workers: str, ci: str) -> None:
    (tmp_path / "test_few.py").write_text(TESTS)
    command = [sys.executable, "-m", "pytest", "-p", "tests.conftest", "-n", workers, tmp_path / "test_few.py"]
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST_")}
    ended = subprocess.run(command, cwd=ROOT, env=environment | {"CI": ci}, capture_output=True, text=True)
    *_, line, closing = ended.stdout.splitlines()
    if ci:
        assert ended.returncode == 1 and "not run: 1 (no GPU here)" in ended.stdout.splitlines()
        assert ended.stdout.count("CI lacks what this test needs: no ") >= 4
        assert "4 failed, 1 skipped in " in closing
    else:
        assert ended.returncode == 0 and line == SAID
        assert "5 skipped in " in closing
