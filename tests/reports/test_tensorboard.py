from pathlib import Path

import numpy as np
import pytest
from PIL import ImageColor

from data.config import DataConfig
from data.passages import ATTENDED, passage
from data.text import open_text
from gpt.analysis import attention_maps
from gpt.model import GPT
from reports import tensorboard
from reports.tensorboard import symbol
from tests.reference.models import fill, tiny

ODD = list(
    "a b\n\t\x00\x02\x1b\x7f\x85\u2028\u200b\u00ad$_^\\{}%&中文\u0301אב😀👩\ufffd\U000e0001"
) + ["\\xff"]
# ColorBrewer's
BLUES = "#f7fbff #deebf7 #c6dbef #9ecae1 #6baed6 #4292c6 #2171b5 #08519c #08306b".split()


def test_attention_has_the_colours_of_its_weights() -> None:
    ranks = np.random.default_rng(0).permuted(np.tile(np.arange(9), (9, 1)), axis=1)
    picture = np.asarray(tensorboard.attention("a title", list("abcdefghi"), (ranks / 8) ** 2))
    framed = (picture == ImageColor.getrgb("#d0d0d0")).all(-1)
    (top, bottom), (left, right) = (framed.any(axis).nonzero()[0][[0, -1]] for axis in (1, 0))
    for row, column in np.ndindex(9, 9):
        y, x = top + (bottom - top) * (row + 0.5) / 9, left + (right - left) * (column + 0.5) / 9
        assert tuple(picture[int(y), int(x)]) == ImageColor.getrgb(BLUES[ranks[row, column]])


@pytest.mark.parametrize(("title", "names"), [
    pytest.param("layer 0, head 0, step 1: what each row looks at", ODD, id="odd characters"),
    pytest.param("layer 9999, head 9999, step 1,000,000,000", ["x"], id="one character"),
])  # fmt: skip
def test_everything_can_be_drawn(title: str, names: list[str]) -> None:
    picture = tensorboard.attention(title, names, np.eye(len(names)))
    assert picture.width == 720 and len(picture.getcolors(2**20)) > 10


def test_characters_are_made_visible() -> None:
    shown = [symbol(each) for each in "a\n\t \x01\x7f\u2028\u0301é中"]
    assert shown == ["a", "↵", "⇥", "␣", "␁", "␡", "U+2028", "◌\u0301", "é", "中"]
    assert len({symbol(chr(code)) for code in range(256)}) == 256, "no two look the same"


def test_the_model_computes_what_is_plotted(
    workplace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("greek.txt").write_text("μῆνιν ἄειδε θεὰ\nabc\n" * 400, encoding="utf-8")
    text = open_text(DataConfig(path="greek.txt", tokenizer="byte", split=(0.9, 0.05, 0.05)), 32)
    model = fill(GPT(tiny(context=4096, layers=2, heads=3, dim=24), text.tokenizer.size)).eval()
    monkeypatch.setattr(tensorboard, "attention", lambda _, names, weights: (names, weights))
    found = dict(tensorboard.plots(model, text, 7))
    heads = [f"view_attention/L{name}" for name in ("0H0", "0H2", "1H0", "1H2")]
    assert list(found) == heads
    shown = passage(text, ATTENDED)
    maps = attention_maps(model, shown)
    names, weights = found["view_attention/L0H2"]
    assert np.array_equal(weights, maps[0, 2].numpy())
    assert names == [text.tokenizer.names[token] for token in shown]
