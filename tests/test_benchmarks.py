import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from base.errors import InputError
from benchmarks import gpu, sample_speed
from benchmarks.parse_share import CUTS, cut, interval, parses, table
from gpt.config import ModelConfig
from tests.conf.test_defaults import compose
from tests.conftest import ROOT
from tests.reference.capture import record
from tests.test_house import PACKAGES

MACHINE = {"GPU": "a GPU", "torch": "2.0"}


def test_what_was_measured_is_kept_and_nothing_begun_that_would_not_end_in_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, now, asked = tmp_path / "results" / "part.json", [0.0], []
    monkeypatch.setattr(gpu, "time", SimpleNamespace(monotonic=lambda: now[0]))

    def lasting(name: str, seconds: float) -> Callable[[], dict[str, Any]]:
        def work() -> dict[str, Any]:
            asked.append(name)
            now[0] += seconds
            return {"by": name} if seconds else 1 / 0  # type: ignore[return-value]

        return work

    plan = {name: lasting(name, seconds) for name, seconds in (("a", 10), ("b", 120), ("c", 60), ("d", 1))}
    with pytest.raises(ZeroDivisionError):
        gpu.measure(file, MACHINE, {"a": plan["a"], "b": lasting("b", 0)}, 9)
    assert json.loads(file.read_text()) == MACHINE | {"seen": {"a": {"by": "a"}}}
    # After c, 180 seconds are gone, and d might last as long as b: 300 of 299.
    assert gpu.measure(file, MACHINE, plan, minutes=299 / 60) == ["d"]
    assert asked == ["a", "b", "b", "c"]
    assert gpu.measure(file, MACHINE, plan, minutes=0.001) == []  # the first always is
    assert json.loads(file.read_text()) == MACHINE | {"seen": {name: {"by": name} for name in "abcd"}}
    with pytest.raises(InputError, match=r"measured with torch 2\.0, here it is 2\.1; name other --results"):
        gpu.measure(file, MACHINE | {"torch": "2.1"}, plan, 9)
    assert os.listdir(file.parent) == ["part.json"]


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


def test_the_scripts_import_the_project_once_it_can_be_found() -> None:
    ours = re.compile(rf"^(?:from|import) (?:{'|'.join((*PACKAGES, 'benchmarks'))})\b", re.MULTILINE)
    for file in (ROOT / "benchmarks").glob("*.py"):
        assert not ours.search(file.read_text("utf-8").partition("sys.path.insert(")[0]), file


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
    good, half, bad = "x = 1\n\n", "x = 1\n\n(\n", "(\n\n"
    rows = [row.split(" | ")[1:4] for row in table({"some": [good, half, half, bad]}).splitlines()[2:]]
    assert rows == [["at its last line break", "1 of 4", "25.0%"], ["at its last blank line", "3 of 4", "75.0%"]]
