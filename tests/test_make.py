import shutil
import subprocess
from pathlib import Path

import pytest

from tests.conftest import ROOT, missing


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    if shutil.which("make") is None:
        missing("no make (package make)")
    for name in ("MAKEFLAGS", "MAKEOVERRIDES", "MFLAGS"):  # of the `make test` that runs this
        monkeypatch.delenv(name, raising=False)
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, tmp_path)
    return tmp_path


def make(checkout: Path, code: str, *arguments: str) -> subprocess.CompletedProcess:
    python = checkout / "python"
    python.write_text(f"#!/bin/sh\n{code}\n")
    python.chmod(0o755)
    return subprocess.run(["make", *arguments, f"PYTHON={python}"], cwd=checkout, capture_output=True, text=True)


def test_without_a_suitable_python_or_venv_or_a_network(checkout: Path) -> None:
    for target in ("train", "test"):
        ended = make(checkout, "exit 1", target)
        assert ended.returncode != 0 and f"make {target} PYTHON=" in ended.stderr
        assert "needs Python 3.11 to 3.14" in ended.stderr
    ended = make(checkout, 'case "$2" in *ensurepip*) exit 1;; esac', "train")
    assert ended.returncode != 0 and "apt install python3-venv" in ended.stderr
    assert not (checkout / ".venv").exists()
    # A failed installation leaves no stamp that would hide it.
    install = 'mkdir -p .venv/bin; printf "#!/bin/sh\\nexit 1\\n" > .venv/bin/python; chmod +x .venv/bin/python'
    for _ in range(2):
        ended = make(checkout, f'case "$1" in -m) {install};; esac', "train")
        assert ended.returncode != 0 and "installing failed" in ended.stderr
