import itertools

import numpy as np
import pytest
import torch
from torch import nn

from gpt.attention import Attention
from gpt.attention_kernels import choose_kernel, explicit_attention
from gpt.config import ModelConfig
from tests.reference.attention import attention
from tests.reference.models import SOME, fill, name, normal, tiny, tolerance

KERNELS = "explicit", "sdpa"
# Heads of 9, 3 and 1 channels: the half that is offset is the smaller one, of one channel none.
ODD = [tiny(dim=9, heads=n, positions="learned", key_offset=offset) for n in (1, 3, 9) for offset in (False, True)]


def build(config: ModelConfig) -> Attention:
    return fill(Attention(config).double()).eval()


def numpy_weights(layer: nn.Linear) -> tuple:
    return layer.weight.detach().numpy(), None if layer.bias is None else layer.bias.detach().numpy()


def test_equals_loops() -> None:
    for config in SOME + ODD:
        module = build(config)
        for time in (1, 5, config.context):
            x = normal(2, time, config.dim)
            expected = [
                attention(
                    row, numpy_weights(module.qkv), numpy_weights(module.proj), config.heads,
                    qk_norm=config.qk_norm, rotate=config.positions == "rotary", alibi=config.positions == "alibi",
                    window=config.window, key_offset=config.key_offset,
                    taps=[tap.detach().numpy() for tap in module.taps],
                )
                for row in x.numpy()
            ]  # fmt: skip
            found = module(x).detach().numpy()
            np.testing.assert_allclose(found, expected, rtol=0, atol=tolerance(config), err_msg=name(config))


def test_equals_torch_s_multi_head_attention() -> None:
    for heads, kernel in itertools.product((1, 3, 12), KERNELS):
        ours = build(tiny(heads=heads, bias=True, positions="learned", qk_norm=False, attention=kernel))
        theirs = nn.MultiheadAttention(12, heads, batch_first=True, dtype=torch.float64)
        parts = {"in_proj_": ours.qkv, "out_proj.": ours.proj}
        theirs.load_state_dict({key + each: value for key in parts for each, value in parts[key].state_dict().items()})
        x, hidden = normal(3, 7, 12), torch.ones(7, 7, dtype=torch.bool).triu(1)
        expected, _ = theirs(x, x, x, attn_mask=hidden, need_weights=False)
        torch.testing.assert_close(ours(x), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("kernel", KERNELS)
def test_blocks_have_the_gradients_of_the_whole_band(kernel: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for positions in ("rotary", "alibi", "none"):
        results = []
        for least in (16, 1000):  # in three blocks, and as one square with a band in it
            monkeypatch.setattr("gpt.attention_kernels.MIN_BLOCK", least)
            module = build(tiny(heads=3, positions=positions, window=5, context=40, attention=kernel))
            x = normal(2, 40, 12).requires_grad_()
            module(x).backward(normal(2, 40, 12, seed=9))
            results.append([x.grad, *(parameter.grad for parameter in module.parameters())])
        for one, other in zip(*results, strict=True):
            torch.testing.assert_close(one, other, rtol=0, atol=1e-11)


def test_automatic_kernel_on_a_cpu() -> None:
    for time, changes, expected in (
        (1023, {}, "explicit"), (1024, {}, "sdpa"), (1024, {"dropout": 0.1}, "explicit"),
        (1024, {"window": 7}, "explicit"), (1024, {"positions": "alibi"}, "sdpa"),
    ):  # fmt: skip
        x, outs = normal(1, time, 12), {}
        for kernel in ("auto", *KERNELS):
            torch.manual_seed(0)
            config = tiny(**{"context": 1024, "positions": "learned", "attention": kernel, **changes})
            outs[kernel] = build(config).train()(x)
        same = [kernel for kernel in KERNELS if torch.equal(outs["auto"], outs[kernel])]
        assert same == [expected], (time, changes)
    for training in (True, False):
        assert (choose_kernel(tiny(), 1000, "cpu", training)[0] is explicit_attention) == training


def test_large_scores_and_queries_of_zeros_stay_finite() -> None:
    for kernel, (qk_norm, scale) in itertools.product(KERNELS, ((False, 1e4), (True, 0))):
        module = build(tiny(qk_norm=qk_norm, attention=kernel)).float()
        x = (scale * normal(1, 7, 12)).float().requires_grad_()
        out = module(x)
        out.sum().backward()
        assert out.isfinite().all() and x.grad.isfinite().all(), qk_norm


CASES = [("explicit", "learned", None), ("sdpa", "learned", None), ("explicit", "alibi", None), ("sdpa", "none", 3)]


@pytest.mark.parametrize(("kernel", "positions", "window"), CASES)
def test_dropout_acts_on_the_weights_in_training_only(kernel: str, positions: str, window: int | None) -> None:
    """Its mean over draws is the output without it; the first character, with one weight, is kept or lost whole."""
    time = 40 if window else 7  # several blocks
    config = {"heads": 1, "qk_norm": False, "attention": kernel, "positions": positions, "window": window}
    module, plain = (build(tiny(dropout=dropout, context=time, **config)) for dropout in (0.25, 0.0))
    x = normal(1, time, 12).expand(4000, time, 12)
    torch.testing.assert_close(module(x[:2]), plain(x[:2]), rtol=0, atol=0)
    torch.manual_seed(3)
    with torch.no_grad():
        out, expected = module.train()(x), plain(x[:1])
    torch.testing.assert_close(out.mean(0), expected[0], rtol=0, atol=8 * out.std(0).max().item() / 4000**0.5)
    lost = (out[:, 0] == 0).all(-1)
    assert lost.double().mean().item() == pytest.approx(0.25, abs=0.035)
    torch.testing.assert_close(out[~lost][:, 0], (expected[:, 0] / 0.75).expand((~lost).sum(), 12))
    assert not (out[:, 1:] == 0).all(-1).double().mean() > 0.1, "the weights are dropped, not whole characters"


def test_biases_are_made_for_a_few_queries_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    cases, x = itertools.product(("alibi", "rotary"), (None, 1, 3, 6)), normal(2, 7, 24)
    modules = [build(tiny(heads=3, dim=24, positions=positions, window=window)) for positions, window in cases]
    wanted = [module(x) for module in modules]
    for most in (1, 2 * 3 * 7, 5 * 3 * 7):
        monkeypatch.setattr("gpt.attention_kernels.MAX_SCORES", most)
        for blocks in (1, 64):
            monkeypatch.setattr("gpt.attention_kernels.MIN_BLOCK", blocks)
            torch.testing.assert_close([module(x) for module in modules], wanted, rtol=1e-12, atol=1e-12)
