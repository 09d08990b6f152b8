"""Rotary positions against complex numbers and against what they are for."""

import math

import numpy as np
import pytest
import torch

from gpt.positions import rotary_tables, rotate
from tests.reference.positions import rotary


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("size", [2, 4, 6, 16])
@pytest.mark.parametrize("base", [10000.0, 50.0])
def test_rotation_is_the_paper_s(size: int, base: float) -> None:
    x = random(2, 3, 9, size)
    cos, sin = rotary_tables(9, size, base)
    expected = np.array([[rotary(head.numpy(), base) for head in row] for row in x])
    np.testing.assert_allclose(rotate(x, cos.double(), sin.double()).numpy(), expected, rtol=0, atol=3e-6)


def test_tables_hold_the_angles() -> None:
    cos, sin = rotary_tables(300, 8)
    assert cos.shape == sin.shape == (300, 4)
    for t in (0, 1, 17, 299):
        for i in range(4):
            angle = t * 10000 ** (-2 * i / 8)
            assert cos[t, i].item() == pytest.approx(math.cos(angle), abs=3e-5)
            assert sin[t, i].item() == pytest.approx(math.sin(angle), abs=3e-5)


def test_base_is_ten_thousand_unless_given() -> None:
    for table, same, other in zip(
        rotary_tables(5, 8), rotary_tables(5, 8, 10000.0), rotary_tables(5, 8, 9.0), strict=True
    ):
        assert torch.equal(table, same)
        assert not torch.allclose(table, other)


def test_first_character_is_not_turned_and_no_length_changes() -> None:
    x = random(1, 2, 6, 8)
    turned = rotate(x, *(table.double() for table in rotary_tables(6, 8)))
    torch.testing.assert_close(turned[:, :, 0], x[:, :, 0], rtol=0, atol=0)
    torch.testing.assert_close(turned.norm(dim=-1), x.norm(dim=-1), rtol=1e-6, atol=0)
    assert not torch.allclose(turned[:, :, 1:], x[:, :, 1:])


def test_scores_depend_on_the_distance_alone() -> None:
    q, k = random(8, seed=1), random(8, seed=2)
    tables = [table.double() for table in rotary_tables(12, 8)]
    turned_q, turned_k = (rotate(each.expand(1, 1, 12, 8), *tables)[0, 0] for each in (q, k))
    scores = turned_q @ turned_k.T
    for offset in range(-11, 12):
        diagonal = scores.diagonal(offset)
        torch.testing.assert_close(diagonal, diagonal[:1].expand_as(diagonal), rtol=0, atol=3e-6)
    assert scores[0].std() > 0.1
