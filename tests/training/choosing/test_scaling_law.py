import csv
import itertools
import math
from pathlib import Path

import numpy as np
import pytest

from gpt.config import ModelConfig
from gpt.model import untrained
from training.choosing.scaling_law import DROPOUTS, LEARNED, predicted_loss, tokens_needed

CHARACTERS = {"tiny, 90/10": 1_003_854, "200 KB of tiny, 90/10": 180_000}  # of training


def slow(weights: float, dropout: float, text: float, seen: float) -> float:
    """The formula of docs/experiments.md, number by number."""
    epochs = seen / text
    new = epochs if epochs <= 1 else 1 + 40 * (1 - math.exp(-(epochs - 1) / 40))
    usable = 2e6 * (text / 1e6) ** 0.36
    size = math.sqrt(1 / weights + 1 / usable) * (1 + 2 * dropout)
    memorised = 0.00022 * epochs**1.8 * (weights / text) ** 1.41 / (1 + 50 * dropout)
    return 80 * (size + 44 * (text * new) ** -0.7) + memorised


@pytest.mark.parametrize("dropout", DROPOUTS)
@pytest.mark.parametrize("epochs", [0.1, 1.0, 7.0, 80.0])
@pytest.mark.parametrize(("weights", "text"), [(2e5, 2e4), (8e5, 1e6), (1e7, 1e8)])
def test_the_law_is_the_formula(
    weights: float, text: float, epochs: float, dropout: float
) -> None:
    predicted = predicted_loss(int(weights), dropout, int(text), epochs * text)
    assert predicted == pytest.approx(slow(weights, dropout, text, epochs * text))


@pytest.mark.parametrize(
    ("weights", "dropout", "text"), [(805_376, 0.0, 180_000), (1_797_888, 0.1, 1_003_854)]
)
def test_a_text_is_learned_before_its_loss_rises(weights: int, dropout: float, text: int) -> None:
    needed = tokens_needed(weights, dropout, text)
    losses = predicted_loss(weights, dropout, text, needed * np.geomspace(0.5, 50, 500))
    at_end = float(predicted_loss(weights, dropout, text, needed))
    assert losses.min() <= at_end <= losses.min() + LEARNED + 1e-6
    assert losses[0] > at_end and losses[-1] > at_end + 0.1


def test_the_page_says_how_many_runs_the_law_orders() -> None:
    table = Path("docs/experiments/repetition.csv").read_text(encoding="utf-8")
    runs = []
    for row in csv.DictReader(table.splitlines()):
        if not row["machine"].startswith("A") or row["weight_decay"] != "0.1":
            continue
        text, dim = CHARACTERS[row["text"]], int(row["dim"])
        weights = untrained(ModelConfig(dim=dim, heads=dim // 64), 65).num_parameters()
        seen = float(row["epochs"]) * text
        predicted = float(predicted_loss(weights, float(row["dropout"]), text, seen))
        runs.append((row["text"], predicted, float(row["last loss"])))
    pairs = []
    for run, other in itertools.combinations(runs, 2):
        text, predicted, loss = run
        other_text, other_predicted, other_loss = other
        if text == other_text and abs(loss - other_loss) > 0.01:
            pairs.append((predicted - other_predicted, loss - other_loss))
    right = sum(by_law * measured > 0 for by_law, measured in pairs)
    said = f"{right} of {len(pairs)} pairs"
    assert right > len(pairs) / 2
    assert said in Path("docs/experiments.md").read_text(encoding="utf-8"), said
