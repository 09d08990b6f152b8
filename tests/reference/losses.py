"""Losses, one character at a time."""

import math
from collections.abc import Sequence


def surprisal(logits: Sequence[float], target: int) -> float:
    """-ln p(target), p = softmax(logits), in nats: -(z_target - ln sum_j exp(z_j))."""
    largest = max(logits)
    return largest + math.log(sum(math.exp(z - largest) for z in logits)) - float(logits[target])


def read_by_document(
    documents: Sequence[tuple[int, ...]], end: tuple[int, ...], context: int, stride: int
) -> list[tuple[tuple[int, ...], int]]:
    """(tokens that the model reads before it, token) for each token of documents, whose end marks belong to them.

    The model reads the end mark, then as many whole documents as fit. A longer document is read in
    pieces.
    """
    found, waiting, mark = [], list(documents), end[-context:]
    while waiting:
        whole = mark + waiting.pop(0)
        # the last token is not read
        while waiting and len(whole) + len(waiting[0]) <= context + 1:
            whole += waiting.pop(0)
        for place in range(len(mark), len(whole)):
            begin = 0
            while place - begin > context:
                begin += stride
            found.append((whole[begin:place], whole[place]))
    return found


def shannon_bounds(needed: Sequence[int], most: int, size: int) -> tuple[float, float]:
    """Bounds of the bits per character, from the number of guesses that each character needed.

    sum_i i (q_i - q_(i+1)) log2 i <= H <= -sum_i q_i log2 q_i, with q_1 >= q_2 >= ... the
    frequencies of the numbers (Shannon, Prediction and Entropy of Printed English, 1951, equation
    17). What a miss would have needed is unknown: the smallest lower bound has it at the next
    guess, the largest upper bound evenly at any of `size` characters.
    """
    share = [sum(n == i for n in needed) / len(needed) for i in range(1, most + 1)]
    missed = sum(n > most for n in needed) / len(needed)
    q = [*sorted([*share, missed], reverse=True), 0.0]
    lower = sum((i + 1) * (q[i] - q[i + 1]) * math.log2(i + 1) for i in range(most + 1))
    rest = [missed / size] * size if missed else []
    return lower, sum(-each * math.log2(each) for each in [*share, *rest] if each)
