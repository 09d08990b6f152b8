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
    # A failed installation leaves no stamp that would hide it.
    install = 'mkdir -p .venv/bin; printf "#!/bin/sh\\nexit 1\\n" > .venv/bin/python; chmod +x .venv/bin/python'
    for code, said in (
        ("exit 1", "needs Python 3.11 to 3.14"),
        ('case "$2" in *ensurepip*) exit 1;; esac', "apt install python3-venv"),
        *[(f'case "$1" in -m) {install};; esac', "installing failed")] * 2,
    ):
        ended = make(checkout, code, "train")
        assert ended.returncode != 0 and said in ended.stderr
