import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT

# What each script prints in its smallest form; those that train for minutes show their help.
SAID = {
    "busy_machine --help": "--quick", "gpu --help": "--quick", "positions --help": "--quick",
    "scaling --help": "--quick", "time_to_loss --help": "--quick", "train_speed --help": "--quick",
    "encode_speed --quick": "cached ", "startup --quick --rounds 1": "export.py --help",
    "plain_loop {book} --steps 2": '"loss": ', "sample_speed runs/first --quick --only 'decode, 1 text'": ".",
    "web_speed runs/first --quick --rounds 1": "the model alone: ", "../docs/pictures --help": "--quick",
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("command", SAID)
def test_the_smallest_form_runs(command, trained, request):
    if "web_speed" in command:
        request.getfixturevalue("browser")  # or there is none
    name, *given = shlex.split(command.format(book=Path("book.txt").absolute()))
    ended = subprocess.run(
        [sys.executable, ROOT / f"benchmarks/{name}.py", *given], capture_output=True, text=True
    )
    assert ended.returncode == 0 and SAID[command] in ended.stdout, ended
