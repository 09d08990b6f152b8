"""benchmarks/parse_share.py, on texts written by hand and on a model that knows nothing."""

import ast
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks import parse_share
from benchmarks.parse_share import CUTS, cut, interval, parses, table
from data.arrays import open_text
from data.config import DataConfig
from tests.conftest import ROOT, Ended, caller

LINES, BLANK = CUTS.values()


def test_what_parses() -> None:
    accepted = ("def f(x):\n    return x\n", "c = '\\d'  # an invalid escape is a warning\n", "# a comment\n")
    refused = ("def f(x):\n", "    return x\n", "print 1\n", "x = '\0'\n", "(" * 10_000 + ")" * 10_000, "\n  \n")
    assert all(map(parses, accepted)) and not any(map(parses, refused))


def test_where_pieces_end() -> None:
    assert cut("def f():\n    pass\nde", LINES) == "def f():\n    pass\n"
    assert cut("def f():\n    pass\n\n\ndef g():\n    pa", BLANK) == "def f():\n    pass\n\n\n"
    assert cut("def f(): pass", LINES) == cut("def f():\n    pass\n", BLANK) == ""


def test_an_interval_that_is_known() -> None:
    """Newcombe, Statistics in Medicine 17 (1998) 857, table I, method 3."""
    for count, total, bounds in ((81, 263, (0.2553, 0.3662)), (15, 148, (0.0624, 0.1605)), (0, 20, (0.0, 0.1611))):
        assert interval(count, total) == pytest.approx(bounds, abs=5e-5)


def test_the_table_counts_what_parses() -> None:
    good, half, bad = "x = 1\n\n", "x = 1\n\n(\n", "(\n\n"
    rows = [row.split(" | ")[1:4] for row in table({"some": [good, half, half, bad]}).splitlines()[2:]]
    assert rows == [["at its last line break", "1 of 4", "25.0%"], ["at its last blank line", "3 of 4", "75.0%"]]


def test_a_run_is_measured(train: Callable[..., Ended], capsys: pytest.CaptureFixture) -> None:
    files = sorted((ROOT / "gpt").glob("*.py"))
    Path("source.py").write_text("\n".join(file.read_text("utf-8") for file in files), "utf-8")
    typed = ["name=a", "data.path=source.py", "data.split=[0.7,0.3,0.0]", "trainer.max_steps=1", "logger=none"]
    assert train(*typed).status == 0
    script = caller(parse_share.cli, capsys)
    ended = script("a", "--samples", "6")
    assert ended.status == 0, ended
    model, lines = "runs/a/checkpoints/best.safetensors", ended.out.splitlines()
    assert [line.split(" | ")[0] for line in lines[2:]] == [f"| {model}"] * 2 + ["| validation text"] * 2
    assert lines[2].split(" | ")[2] == "0 of 6", "it knows nothing yet"

    text = open_text(DataConfig(path="source.py", split=[0.7, 0.3, 0.0]), 32)
    validation = text.tokenizer.decode(text.validation)
    found = [match.start() + 1 for match in re.finditer("\n(def|class) ", validation)]
    begins, count = [begin for begin in found if 16 <= begin <= len(validation) - 1000], 0
    for k in range(6):
        begin = begins[k * len(begins) // 6]
        try:
            ast.parse("".join(validation[begin : begin + 1000].splitlines(keepends=True)[:-1]))
            count += 1
        except SyntaxError:
            pass
    assert lines[4].split(" | ")[2] == f"{count} of 6"
    wrong = script("a", "--samples", "100000")
    assert wrong.status == 2 and wrong.err.count("\n") == 1 and "must be at most" in wrong.err
