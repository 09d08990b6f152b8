"""Counting n-grams with dicts, one token at a time."""

import math
from collections import Counter, defaultdict


def ngram_loss(train: list[int], text: list[int], size: int, order: int, highest: int) -> float:
    """Witten and Bell's interpolation (method C), with n-grams counted where one of the highest order begins."""
    followers: dict[tuple[int, ...], Counter[int]] = defaultdict(Counter)
    for start in range(len(train) - highest + 1):
        for length in range(order):
            followers[tuple(train[start : start + length])][train[start + length]] += 1

    def probability(context: tuple[int, ...], token: int) -> float:
        shorter = probability(context[1:], token) if context else 1 / size
        seen = followers.get(context)
        if not seen:
            return shorter
        n, k = sum(seen.values()), len(seen)
        return (seen[token] + k * shorter) / (n + k)

    costs = [math.log(size)]
    costs += [-math.log(probability(tuple(text[max(0, t - order + 1) : t]), text[t])) for t in range(1, len(text))]
    return sum(costs) / len(costs)
