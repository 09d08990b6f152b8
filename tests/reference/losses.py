"""Losses, one character at a time."""

import math


def surprisal(logits, target):
    """-ln p(target), p = softmax(logits), in nats: -(z_target - ln sum_j exp(z_j))."""
    largest = max(logits)
    return largest + math.log(sum(math.exp(z - largest) for z in logits)) - float(logits[target])


def read_by_document(documents, end, context, stride):
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
