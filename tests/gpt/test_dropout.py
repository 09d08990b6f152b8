import pytest
import torch

from gpt.dropout import Dropout, dropout


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("shape", [(1,), (3, 5), (4, 8, 16), (0, 3)], ids=str)
def test_values_and_their_gradients_are_lost_or_scaled(dtype, shape):
    x = (torch.rand(shape) + 1).to(dtype).requires_grad_()
    torch.manual_seed(0)
    out = dropout(x, 0.25)
    assert out.shape == x.shape and out.dtype == dtype
    kept = out != 0
    torch.testing.assert_close(out[kept], (x.double() / 0.75).to(dtype)[kept])
    out.sum().backward()
    torch.testing.assert_close(x.grad, kept.to(dtype) / 0.75)


def test_a_share_of_nearly_one_loses_not_quite_all():
    torch.manual_seed(1)
    assert 0 < (dropout(torch.ones(1_000_000), 1 - 1e-9) != 0).sum() < 60


@pytest.mark.parametrize("p", [0.1, 0.9])
def test_the_four_values_of_a_word_are_lost_independently_and_of_those_of_the_next(p):
    torch.manual_seed(2)
    lost = (dropout(torch.ones(1_000_001, 4), p) == 0).double() - p  # (N, 4)
    both = torch.cat((lost[:-1], lost[1:]), dim=1)  # (N - 1, 8)
    correlation = (both.T @ both) / len(both) / (p * (1 - p))  # on its diagonal also the share
    assert (correlation - torch.eye(8, dtype=torch.float64)).abs().max().item() < 1e-2


def test_each_call_draws_anew_and_nothing_is_drawn_for_nothing():
    x = torch.ones(1000)
    assert not dropout(x, 0.5).equal(dropout(x, 0.5))
    assert dropout(x, 0.0) is x and Dropout(0.5).eval()(x) is x
