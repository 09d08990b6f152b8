import math
from collections.abc import Iterator
from itertools import product

import numpy as np
import pytest
import torch
from torch import Tensor

from gpt.analysis import Costs, by_character, costs
from tests.reference.losses import surprisal

V = 7


def predicted(count: int, batch: int) -> Iterator[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(3)
    logits = 4 * torch.randn(count, V, generator=generator)
    targets = torch.randint(V, (count,), generator=generator)
    yield from zip(logits.split(batch), targets.split(batch), strict=True)


@pytest.mark.parametrize(("batch", "likely"), [(1, 3), (3, 50), (20, 3)])
def test_costs_are_those_of_a_loop(batch: int, likely: int) -> None:
    first, *rest = costs(predicted(20, batch), 4, V, likely)
    assert first.tokens.tolist() == [4] and first.nats.tolist() == [pytest.approx(math.log(V), rel=1e-15)]
    assert first.probabilities.tolist() == [[0] * min(likely, V)]
    (logits, targets), *_ = predicted(20, 20)
    tokens, nats, best, chances = (
        torch.cat([getattr(each, key) for each in rest]) for key in ("tokens", "nats", "top", "probabilities")
    )
    assert tokens.tolist() == targets.tolist() and nats.dtype == torch.float64
    for i, row in enumerate(logits.tolist()):
        assert nats[i].item() == pytest.approx(surprisal(row, int(targets[i])), abs=1e-5)
        order = sorted(range(V), key=lambda token: -row[token])[:likely]
        assert best[i].tolist() == order
        assert chances[i].tolist() == pytest.approx([math.exp(-surprisal(row, token)) for token in order], abs=1e-6)


@pytest.mark.parametrize(("first", "batch", "size"), [*product((0, 5), (1, 4, 100), (1, 2, 5, 1000))])
def test_characters_are_the_sums_of_their_tokens(first: int, batch: int, size: int) -> None:
    """Tokens 0 to 2 begin a character, the others go on with it; a text may begin with one of these."""
    rng = np.random.default_rng(first)
    tokens = [first, *rng.integers(0, V, 60).tolist()]
    nats = rng.random(61).tolist()
    starts = torch.tensor([1, 1, 1, 0, 0, 0, 0])

    def pieces() -> Iterator[Costs]:
        for i in range(0, 61, batch):
            part = torch.tensor(tokens[i : i + batch])
            marks = torch.arange(i, i + len(part))[:, None]
            yield Costs(part, torch.arange(len(part)), torch.tensor(nats[i : i + batch]).double(), marks, marks.float())

    groups: list[list[int]] = []
    for i, token in enumerate(tokens):
        if i == 0 or token < 3:
            groups.append([])
        groups[-1].append(i)
    found, seen, lengths = [], 0, []
    for piece in by_character(pieces(), starts, size):
        lengths.append(len(piece.nats))
        ends = [*piece.begins.tolist()[1:], len(piece.tokens)]
        for k, (begin, end) in enumerate(zip(piece.begins.tolist(), ends, strict=True)):
            group = list(range(seen + begin, seen + end))
            assert piece.tokens[begin:end].tolist() == [tokens[i] for i in group]
            assert piece.nats[k].item() == pytest.approx(math.fsum(nats[i] for i in group), abs=1e-6)
            assert piece.top[k].tolist() == [group[0]] == piece.probabilities[k].tolist()
            found.append(group)
        seen += len(piece.tokens)
    assert found == groups
    assert lengths == [size] * ((len(groups) - 1) // size) + [(len(groups) - 1) % size + 1]
