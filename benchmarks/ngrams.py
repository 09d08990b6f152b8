"""The loss of counting n-grams on the built-in corpus, as a yardstick: `python benchmarks/ngrams.py --order 5`.

Orders are interpolated as by Witten and Bell (1991): a context seen n times with k different next characters gives
weight k / (n + k) to the next shorter context. Below the shortest, all characters are equally likely.
"""

import argparse
import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from data.config import DataConfig  # noqa: E402
from data.open_text import open_text  # noqa: E402


def keys(tokens: np.ndarray, order: int, size: int) -> np.ndarray:
    """Return a number for each run of `order` tokens, (N - order + 1,) int64."""
    found = np.zeros(len(tokens) - order + 1, np.int64)
    for offset in range(order):
        found = found * size + tokens[offset : offset + len(found)]
    return found


def count(known: np.ndarray, counts: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """Look up the counts of `wanted`, 0 where a run was not seen."""
    at = np.searchsorted(known, wanted).clip(max=len(known) - 1)
    return np.where(known[at] == wanted, counts[at], 0)


def loss(train: np.ndarray, text: np.ndarray, order: int, size: int) -> float:
    """Return nats per token of `text` under n-grams of `train`; the first `order` - 1 tokens are not counted."""
    chance = np.full(len(text) - order + 1, 1 / size)
    for length in range(1, order + 1):
        known, counts = np.unique(keys(train, length, size), return_counts=True)
        contexts, first, kinds = np.unique(known // size, return_index=True, return_counts=True)
        seen = np.add.reduceat(counts, first)
        wanted = keys(text[order - length :], length, size)
        number, different = count(contexts, seen, wanted // size), count(contexts, kinds, wanted // size)
        here = (count(known, counts, wanted) + different * chance) / np.maximum(number + different, 1)
        chance = np.where(number > 0, here, chance)
    return float(-np.log(chance).mean())


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--order", type=int, default=5)
    highest = parser.parse_args().order
    corpus = open_text(DataConfig(), 256)
    train, validation = (np.asarray(split, np.int64) for split in (corpus.train, corpus.validation))
    for n in range(1, highest + 1):
        print(f"{n}-grams: {loss(train, validation, n, corpus.tokenizer.size):.4f} nats per character")
