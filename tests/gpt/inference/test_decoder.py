"""The KV cache against one forward pass over the whole text, in float64, at every place of ten contexts."""

import itertools
from functools import cache

import numpy as np
import pytest
import torch

import gpt.inference.decoder
from gpt.inference.decoder import Decoder, gelu
from gpt.inference.weights import Weights
from gpt.model import GPT
from tests.reference import model as reference
from tests.reference.models import MIXED, fill, name, tiny

V = 11
# Options that meet in the cache; each kind of place with no window, one shorter than the context,
# of one place, longer.
CONFIGS = MIXED[:16] + [
    tiny(
        positions=positions, window=window, key_offset=i % 3 != 0, token_shift=i % 3 != 1, qk_norm=i % 4 < 2, heads=3,
        norm=("layernorm", "rmsnorm")[i % 2], bias=i % 3 == 0, tied=i % 5 == 0,
        conv_taps=(1, 2, 4)[i // 2 % 3],
    )
    for i, (window, positions) in enumerate(
        itertools.product((None, 3, 1, 20), ("sinusoidal", "none", "learned", "rotary"))
    )
] + [
    tiny(positions="rotary", context=1, conv_taps=4, key_offset=True, token_shift=True, heads=3),
    tiny(positions="learned", context=1, bias=True, conv_taps=3, key_offset=True, token_shift=True),
    tiny(positions="learned", context=2), tiny(positions="rotary", context=8, heads=1, layers=3, key_offset=True),
]  # fmt: skip
EACH = pytest.mark.parametrize(
    "config",
    [
        config if i % 6 == 1 else pytest.param(config, marks=pytest.mark.slow)
        for i, config in enumerate(CONFIGS)
    ],
    ids=name,
)


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch):
    """Texts are read two tokens at a time, and caches grow by two slots: no text here is as long as 256."""
    monkeypatch.setattr(gpt.inference.decoder, "CHUNK", 2)
    monkeypatch.setattr(gpt.inference.decoder, "SPARE", 2)


def build(config):
    return fill(GPT(config, V)).double().eval()


def weights(config, tensors=False):
    state = build(config).state_dict()
    return Weights(
        config, state if tensors else {key: value.numpy() for key, value in state.items()}
    )


def text(config, seed=3):
    return np.random.default_rng(seed).integers(0, V, 10 * config.context + 3)


@cache
def expected(config, seed=3):
    """Logits after every token of `text`: (n, V)."""
    return reference.text(build(config).state_dict(), config, text(config, seed))[0]


def same(result, wanted):
    np.testing.assert_allclose(result, wanted, rtol=1e-10, atol=1e-10)


def check(config, tensors=False):
    T, tokens, wanted = config.context, text(config), expected(config)
    for prompt in sorted({0, 1, T // 2, T - 1, T, T + 1, 2 * T, 5 * T + 2}):
        decoder = Decoder(weights(config, tensors))
        if prompt:
            same(decoder.read(tokens[None, :prompt])[0], wanted[:prompt])
        for t in range(prompt, min(len(tokens), prompt + 2 * T) if prompt else len(tokens)):
            same(decoder.read(tokens[None, t : t + 1])[0, 0], wanted[t])


@EACH
def test_every_place_equals_one_forward_pass(config):
    check(config)


@pytest.mark.parametrize("config", CONFIGS[1::8], ids=name)
def test_every_place_equals_one_forward_pass_by_torch(config):
    check(config, tensors=True)


@EACH
def test_texts_of_different_lengths_side_by_side(config):
    T = config.context
    lengths = [1, T + 2, max(1, T // 2), 4 * T, 1]
    texts = [text(config, seed) for seed in range(len(lengths))]
    for length in set(lengths):  # prompts of one length, all places of all rows
        logits = Decoder(weights(config), len(texts)).read(
            np.stack([each[:length] for each in texts])
        )
        for row, result in enumerate(logits):
            same(result, expected(config, row)[:length])
    decoder = Decoder(weights(config), len(lengths))
    logits = decoder.begin([each[:length] for each, length in zip(texts, lengths, strict=True)])
    for row, length in enumerate(lengths):
        same(logits[row], expected(config, row)[length - 1])
    k = 0
    while k < 4 * T:
        n = 1 + k % 3  # one token at a time, and a few at once
        parts = [slice(length + k, length + k + n) for length in lengths]
        tokens = np.array([texts[row][part] for row, part in enumerate(parts)])
        logits = decoder.read(tokens)
        for row, part in enumerate(parts):
            same(logits[row], expected(config, row)[part])
        k += n


@pytest.mark.slow
@pytest.mark.parametrize("config", CONFIGS, ids=name)
def test_a_long_prompt_is_read_from_where_it_matters(config):
    tokens, wanted, ready = text(config), expected(config), weights(config)
    reach = config.layers * (config.attention_window + config.conv_taps - 1) + 2
    held = config.context if config.absolute else reach
    for length in range(1, len(tokens) + 1):
        start = config.first_needed(length)
        assert 0 <= start < length and length - start <= held, length
        same(Decoder(ready).read(tokens[None, start:length])[0, -1], wanted[length - 1])


@pytest.mark.parametrize("config", [CONFIGS[-1], CONFIGS[0]], ids=name)
def test_a_long_text_is_read_in_pieces_that_fit(config, monkeypatch):
    most = 2 * config.heads * config.context * 3
    monkeypatch.setattr(gpt.inference.decoder, "MAX_SCORES", most)
    same(Decoder(weights(config)).read(text(config)[None])[0], expected(config))


@pytest.mark.parametrize(
    ("qk_norm", "scale"), [(True, 0), (False, 100)], ids=["queries of zeros", "large scores"]
)
def test_extremes_stay_finite(qk_norm, scale):
    """QK-norm divides zeros by its epsilon; without it, exponentials of scores would overflow."""
    config = tiny(qk_norm=qk_norm)
    state = {key: scale * value.numpy() for key, value in build(config).state_dict().items()}
    assert np.isfinite(Decoder(Weights(config, state)).read(text(config)[None])).all()


def test_gelu_is_that_of_torch():
    x = np.concatenate([np.linspace(-40, 40, 100_001), [0.0, -0.0, 9.0, -9.0, 1e30, -1e30]])
    wanted = torch.nn.functional.gelu(torch.from_numpy(x)).numpy()
    np.testing.assert_allclose(gelu(x), wanted, rtol=1e-12, atol=1e-13)
    single = gelu(x.astype(np.float32))
    assert single.dtype == np.float32
    assert (np.abs(single - wanted) <= 1e-6 * np.maximum(1, np.abs(x))).all()
