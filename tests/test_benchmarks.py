import io
import runpy
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import chdir, redirect_stdout
from pathlib import Path
from types import ModuleType

import pytest

from tests.conf.test_defaults import compose
from tests.conftest import ROOT

FOLDER = ROOT / "benchmarks"
# The smallest form of each. The others start commands whose output or whose own processes they look at.
SMALLEST = {
    "busy_machine": "book.txt", "gpu": "book.txt --device cpu", "positions": "--path {book}",
    "sample_speed": "runs/first", "scaling": "{book}", "time_to_loss": "book.txt", "train_speed": "book.txt",
}  # fmt: skip


def execute(script: str | Path, *arguments: str) -> str:
    """Run a script as the main program of this process; return what it prints."""
    out = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out):
        patch.setattr(sys, "argv", [str(script), *arguments])
        patch.setattr(sys, "path", [str(FOLDER), *sys.path])
        try:
            runpy.run_path(str(script), run_name="__main__")
        except SystemExit as ended:
            assert not ended.code, ended.code
    return out.getvalue()


@pytest.fixture
def measuring(trained: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """What the scripts share; the commands that it starts run in this process, which saves loading torch.

    Instead of each training, its settings are checked, and the run is a copy of `trained`.
    """
    monkeypatch.syspath_prepend(str(FOLDER))
    import measuring

    finished, book = Path("runs/first").absolute(), Path("book.txt").read_bytes()

    def run(command: list[str | Path], folder: str | Path = ".", **_: str) -> tuple[float, str]:
        script, *arguments = map(str, command)
        begun = time.perf_counter()
        with chdir(folder):
            if script == str(ROOT / "train.py"):
                shutil.copytree(finished, Path("runs", str(compose(arguments).name)))
                Path("book.txt").write_bytes(book)  # on which it was trained
                printed = ""
            else:
                printed = execute(script, *arguments)
        return time.perf_counter() - begun, printed

    monkeypatch.setattr(measuring, "run", run)
    monkeypatch.setattr(measuring, "at_once", lambda works: [work() for work in works])  # one after another
    yield measuring
    del sys.modules["measuring"]


@pytest.mark.slow
@pytest.mark.parametrize("name", SMALLEST)
def test_the_smallest_form_runs(name: str, measuring: ModuleType) -> None:
    arguments = SMALLEST[name].format(book=Path("book.txt").absolute()).split()
    out = execute(FOLDER / f"{name}.py", *arguments, "--rounds", "1", "--quick")
    rows = [line for line in out.splitlines() if line.startswith("| ")]
    assert len(rows) >= 3 and len({row.count("|") for row in rows}) <= 2
    assert "; commit " in out and ", torch " in out


@pytest.mark.slow
@pytest.mark.parametrize(
    "name, arguments, said",
    [
        ("encode_speed", "--quick", "cached "),
        ("startup", "--quick --rounds 1", "export.py --help"),
        ("plain_loop", "{book} --steps 2", '"loss": '),
        ("web_speed", "runs/first --rounds 1 --quick", "the model alone: "),
    ],
)
def test_what_looks_at_processes_runs(
    name: str, arguments: str, said: str, trained: Path, request: pytest.FixtureRequest
) -> None:
    if name == "web_speed":
        request.getfixturevalue("browser")  # or there is none
    given = arguments.format(book=Path("book.txt").absolute()).split()
    ended = subprocess.run([sys.executable, FOLDER / f"{name}.py", *given], capture_output=True, text=True)
    assert ended.returncode == 0 and said in ended.stdout, ended
