import subprocess
import sys

from tests.conftest import ROOT

CODE = """
import sys
import gpt
assert not {"torch", "numpy"} & set(sys.modules), "importing gpt stays light"
import gpt.analysis  # and with it what the names come from
from gpt import *
assert all(callable(globals()[name]) for name in gpt.__all__)
print(*gpt.__all__, hasattr(gpt, "absent"))
"""


def test_the_names_that_gpt_exports_are_there_and_load_torch_only_when_asked_for() -> None:
    ended = subprocess.run([sys.executable, "-c", CODE], cwd=ROOT, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.split() == ["GPT", "ModelConfig", "evaluate", "generate", "load_checkpoint", "False"]
