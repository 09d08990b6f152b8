import io

import matplotlib
import numpy as np
import pytest
from PIL import Image

from reports import pictures
from reports.glyphs import visible

ODD = list("a b\n\t\x00\x02\x1b\x7f\x85\u2028\u200b\u00ad$_^\\{}%&中文\u0301אب😀👩\ufffd\U000e0001") + ["\\xff"]


def pixels(png: bytes) -> np.ndarray:
    """(height, width, 3) uint8."""
    return np.asarray(Image.open(io.BytesIO(png)).convert("RGB"))


def has(picture: np.ndarray, colour: str | tuple[float, ...]) -> int:
    """How many pixels have a colour, to within rounding."""
    wanted = 255 * np.array(matplotlib.colors.to_rgb(colour))
    return int((np.abs(picture - wanted).max(-1) < 2).sum())


def test_attention_has_the_colours_of_its_weights() -> None:
    weights = np.tril(np.random.default_rng(0).uniform(size=(8, 8)))
    weights /= weights.sum(1, keepdims=True)
    for shown in (weights, np.eye(8)):
        picture = pixels(pictures.attention(7, "L0H1", list("abcdefgh"), shown))
        height, width, _ = picture.shape
        side = min(0.91 * width, 0.77 * height)
        left, top = (1.07 * width - side) / 2, (0.97 * height - side) / 2
        for row, column in np.ndindex(8, 8):
            x, y = left + side * (column + 0.5) / 8, top + side * (row + 0.5) / 8
            expected = 255 * np.array(matplotlib.colormaps["Blues"](shown[row, column] ** 0.5)[:3])
            np.testing.assert_allclose(picture[int(y), int(x)], expected, atol=3)


def test_what_a_character_cost_is_its_colour() -> None:
    """A line of each cost: as much of the picture has its colour as it has characters."""
    costs = [0.4, 2.3, 5.0, 30.0]
    characters = [each for count in (4, 8, 12, 16) for each in "x" * (count - 1) + "\n"]
    picture = pixels(pictures.surprisal(1, characters, np.repeat(costs, (4, 8, 12, 16))))
    found = [has(picture, pictures.SURPRISAL_COLOURS(min(cost, 6) / 6)) for cost in costs]
    np.testing.assert_allclose(np.array(found) / found[0], [1, 2, 3, 4], rtol=0.2)


@pytest.mark.slow
def test_everything_can_be_drawn() -> None:
    for png in (
        pictures.attention(1, "L0H0", ODD, np.eye(len(ODD))),
        pictures.attention(10**9, "L9999H9999", ["x"], np.ones((1, 1))),
        pictures.surprisal(1, ODD * 2 + ["\n"] * 30, np.linspace(0, 20, len(ODD) * 2 + 30)),  # more than fit
        pictures.surprisal(1, ["\n"], np.zeros(1)),
    ):
        picture = pixels(png)
        assert picture.shape[1] == 720 and len(np.unique(picture.reshape(-1, 3), axis=0)) > 10


def test_characters_are_made_visible() -> None:
    shown = [visible(each) for each in "a\n\t \x01\x7f\u2028\u0301é中"]
    assert shown == ["a", "↵", "⇥", "␣", "␁", "␡", "U+2028", "◌\u0301", "é", "中"]
    assert visible("\\xff") == "\\xff"
    assert len({visible(chr(code)) for code in range(256)}) == 256, "no two look the same"
    labels = {"a": "a", "é": "é", "א": "א", "↵": "↵", "中": "4E2D", "\U000e0001": "U+E0001"}
    assert {each: pictures.label(each) for each in labels} == labels, "code points of what DejaVu does not have"
