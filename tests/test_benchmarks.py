import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT

QUICK = {  # the arguments of each script's smallest form, and what it prints
    "busy_machine": ("book.txt --rounds 1 --quick", "| "), "gpu": ("book.txt --device cpu --rounds 1 --quick", "| "),
    "positions": ("--path {book} --rounds 1 --quick", "| "), "sample_speed": ("runs/first --rounds 1 --quick", "| "),
    "scaling": ("{book} --rounds 1 --quick", "| "), "time_to_loss": ("book.txt --rounds 1 --quick", "| "),
    "train_speed": ("book.txt --rounds 1 --quick", "| "), "startup": ("--rounds 1 --quick", "export.py --help"),
    "encode_speed": ("--quick", "cached "), "plain_loop": ("{book} --steps 2", '"loss": '),
    "web_speed": ("runs/first --rounds 1 --quick", "the model alone: "),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", QUICK)
def test_the_smallest_form_runs(name: str, trained: Path, request: pytest.FixtureRequest) -> None:
    if name == "web_speed":
        request.getfixturevalue("browser")  # or there is none
    arguments, said = QUICK[name]
    given = arguments.format(book=Path("book.txt").absolute()).split()
    ended = subprocess.run([sys.executable, ROOT / f"benchmarks/{name}.py", *given], capture_output=True, text=True)
    assert ended.returncode == 0 and said in ended.stdout, ended
