import numpy as np

from data.config import DataConfig
from data.passages import ATTENDED, passage
from data.text import open_text
from gpt.analysis import attention_maps
from gpt.model import GPT
from reports import tensorboard
from tests.reference.models import fill, tiny


def test_the_attention_of_four_heads_is_plotted_and_the_most_is_darkest(workplace):
    text = open_text(DataConfig(path="book.txt"), 32)
    model = fill(GPT(tiny(context=4096, layers=2, heads=3, dim=24), text.tokenizer.size)).eval()
    plots = dict(tensorboard.plots(model, text))
    assert list(plots) == [f"view_attention/L{name}" for name in ("0H0", "0H2", "1H0", "1H2")]
    weights = attention_maps(model, passage(text, ATTENDED))[0, 2].numpy()
    picture = plots["view_attention/L0H2"]
    assert len(picture) >= 720
    rows = np.arange(len(weights))
    middles = ((rows + 0.5) * len(picture) / len(weights)).astype(int)
    lightness = picture[np.ix_(middles, middles)].sum(axis=2)
    assert np.array_equal(lightness[rows, weights.argmax(axis=1)], lightness.min(axis=1))
    assert len(np.unique(lightness)) > 5
