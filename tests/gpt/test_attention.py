"""Attention against loops over heads, queries and keys, against torch.nn, and against itself by another kernel."""

import itertools

import numpy as np
import pytest
import torch
from torch import nn

from gpt.attention import Attention
from gpt.config import ModelConfig
from tests.reference.attention import attention
from tests.reference.models import OFFSET, PLACES, fill, tiny, tolerance

CASES = [
    tiny(heads=heads, positions=positions, qk_norm=qk_norm, bias=bias, attention=kernel)
    for heads, positions, qk_norm, bias, kernel in itertools.product(
        (1, 2, 3, 6), ("learned", "rotary"), (False, True), (False, True), ("explicit", "sdpa")
    )
] + [
    *(tiny(dim=9, heads=heads, positions="learned", attention="explicit") for heads in (3, 9)),
    # Heads of 9, 3 and 1 channels: the half that is offset is the smaller one, of one channel none.
    *(tiny(dim=9, heads=heads, positions="learned", key_offset=True) for heads in (1, 3, 9)),
    *OFFSET,
    *PLACES,
]


def name(config: ModelConfig) -> str:
    flags = [flag for flag in ("qk_norm", "key_offset", "bias") if getattr(config, flag)]
    window = [f"window{config.window}of{config.context}"] * (config.window is not None)
    return "-".join([f"{config.heads}of{config.dim}", config.positions, *window, *flags, config.attention])


def build(config: ModelConfig, seed: int = 0) -> Attention:
    """In float64, filled, and without dropout."""
    return fill(Attention(config).double(), seed).eval()


def random(*shape: int, seed: int = 7) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("config", CASES, ids=name)
@pytest.mark.parametrize("time", [1, 5, None])
def test_equals_loops(config: ModelConfig, time: int | None) -> None:
    module, time = build(config), time or config.context
    x = random(2, time, config.dim)
    qkv, proj = (
        (layer.weight.detach().numpy(), None if layer.bias is None else layer.bias.detach().numpy())
        for layer in (module.qkv, module.proj)
    )
    expected = [
        attention(
            row,
            qkv,
            proj,
            config.heads,
            qk_norm=config.qk_norm,
            rotate=config.positions == "rotary",
            alibi=config.positions == "alibi",
            window=config.window,
            key_offset=config.key_offset,
        )
        for row in x.numpy()
    ]
    np.testing.assert_allclose(module(x).detach().numpy(), expected, rtol=0, atol=tolerance(config))


@pytest.mark.parametrize("kernel", ["explicit", "sdpa"])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("heads", [1, 3, 12])
def test_equals_torch_s_multi_head_attention(heads: int, bias: bool, kernel: str) -> None:
    """Weights are copied as they are: the packed projection is in torch's own order."""
    ours = build(tiny(heads=heads, bias=bias, positions="learned", qk_norm=False, attention=kernel))
    theirs = nn.MultiheadAttention(12, heads, bias=bias, batch_first=True, dtype=torch.float64)
    parts = {"in_proj_weight": ours.qkv.weight, "out_proj.weight": ours.proj.weight}
    if bias:
        parts |= {"in_proj_bias": ours.qkv.bias, "out_proj.bias": ours.proj.bias}
    theirs.load_state_dict({key: value.detach() for key, value in parts.items()})

    x, mine = (random(3, 7, 12).requires_grad_() for _ in range(2))
    hidden = torch.ones(7, 7, dtype=torch.bool).triu(1)
    expected, _ = theirs(x, x, x, attn_mask=hidden, need_weights=False)
    out = ours(mine)
    torch.testing.assert_close(out, expected, rtol=0, atol=1e-12)

    seed = random(3, 7, 12, seed=8)
    expected.backward(seed)
    out.backward(seed)
    torch.testing.assert_close(mine.grad, x.grad, rtol=0, atol=1e-11)
    torch.testing.assert_close(ours.qkv.weight.grad, theirs.in_proj_weight.grad, rtol=0, atol=1e-11)
    torch.testing.assert_close(ours.proj.weight.grad, theirs.out_proj.weight.grad, rtol=0, atol=1e-11)
    if bias:
        torch.testing.assert_close(ours.qkv.bias.grad, theirs.in_proj_bias.grad, rtol=0, atol=1e-11)


@pytest.mark.parametrize("positions", ["rotary", "alibi", "none"])
@pytest.mark.parametrize("kernel", ["explicit", "sdpa"])
def test_blocks_have_the_gradients_of_the_whole_band(
    positions: str, kernel: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    results = []
    for least in (16, 1000):  # in three blocks, and as one square with a band in it
        monkeypatch.setattr("gpt.attention.LEAST_BLOCK", least)
        module = build(tiny(heads=3, positions=positions, window=5, context=40, attention=kernel))
        x = random(2, 40, 12).requires_grad_()
        module(x).backward(random(2, 40, 12, seed=9))
        results.append([x.grad, *(parameter.grad for parameter in module.parameters())])
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-11)


