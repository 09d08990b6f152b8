"""N-grams and copies, one token at a time."""

import math
from collections import Counter, defaultdict


def ngram_loss(train, text, size, order, highest):
    """Witten and Bell's interpolation (method C), with n-grams counted where one of the highest order begins."""
    followers = defaultdict(Counter)
    for start in range(len(train) - highest + 1):
        for length in range(order):
            followers[tuple(train[start : start + length])][train[start + length]] += 1

    def probability(context, token):
        shorter = probability(context[1:], token) if context else 1 / size
        seen = followers.get(context)
        if not seen:
            return shorter
        n, k = sum(seen.values()), len(seen)
        return (seen[token] + k * shorter) / (n + k)

    costs = [math.log(size)]
    costs += [
        -math.log(probability(tuple(text[max(0, t - order + 1) : t]), text[t]))
        for t in range(1, len(text))
    ]
    return sum(costs) / len(costs)


def longest_copy(text, trained):
    """The longest common substring (Gusfield 1997, section 11.6).

    max L(i, j), where L(i, j) = L(i - 1, j - 1) + 1 if text_i = trained_j, else 0.
    """
    longest, before = 0, [0] * (len(trained) + 1)
    for token in text:
        row = [0] + [before[j] + 1 if token == other else 0 for j, other in enumerate(trained)]
        longest, before = max(longest, *row), row
    return longest
