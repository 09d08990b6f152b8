"""Lines about a text whose validation is not like its training text, or a copy of it."""

import random

import numpy as np
import pytest

from data.ngrams import ngram_losses
from tests.data.test_text import decoded
from tests.folders import make
from tests.reference.ngrams import ngram_loss

WORDS = "the sea was grey and cold that morning when old men went down to their boats with bread".split()


def prose(size, seed=0):
    rng, found = random.Random(seed), ""
    while len(found) < size:
        found += " ".join(rng.choices(WORDS, k=9)) + "\n"
    return found[:size]


def notes(opened, *args, **settings):
    return [
        line
        for line in opened(*args, **settings).notes
        if not line.endswith("into training, validation and test")
    ]


LICENCE = "".join(random.Random(9).choices("HEREBY LIABLE\n", k=2500))


def test_validation_on_a_licence_is_told(tmp_path, opened):
    make(tmp_path / "text", {f"{n}.txt": prose(17_500, n) + LICENCE for n in range(3)})
    make(tmp_path, {"a.txt": prose(20_000), "legal.txt": LICENCE})
    lines = notes(opened) + notes(opened, "a.txt", validation="legal.txt")
    assert len(lines) == 2
    for line in lines:
        assert line.startswith("validation is unlike the training text (n-gram loss ")


def test_honest_text_has_no_line(tmp_path, opened):
    make(tmp_path / "text", {f"{n}.txt": prose(20_000, n) for n in range(3)})
    assert opened().notes == ("3 files, each divided 90/5/5 into training, validation and test",)
    make(tmp_path, {"short": prose(2000) + "§" * 300, "equal": "the same line\n" * 4000})
    assert notes(opened, "text") == notes(opened, "short") == notes(opened, "equal") == []


def test_validation_that_repeats_training_is_told(tmp_path, opened):
    whole = "".join(map(chr, np.random.default_rng(0).integers(32, 64, 40_000)))
    make(tmp_path, {"train.txt": whole, "valid.txt": whole[1000:4000]})
    (line,) = notes(opened, "train.txt", validation="valid.txt")
    assert line.startswith("validation repeats passages of the training text (n-gram loss ")
    assert "1 of 1 files" in notes(opened, "train.txt", validation="train.txt")[0]


def test_sorted_lines_are_told_for_themselves(tmp_path, opened):
    words = sorted({prose(12, seed).replace(" ", "").strip() for seed in range(800)})
    make(tmp_path, {"text": "\n".join(words)})
    assert notes(opened) == ["the lines are sorted: data.documents=line shuffles them"]
    assert notes(opened, documents="line") == []
    random.Random(0).shuffle(words)
    make(tmp_path, {"text": "\n".join(words)})
    assert notes(opened) == []


def test_copies_share_a_split(tmp_path, opened):
    texts = {f"{n:02}.txt": f"{n:02}" * 200 + prose(300 + n, n) for n in range(40)}
    for n in range(20):  # with other line ends
        texts[f"copy {n:02}.txt"] = texts[f"{n:02}.txt"].replace("\n", "\r\n")
    make(tmp_path / "text", texts)
    text = opened()
    assert "20 of 60 files are copies of others; copies share a split" in text.notes
    parts = decoded(text).values()
    placed = [tuple(part.count(f"{n:02}" * 200) for part in parts) for n in range(40)]
    assert set(placed[:20]) <= {(2, 0, 0), (0, 2, 0), (0, 0, 2)}
    assert set(placed[20:]) <= {(1, 0, 0), (0, 1, 0), (0, 0, 1)}
    assert all(map(any, zip(*placed, strict=True)))


def test_passages_of_a_copy_are_in_one_split_where_each_file_is_divided(tmp_path, opened):
    whole = "".join(map(chr, np.random.default_rng(1).integers(32, 127, 6000)))
    make(tmp_path / "text", {f"{n}.txt": whole if n % 2 else prose(5000, n) for n in range(6)})
    parts = decoded(opened())
    train, held = parts["train"], parts["validation"]
    assert held.count(whole[5400:5700]) == 3 and train.count(whole[:5400]) == 3
    assert not any(whole[begin : begin + 10] in train for begin in range(5400, 5690))


@pytest.mark.parametrize(
    ("size", "length", "orders"),
    [(2, 40, 7), (3, 300, 7), (65, 400, 7), (40_000, 60, 3), (5, 4, 4)],
)
def test_counting_equals_the_formula(size, length, orders):
    rng = np.random.default_rng(0)
    train, text = (
        rng.integers(0, size, count).astype(np.uint16) // rng.integers(1, 4)
        for count in (length, 90)
    )
    found = ngram_losses(train, text, size)
    expected = [
        ngram_loss(train.tolist(), text.tolist(), size, n, orders) for n in range(1, orders + 1)
    ]
    np.testing.assert_allclose(found, expected, rtol=1e-12)
    assert ngram_losses(train, text[:1], size) == pytest.approx([np.log(size)] * orders)
