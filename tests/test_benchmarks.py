from pathlib import Path

import pytest

from benchmarks import gpu, sample_speed
from benchmarks.parse_share import CUTS, cut, interval, parses
from gpt.config import ModelConfig
from tests.conf.test_defaults import compose
from tests.reference.capture import record


def test_the_runs_on_a_gpu_are_runs_that_train_py_takes() -> None:
    runs = (gpu.BABY, gpu.SAME_PARTS, gpu.WIDE, gpu.REPEATABLE, gpu.ACROSS, gpu.steps_of(9), *gpu.WHERE.values())
    for arguments in (*runs, *([*gpu.BEST, *changed] for changed in gpu.VARIANTS.values())):
        compose(arguments)


TINY = (
    "model.layers=1 model.heads=1 model.dim=16 model.context=16 data.batch=4 trainer.accelerator=cpu logger=none "
    "compile=false watch.pictures=false"
).split()


@pytest.mark.slow
def test_parts_run_on_a_cpu(workplace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("training.assemble.choose_capture", lambda *_: record)
    monkeypatch.setattr("gpt.model.GPT._check", lambda *_: None)  # looks at tokens, on a CPU alone
    arguments = [f"data.path={workplace / 'book.txt'}", "data.split=[0.9,0.1,0.0]", *TINY, *gpu.steps_of(8)]
    seen = gpu.pipelined(arguments, 10)
    assert seen["over"] == pytest.approx(seen["step"] / seen["bare"] - 1) and seen["bare"] > 0
    monkeypatch.setattr(sample_speed, "LENGTH", 60)
    speeds = gpu.sampled(3, 40, ModelConfig(layers=1, heads=1, dim=8, context=16), "cpu")
    assert speeds.keys() == {"generate", "uncached"} and min(speeds.values()) > 0


def test_pieces_of_source() -> None:
    """Where they end, which of them parse, and an interval of Newcombe, Statistics in Medicine 17 (1998) 857."""
    accepted = ("def f(x):\n    return x\n", "c = '\\d'  # an invalid escape is a warning\n", "# a comment\n")
    refused = ("def f(x):\n", "    return x\n", "print 1\n", "x = '\0'\n", "(" * 10_000 + ")" * 10_000, "\n  \n")
    assert all(map(parses, accepted)) and not any(map(parses, refused))
    lines, blank = CUTS.values()
    assert cut("def f():\n    pass\nde", lines) == "def f():\n    pass\n"
    assert cut("def f():\n    pass\n\n\ndef g():\n    pa", blank) == "def f():\n    pass\n\n\n"
    assert cut("def f(): pass", lines) == cut("def f():\n    pass\n", blank) == ""
    assert interval(81, 263) == pytest.approx((0.2553, 0.3662), abs=5e-5)