@pytest.mark.parametrize("positions", ["learned", "rotary", "alibi", "sinusoidal"])
@pytest.mark.parametrize("qk_norm", [False, True])
@pytest.mark.parametrize("time", [1, 6, 7])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_kernels_agree_forward_and_backward(positions: str, qk_norm: bool, time: int, dtype: torch.dtype) -> None:
    results = {}
    for kernel in ("explicit", "sdpa", "auto"):
        module = build(tiny(heads=3, bias=True, positions=positions, qk_norm=qk_norm, attention=kernel)).to(dtype)
        x = random(2, time, 12).to(dtype).requires_grad_()
        out = module(x)
        out.backward(random(2, time, 12, seed=9).to(dtype))
        results[kernel] = [out, x.grad, *(parameter.grad for parameter in module.parameters())]
    tolerance = 1e-11 if dtype == torch.float64 else 2e-5
    for kernel in ("sdpa", "auto"):
        for one, other in zip(results["explicit"], results[kernel], strict=True):
            torch.testing.assert_close(one, other, rtol=0, atol=tolerance)


@pytest.mark.parametrize("kernel", ["explicit", "sdpa"])
@pytest.mark.parametrize("positions", ["learned", "rotary", "alibi"])
@pytest.mark.parametrize("qk_norm", [False, True])
def test_derivatives(positions: str, qk_norm: bool, kernel: str) -> None:
    window = 2 if positions == "alibi" else None
    module = build(
        tiny(dim=4, context=3, bias=True, window=window, positions=positions, qk_norm=qk_norm, attention=kernel)
    )
    names = [key for key, _ in module.named_parameters()]
    values = [value.detach().clone().requires_grad_() for value in module.parameters()]

    def function(x: torch.Tensor, *values: torch.Tensor) -> torch.Tensor:
        return torch.func.functional_call(module, dict(zip(names, values, strict=True)), (x,))

    assert torch.autograd.gradcheck(function, (random(2, 3, 4).requires_grad_(), *values))


@pytest.mark.parametrize(
    ("time", "changes", "expected"),
    [
        (1023, {}, "explicit"),
        (1024, {}, "sdpa"),
        (1024, {"dropout": 0.1}, "explicit"),
        (1024, {"window": 7}, "explicit"),
        (1024, {"positions": "alibi"}, "sdpa"),
    ],
)
def test_automatic_kernel_on_a_cpu(time: int, changes: dict, expected: str) -> None:
    x, outs = random(1, time, 12), {}
    for kernel in ("auto", "explicit", "sdpa"):
        torch.manual_seed(0)
        config = tiny(**{"context": 1024, "positions": "learned", "attention": kernel, **changes})
        outs[kernel] = build(config).train()(x)
    (other,) = {"explicit", "sdpa"} - {expected}
    assert torch.equal(outs["auto"], outs[expected]) and not torch.equal(outs["auto"], outs[other])


@pytest.mark.parametrize("kernel", ["explicit", "sdpa"])
def test_large_scores_stay_finite(kernel: str) -> None:
    module = build(tiny(qk_norm=False, attention=kernel)).float()
    x = (1e4 * random(1, 7, 12)).float().requires_grad_()
    out = module(x)
    out.sum().backward()
    assert out.isfinite().all() and x.grad.isfinite().all()


@pytest.mark.parametrize("kernel", ["explicit", "sdpa"])
def test_qk_norm_of_zeros_is_finite(kernel: str) -> None:
    module = build(tiny(attention=kernel)).float()
    x = torch.zeros(1, 7, 12, requires_grad=True)
    out = module(x)
    out.sum().backward()
    assert out.isfinite().all() and x.grad.isfinite().all()


@pytest.mark.parametrize("kernel", ["explicit", "sdpa"])
def test_dropout_acts_on_the_weights_in_training_only(kernel: str) -> None:
    """Its mean over draws is the output without it; the first character, with one weight, is kept or lost whole."""
    config = tiny(heads=1, dropout=0.25, positions="learned", qk_norm=False, attention=kernel)
    module, plain = build(config), build(tiny(heads=1, positions="learned", qk_norm=False, attention=kernel))
    x = random(1, 7, 12).expand(4000, 7, 12)
    torch.testing.assert_close(module(x[:2]), plain(x[:2]), rtol=0, atol=0)

    torch.manual_seed(3)
    with torch.no_grad():
        module.train()
        out, expected = module(x), plain(x[:1])
    torch.testing.assert_close(out.mean(0), expected[0], rtol=0, atol=8 * out.std(0).max().item() / 4000**0.5)
    lost = (out[:, 0] == 0).all(-1)
    assert lost.double().mean().item() == pytest.approx(0.25, abs=0.035)
    torch.testing.assert_close(out[~lost][:, 0], (expected[:, 0] / 0.75).expand((~lost).sum(), 12))
    assert not (out[:, 1:] == 0).all(-1).double().mean() > 0.1, "the weights are dropped, not whole characters"


@pytest.mark.parametrize("window", [None, 1, 3, 6])
@pytest.mark.parametrize("positions", ["alibi", "rotary"])
def test_biases_are_made_for_a_few_queries_at_a_time(
    positions: str, window: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where those of all would take too much memory; not while training."""
    module, x = build(tiny(heads=3, dim=24, positions=positions, window=window)).eval(), random(2, 7, 24)
    wanted = module(x)
    for most in (1, 2 * 3 * 7, 5 * 3 * 7):
        monkeypatch.setattr("gpt.attention.MAX_SCORES", most)
        for blocks in (1, 64):
            monkeypatch.setattr("gpt.attention.LEAST_BLOCK", blocks)
            torch.testing.assert_close(module(x), wanted, rtol=1e-12, atol=1e-12)
