"""make says what is missing."""

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.conftest import ROOT, missing


@pytest.fixture(autouse=True)
def made(monkeypatch: pytest.MonkeyPatch) -> None:
    if shutil.which("make") is None:
        missing("no make (package make)")
    for name in ("EXTRAS", "MAKEFLAGS", "MAKEOVERRIDES", "MFLAGS"):  # of the `make test` that runs this
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, tmp_path)
    return tmp_path


def script(path: Path, code: str) -> Path:
    path.write_text(f"#!/bin/sh\n{code}\n")
    path.chmod(0o755)
    return path


@pytest.mark.parametrize("target", ["train", "test"])
def test_without_a_suitable_python(checkout: Path, target: str) -> None:
    old = script(checkout / "python3.8", "exit 1")
    ended = subprocess.run(["make", target, f"PYTHON={old}"], cwd=checkout, capture_output=True, text=True)
    assert ended.returncode != 0
    assert "needs Python 3.11, 3.12 or 3.13" in ended.stderr and f"make {target} PYTHON=" in ended.stderr
    assert not (checkout / ".venv").exists()


def test_without_venv(checkout: Path) -> None:
    bare = script(checkout / "python", 'case "$2" in *ensurepip*) exit 1;; esac')
    ended = subprocess.run(["make", "train", f"PYTHON={bare}"], cwd=checkout, capture_output=True, text=True)
    assert ended.returncode != 0 and "apt install python3-venv" in ended.stderr


def test_a_failed_installation_is_said_and_tried_again(checkout: Path) -> None:
    """The environment is made, but pip cannot install: no stamp is left that would hide it."""
    install = 'mkdir -p .venv/bin; printf "#!/bin/sh\\nexit 1\\n" > .venv/bin/python; chmod +x .venv/bin/python'
    python = script(checkout / "python", f'case "$1" in -m) {install};; esac')
    for _ in range(2):
        ended = subprocess.run(["make", "train", f"PYTHON={python}"], cwd=checkout, capture_output=True, text=True)
        assert ended.returncode != 0 and "installing failed" in ended.stderr


def test_each_choice_of_extras_is_installed_once(checkout: Path) -> None:
    make = 'printf "#!/bin/sh\\necho \\"\\$@\\" >> said\\n" > .venv/bin/python; chmod +x .venv/bin/python'
    python = script(checkout / "python", f'case "$1" in -m) mkdir -p .venv/bin; {make};; esac')
    for extras in ([], [], ["EXTRAS=dev,export"], ["EXTRAS=dev,export"], ["EXTRAS=dev"]):
        subprocess.run(["make", "test", *extras, f"PYTHON={python}"], cwd=checkout, check=True, capture_output=True)
    lines = (checkout / "said").read_text().splitlines()
    assert [line.split()[-1] for line in lines if "install" in line] == [".", ".[dev]", ".[dev,export]"]
    assert sum("-m pytest" in line for line in lines) == 5
