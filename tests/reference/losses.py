"""Losses, one character at a time."""

import math
from collections.abc import Iterable, Sequence

import numpy as np


def surprisal(logits: Sequence[float], target: int) -> float:
    """-ln p(target), p = softmax(logits), in nats: -(z_target - ln sum_j exp(z_j))."""
    largest = max(logits)
    return largest + math.log(sum(math.exp(z - largest) for z in logits)) - float(logits[target])


def totals(
    windows: Iterable[tuple[np.ndarray, np.ndarray, np.ndarray]], characters: Sequence[int], sizes: Sequence[int]
) -> tuple[float, int, int, int]:
    """(nats, tokens, characters, bytes) over the counted targets of windows of (logits, targets, counted)."""
    nats, tokens, letters, octets = [], 0, 0, 0
    for logits, targets, counted in windows:
        for b in range(len(targets)):
            for t in range(len(targets[b])):
                if counted[b][t]:
                    target = int(targets[b][t])
                    nats.append(surprisal(np.asarray(logits[b][t], dtype=np.float64), target))
                    tokens, letters, octets = tokens + 1, letters + characters[target], octets + sizes[target]
    return math.fsum(nats), tokens, letters, octets
