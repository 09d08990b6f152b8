"""What each token, and each character, of a text costs a model, and what it thought more likely."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gpt.evaluate import surprisals


class Costs(NamedTuple):
    """N consecutive tokens or characters of a text.

    Attributes:
        tokens: (M,) int64; M = N where each has one token.
        begins: (N,) int64, where in `tokens` each begins.
        nats: (N,) float64, the surprisal of each.
        likely: (N, K) int64, the K most likely tokens in its place, the best first.
        chances: (N, K) float32, their probabilities; all 0 for the first token of a text, which nothing comes before.
    """

    tokens: Tensor
    begins: Tensor
    nats: Tensor
    likely: Tensor
    chances: Tensor


def costs(predicted: Iterable[tuple[Tensor, Tensor]], first: int, vocabulary: int, likely: int) -> Iterator[Costs]:
    """What each token of a text costs.

    Args:
        predicted: logits (N, V) and targets (N,), in the order of the text; see `gpt.evaluate.predictions`.
        first: the text's first token, which costs ln V.
        vocabulary: V.
        likely: how many of the most likely tokens to name; at most V are.
    """
    likely = min(likely, vocabulary)
    begin, none = torch.zeros(1, dtype=torch.int64), torch.zeros(1, likely)
    yield Costs(torch.tensor([first]), begin, torch.tensor([vocabulary]).double().log(), none.long(), none)
    for logits, targets in predicted:
        best = logits.float().softmax(-1).topk(likely)
        nats = surprisals(logits, targets)
        yield Costs(targets.cpu(), torch.arange(len(nats)), nats, best.indices.cpu(), best.values.cpu())


def by_character(pieces: Iterable[Costs], starts: Tensor, size: int) -> Iterator[Costs]:
    """Put the tokens of each character together: it costs their sum, and what is likely is said of the first.

    Args:
        pieces: what the tokens of a text cost, in its order.
        starts: (V,) whether a token begins a character; others belong to the one before them.
        size: characters in each piece; the last has fewer.
    """
    held: list[Costs] = []
    count = 0
    for piece in pieces:
        held.append(piece)
        count += int(starts[piece.tokens].sum())
        if count <= size:  # one more must have begun to know that the last one is whole
            continue
        tokens, nats, likely, chances = _joined(held)
        begins = _begins(tokens, starts)
        whole = (len(begins) - 1) // size * size
        for place in range(0, whole, size):
            cut = slice(int(begins[place]), int(begins[place + size]))
            yield _characters(tokens[cut], nats[cut], likely[cut], chances[cut], starts)
        rest = slice(int(begins[whole]), None)
        held = [Costs(tokens[rest], tokens[:0], nats[rest], likely[rest], chances[rest])]
        count = int(starts[held[0].tokens].sum())
    yield _characters(*_joined(held), starts)


def letters(costs: Costs, decode: Callable[[Any], str]) -> str:
    """The characters themselves: one code point for each, U+FFFD for bytes that are none.

    Args:
        costs: of N characters.
        decode: tokens to text.
    """
    text = decode(costs.tokens.numpy())
    if len(text) == len(costs.begins):
        return text
    parts = (decode(part.numpy()) for part in costs.tokens.tensor_split(costs.begins[1:]))
    return "".join(part if len(part) == 1 else "\N{REPLACEMENT CHARACTER}" for part in parts)


def _joined(pieces: list[Costs]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    tokens, _, nats, likely, chances = (torch.cat(column) for column in zip(*pieces, strict=True))
    return tokens, nats, likely, chances


def _begins(tokens: Tensor, starts: Tensor) -> Tensor:
    """Where characters begin; the first token begins one even if it is the rest of one."""
    begin = starts[tokens].bool()
    begin[0] = True
    return begin.nonzero()[:, 0]


def _characters(tokens: Tensor, nats: Tensor, likely: Tensor, chances: Tensor, starts: Tensor) -> Costs:
    begins = _begins(tokens, starts)
    sums = torch.zeros(len(begins), dtype=torch.float64)
    owner = torch.bucketize(torch.arange(len(tokens)), begins, right=True) - 1
    return Costs(tokens, begins, sums.index_add(0, owner, nats), likely[begins], chances[begins])
