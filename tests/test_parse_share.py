"""benchmarks/parse_share.py, on texts written by hand and on models that know the text or know nothing."""

import ast
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks import parse_share
from benchmarks.parse_share import CUTS, LENGTH, cut, interval, parses, pieces, places, table
from data.arrays import Text, open_text
from data.config import DataConfig
from gpt.config import ModelConfig
from gpt.model import GPT
from tests.conftest import ROOT, Ended, caller

LINES, BLANK = CUTS.values()
CONTEXT = 32


@pytest.mark.parametrize(
    ("text", "accepted"),
    [
        ("def f(x):\n    return x\n", True),
        ("class A:\n    b = r'\\d'\n    c = '\\d'\n", True),  # an invalid escape is a warning
        ("# a comment\n", True),
        ("def f(x):\n", False),
        ("def f(x):\n    return (x\n", False),
        ('def f(x):\n    """What it does.\n', False),
        ("    return x\n", False),
        ("print 1\n", False),
        ("x = '\0'\n", False),
        ("(" * 10_000 + ")" * 10_000, False),
        ("", False),  # Python accepts these, but nothing was written
        ("\n  \n", False),
    ],
)
def test_what_parses(text: str, accepted: bool) -> None:
    assert parses(text) is accepted


def test_where_pieces_end() -> None:
    assert cut("def f():\n    pass\nde", LINES) == "def f():\n    pass\n"
    assert cut("def f():\n    pass\n\n\ndef g():\n    pa", BLANK) == "def f():\n    pass\n\n\n"
    assert cut("def f():\n    pass\n\n    \n", BLANK) == "def f():\n    pass\n\n"
    assert cut("def f(): pass", LINES) == cut("def f():\n    pass\n", BLANK) == ""


@pytest.mark.parametrize(("count", "total"), [(0, 10), (1, 10), (8, 10), (10, 10), (150, 200), (1, 1)])
def test_the_ends_of_an_interval_are_a_standard_error_away(count: int, total: int) -> None:
    for bound, side in zip(interval(count, total), (1, -1), strict=True):
        assert count / total - bound == pytest.approx(side * 1.959964 * (bound * (1 - bound) / total) ** 0.5, abs=1e-7)


def test_an_interval_that_is_known() -> None:
    """Newcombe, Statistics in Medicine 17 (1998) 857, table I, method 3."""
    assert interval(81, 263) == pytest.approx((0.2553, 0.3662), abs=5e-5)
    assert interval(15, 148) == pytest.approx((0.0624, 0.1605), abs=5e-5)
    assert interval(0, 20) == pytest.approx((0.0, 0.1611), abs=5e-5)


def test_where_pieces_begin() -> None:
    definition = "class Longer(object):\n    x = 1\n\n"
    text = (
        "defer = 1\n" + 5 * definition + "    def inner():\n        pass\n" + 100 * "x = 1\n" + "async def f():\n" * 80
    )
    begins = [10 + k * len(definition) for k in range(5)]
    assert places(text, 0, 5) == begins
    assert places(text, 11, 4) == begins[1:]
    assert places(text, 0, 2) == [begins[0], begins[2]]
    with pytest.raises(ValueError, match="--samples 6: must be at most 5, the places in the validation text"):
        places(text, 0, 6)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Some modules of this project, one behind the other."""
    path = tmp_path_factory.mktemp("source") / "source.py"
    path.write_text("\n".join(file.read_text("utf-8") for file in sorted((ROOT / "gpt").glob("*.py"))), "utf-8")
    return path


@pytest.fixture
def text(source: Path, workplace: Path) -> Text:
    return open_text(DataConfig(path=str(source), split=[0.7, 0.3, 0.0]), CONTEXT)


def test_a_model_that_knows_the_text_is_as_good_as_the_text(text: Text, monkeypatch: pytest.MonkeyPatch) -> None:
    """And one that is off by a character is not: from the same places, the same lengths, cut in the same way."""
    validation = text.tokenizer.decode(text.validation)
    model, off = GPT(ModelConfig(layers=1, dim=16, context=400), text.tokenizer.size), 0

    def know(_: GPT, prompts: torch.Tensor, count: int, **options: Any) -> torch.Tensor:
        assert options == {"temperature": 0.8, "seed": 7} and prompts.shape == (20, 200)
        rows = []
        for prompt in prompts:
            begun = text.tokenizer.decode(prompt.numpy())
            (begin,) = (
                m.end() for m in re.finditer(re.escape(begun), validation) if DEFINED.match(validation, m.end())
            )
            rows.append(text.tokenizer.encode(begun + validation[begin + off : begin + off + count]))
        return torch.tensor([row.tolist() for row in rows])

    DEFINED = re.compile("(def|class) ")
    monkeypatch.setattr(parse_share, "generate", know)
    written, real = pieces(model, text, 20, seed=7)
    assert written == real and len(set(real)) == 20 and all(len(piece) == LENGTH for piece in real)
    off = 1
    written, real = pieces(model, text, 20, seed=7)
    assert [piece[:-1] for piece in written] == [piece[1:] for piece in real]
    assert any(map(parses, (cut(piece, BLANK) for piece in real)))
    assert not any(map(parses, (cut(piece, BLANK) for piece in written)))  # ef f(x):


def test_the_table_counts_what_parses() -> None:
    good, half, bad = "x = 1\n\n", "x = 1\n\n(\n", "(\n\n"
    rows = [row.split(" | ") for row in table({"some": [good, half, half, bad]}).splitlines()[2:]]
    assert [(row[1], row[2], row[3]) for row in rows] == [
        ("at its last line break", "1 of 4", "25.0%"),
        ("at its last blank line", "3 of 4", "75.0%"),
    ]


def test_a_run_is_measured(source: Path, train: Callable[..., Ended], capsys: pytest.CaptureFixture) -> None:
    typed = ["name=a", f"data.path={source}", "data.split=[0.7,0.3,0.0]", "trainer.max_steps=2"]
    assert train(*typed).status == 0
    script = caller(parse_share.cli, capsys)
    ended = script("a", "--samples", "6")
    assert ended.status == 0, ended
    model, lines = "runs/a/checkpoints/best.safetensors", ended.out.splitlines()
    assert [line.split(" | ")[0] for line in lines[2:]] == [f"| {model}"] * 2 + ["| validation text"] * 2
    assert lines[2].split(" | ")[2] == "0 of 6", "it knows nothing yet"

    text = open_text(DataConfig(path=str(source), split=[0.7, 0.3, 0.0]), CONTEXT)
    validation = text.tokenizer.decode(text.validation)
    begins = [
        m.start() + 1 for m in re.finditer("\n(def|class) ", validation) if 15 <= m.start() < len(validation) - 1000
    ]
    count = 0
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
    assert script("b").status == 2 and script("--sample", "3").status == 2
