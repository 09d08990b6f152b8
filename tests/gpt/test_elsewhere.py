import subprocess
import sys

import pytest

from tests.conftest import ROOT


@pytest.mark.slow
def test_a_pretended_device() -> None:
    """In a process of its own: torch takes a further kind of device for good."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/gpt/elsewhere.py"]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert ended.returncode == 0, ended.stdout[-4000:]
