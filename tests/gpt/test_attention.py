import pytest
import torch

from gpt.attention import Attention
from tests.reference.models import fill, normal, tiny

KERNELS = "explicit", "sdpa"


def build(config):
    return fill(Attention(config).double()).eval()


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("positions", ["rotary", "none"])
@pytest.mark.parametrize("window", [1, 5, 39])
def test_blocks_have_the_gradients_of_the_whole_band(kernel, positions, window, monkeypatch):
    """Three blocks, and one square with a band in it."""
    options = {"positions": positions, "window": window, "attention": kernel}
    module = build(tiny(heads=3, context=40, **options))

    def results(least):
        monkeypatch.setattr("gpt.attention.MIN_BLOCK", least)
        module.zero_grad()
        x = normal(2, 40, 12).requires_grad_()
        out = module.train()(x)
        out.backward(normal(2, 40, 12, seed=9))
        gradients = [parameter.grad for parameter in module.parameters()]
        return [out, module.eval()(x), x.grad, *gradients]

    torch.testing.assert_close(results(16), results(1000), rtol=0, atol=1e-11)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize(
    ("qk_norm", "scale"), [(False, 1e4), (True, 0)], ids=["large scores", "queries of zeros"]
)
def test_extremes_stay_finite(kernel, qk_norm, scale):
    module = build(tiny(qk_norm=qk_norm, attention=kernel)).float()
    x = (scale * normal(1, 7, 12)).float().requires_grad_()
    out = module(x)
    out.sum().backward()
    assert out.isfinite().all() and x.grad.isfinite().all()


CASES = [
    ("explicit", "learned", None),
    ("sdpa", "learned", None),
    ("explicit", "rotary", 3),
    ("sdpa", "none", 3),
]


@pytest.mark.parametrize(("kernel", "positions", "window"), CASES)
def test_dropout_acts_on_the_weights_in_training_only(kernel, positions, window):
    """Its mean over draws is the output without it; the first character, with one weight, is kept or lost whole."""
    time = 40 if window else 7  # several blocks
    config = {
        "heads": 1,
        "qk_norm": False,
        "attention": kernel,
        "positions": positions,
        "window": window,
    }
    module, plain = (
        build(tiny(dropout=dropout, context=time, **config)) for dropout in (0.25, 0.0)
    )
    x = normal(1, time, 12).expand(4000, time, 12)
    torch.testing.assert_close(module(x[:2]), plain(x[:2]), rtol=0, atol=0)
    torch.manual_seed(3)
    with torch.no_grad():
        out, expected = module.train()(x), plain(x[:1])
    torch.testing.assert_close(
        out.mean(0), expected[0], rtol=0, atol=8 * out.std(0).max().item() / 4000**0.5
    )
    lost = (out[:, 0] == 0).all(-1)
    assert lost.double().mean().item() == pytest.approx(0.25, abs=0.035)
    torch.testing.assert_close(out[~lost][:, 0], (expected[:, 0] / 0.75).expand((~lost).sum(), 12))
    assert not (out[:, 1:] == 0).all(-1).double().mean() > 0.1, (
        "the weights are dropped, not whole characters"
    )
