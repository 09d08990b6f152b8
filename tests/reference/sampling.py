"""From logits to the probabilities that a sampler draws from, one character at a time."""

import math
from collections.abc import Sequence

import numpy as np


def probabilities(logits: Sequence[float], temperature: float = 1.0, top_k: int | None = None) -> np.ndarray:
    """p_i = exp(z_i / T) / sum_j exp(z_j / T) over the k largest, else 0 (top-k: Fan et al., arXiv:1805.04833)."""
    order = sorted(range(len(logits)), key=lambda i: -logits[i])
    kept = order[: 1 if temperature == 0 else top_k]
    result = np.zeros(len(logits))
    for i in kept:
        result[i] = math.exp((logits[i] - logits[order[0]]) / (temperature or 1.0))
    return result / result.sum()


def chi_square(counts: Sequence[int], expected: Sequence[float]) -> float:
    """P-value of Pearson's statistic sum (n - e)^2 / e, by the approximation of Wilson and Hilferty (1931)."""
    pairs = [(n, e) for n, e in zip(counts, expected, strict=True) if e > 0]
    statistic, freedom = sum((n - e) ** 2 / e for n, e in pairs), len(pairs) - 1
    z = ((statistic / freedom) ** (1 / 3) - (1 - 2 / (9 * freedom))) / math.sqrt(2 / (9 * freedom))
    return 0.5 * math.erfc(z / math.sqrt(2))
