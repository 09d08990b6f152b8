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


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("window", [None, 3])
def test_dropout_acts_on_the_weights_in_training_only(kernel, window):
    """The first character, with one weight, is kept or lost whole; of the others hardly any is lost."""
    time = 40 if window else 7  # several blocks
    options = {"context": time, "attention": kernel, "window": window}
    module = build(tiny(heads=1, dropout=0.25, **options))
    x = normal(1, time, 12).expand(4000, time, 12)
    expected = module(x[:1])[0]
    torch.manual_seed(3)
    out = module.train()(x)
    lost = (out == 0).all(-1).double().mean(0)  # share of each place
    assert lost[0].item() == pytest.approx(0.25, abs=0.035) and lost[1:].mean() < 0.1
    kept = out[out[:, 0].any(-1), 0]
    torch.testing.assert_close(kept, (expected[0] / 0.75).expand_as(kept))
    error = (out.mean(0) - expected).abs().max()
    assert error < 8 * out.std(0).max() / 4000**0.5
