"""benchmarks/parse_share.py, on texts written by hand and on a model that knows nothing."""

from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks import parse_share
from benchmarks.parse_share import CUTS, cut, interval, parses, table
from tests.conftest import Ended, caller

LINES, BLANK = CUTS.values()


def test_pieces_of_source() -> None:
    """Where they end, which of them parse, and an interval of Newcombe, Statistics in Medicine 17 (1998) 857."""
    accepted = ("def f(x):\n    return x\n", "c = '\\d'  # an invalid escape is a warning\n", "# a comment\n")
    refused = ("def f(x):\n", "    return x\n", "print 1\n", "x = '\0'\n", "(" * 10_000 + ")" * 10_000, "\n  \n")
    assert all(map(parses, accepted)) and not any(map(parses, refused))
    assert cut("def f():\n    pass\nde", LINES) == "def f():\n    pass\n"
    assert cut("def f():\n    pass\n\n\ndef g():\n    pa", BLANK) == "def f():\n    pass\n\n\n"
    assert cut("def f(): pass", LINES) == cut("def f():\n    pass\n", BLANK) == ""
    assert interval(81, 263) == pytest.approx((0.2553, 0.3662), abs=5e-5)
    good, half, bad = "x = 1\n\n", "x = 1\n\n(\n", "(\n\n"
    rows = [row.split(" | ")[1:4] for row in table({"some": [good, half, half, bad]}).splitlines()[2:]]
    assert rows == [["at its last line break", "1 of 4", "25.0%"], ["at its last blank line", "3 of 4", "75.0%"]]


def test_a_run_is_measured(train: Callable[..., Ended], capsys: pytest.CaptureFixture) -> None:
    """Pieces of 1000 characters end 16 after a blank line, in the middle of a function."""
    Path("source.py").write_text("def f():\n    return 1\n\n\n" * 500)
    typed = ["name=a", "data.path=source.py", "data.split=[0.7,0.3,0.0]", "trainer.max_steps=1", "logger=none"]
    assert train(*typed).status == 0
    script = caller(parse_share.cli, capsys)
    ended = script("a", "--samples", "6")
    assert ended.status == 0, ended
    rows = [line.split(" | ")[:3] for line in ended.out.splitlines()[2:]]
    model = "runs/a/checkpoints/best.safetensors"
    assert [row[0] for row in rows] == [f"| {model}"] * 2 + ["| validation text"] * 2
    assert rows[0][2] == "0 of 6", "it knows nothing yet"
    assert [row[2] for row in rows[2:]] == ["0 of 6", "6 of 6"]
    wrong = script("a", "--samples", "100000")
    assert wrong.status == 2 and wrong.err.count("\n") == 1 and "must be at most" in wrong.err
