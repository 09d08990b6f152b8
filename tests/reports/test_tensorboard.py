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
from tests.reference.models import fill, tiny

# ColorBrewer's
BLUES = "#f7fbff #deebf7 #c6dbef #9ecae1 #6baed6 #4292c6 #2171b5 #08519c #08306b".split()


@pytest.mark.parametrize("length", [1, 9, 1000])
def test_attention_has_the_colours_of_its_weights(length: int) -> None:
    ranks = np.random.default_rng(0).integers(0, 9, (length, length))
    picture = tensorboard.heat_map((ranks / 8) ** 2)
    side = len(picture)
    assert picture.shape == (side, side, 3) and side >= 720
    middles = ((np.arange(length) + 0.5) * side / length).astype(int)
    colours = np.array([ImageColor.getrgb(blue) for blue in BLUES])
    assert np.array_equal(picture[np.ix_(middles, middles)], colours[ranks])


def test_the_model_computes_what_is_plotted(
    workplace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("greek.txt").write_text("μῆνιν ἄειδε θεὰ\nabc\n" * 400, encoding="utf-8")
    text = open_text(DataConfig(path="greek.txt", tokenizer="byte", split=(0.9, 0.05, 0.05)), 32)
    model = fill(GPT(tiny(context=4096, layers=2, heads=3, dim=24), text.tokenizer.size)).eval()
    monkeypatch.setattr(tensorboard, "heat_map", lambda weights: weights)
    found = dict(tensorboard.plots(model, text))
    heads = [f"view_attention/L{name}" for name in ("0H0", "0H2", "1H0", "1H2")]
    assert list(found) == heads
    maps = attention_maps(model, passage(text, ATTENDED))
    assert np.array_equal(found["view_attention/L0H2"], maps[0, 2].numpy())
