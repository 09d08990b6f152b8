"""Dropout from shared random bits, against what it promises and against torch's own."""

import pytest
import torch
import torch.nn.functional as F

from gpt.dropout import Dropout, dropout

SHAPES = [(1,), (3, 5), (4, 8, 16), (2, 2, 7, 7)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
def test_values_are_lost_or_scaled(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    x = torch.rand(shape).to(dtype) + 1
    torch.manual_seed(0)
    out = dropout(x, 0.25)
    assert out.shape == x.shape and out.dtype == dtype
    kept = out != 0
    torch.testing.assert_close(out[kept], (x.double() / 0.75).to(dtype)[kept])


@pytest.mark.parametrize("p", [0.001, 0.1, 0.5, 0.9])
def test_the_share_is_met(p: float) -> None:
    """Within four standard deviations, as is torch's own."""
    x = torch.ones(1_000_000)
    torch.manual_seed(1)
    for drop in (dropout, F.dropout):
        assert (drop(x, p) == 0).double().mean().item() == pytest.approx(p, abs=4 * (p * (1 - p) / 1e6) ** 0.5)


def test_values_that_share_a_word_are_lost_independently() -> None:
    """Correlation of each of the four places with the others and with the next word's, over a million words."""
    torch.manual_seed(2)
    lost = (dropout(torch.ones(1_000_001, 4), 0.3) == 0).double() - 0.3  # (N, 4)
    both = torch.cat((lost[:-1], lost[1:]), dim=1)  # (N - 1, 8)
    correlation = (both.T @ both) / len(both) / 0.21
    off = correlation - torch.eye(8, dtype=torch.float64)
    assert off.abs().max().item() < 5e-3
    assert lost.mean(0).abs().max().item() < 2e-3


def test_the_gradient_passes_where_the_value_did() -> None:
    x = torch.rand(40, 50, requires_grad=True)
    out = dropout(x, 0.4)
    out.sum().backward()
    assert x.grad is not None
    assert torch.equal(x.grad != 0, out != 0)
    torch.testing.assert_close(x.grad[out != 0], torch.full_like(x.grad[out != 0], 1 / 0.6))


def test_the_generator_decides() -> None:
    x = torch.ones(1000)
    outs = []
    for seed in (5, 5, 6):
        torch.manual_seed(seed)
        outs.append(dropout(x, 0.5))
    assert torch.equal(outs[0], outs[1]) and not torch.equal(outs[0], outs[2])


def test_nothing_is_drawn_for_nothing() -> None:
    x, state = torch.rand(10), torch.get_rng_state()
    assert dropout(x, 0.0) is x
    assert Dropout(0.5).eval()(x) is x
    assert torch.equal(state, torch.get_rng_state())
    assert not torch.equal(Dropout(0.5)(x), x)


def test_the_highest_share_keeps_the_rare_one() -> None:
    out = dropout(torch.ones(1_000_000), 1 - 1e-9)
    assert 0 < (out != 0).sum() < 60


def test_empty() -> None:
    assert dropout(torch.empty(0, 3), 0.5).shape == (0, 3)
