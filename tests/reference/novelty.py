"""The longest common substring of two sequences, by the table of common suffixes."""

from collections.abc import Sequence


def longest_copy(text: Sequence[int], trained: Sequence[int]) -> int:
    """max L(i, j), where L(i, j) = L(i - 1, j - 1) + 1 if text_i = trained_j, else 0 (Gusfield 1997, section 11.6)."""
    longest, before = 0, [0] * (len(trained) + 1)
    for token in text:
        row = [0] + [before[j] + 1 if token == other else 0 for j, other in enumerate(trained)]
        longest, before = max(longest, *row), row
    return longest
