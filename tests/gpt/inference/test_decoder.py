"""The KV cache against one forward pass over the whole text, in float64, at every place of ten contexts."""

from functools import cache

import numpy as np
import pytest

import gpt.inference.decoder
from gpt.inference.decoder import Decoder
from gpt.inference.weights import Weights, weights_of
from tests.model_files import filled
from tests.reference import model as reference
from tests.reference.models import MIXED, PLACES, name, tiny

# Options that meet in the cache; each way for places to enter with each kind of window.
CONFIGS = [
    *MIXED[:16], *(config for config in PLACES if config.context == 7), tiny(window=1, conv_taps=2),
    tiny(positions="rotary", context=1, conv_taps=4, key_offset=True, token_shift=True, heads=3),
    tiny(positions="learned", context=1, bias=True, conv_taps=3, key_offset=True, token_shift=True),
    tiny(positions="learned", context=2), tiny(positions="rotary", context=8, heads=1, layers=3, key_offset=True),
]  # fmt: skip
CASES = [
    pytest.param(config, tensors, marks=() if i % 6 == 1 else pytest.mark.slow, id=f"{name(config)}-{library}")
    for library, tensors, chosen in (("numpy", False, CONFIGS), ("torch", True, CONFIGS[1::8]))
    for i, config in enumerate(chosen)
]  # fmt: skip


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch):
    """Texts are read two tokens at a time, and caches grow by two slots: no text here is as long as 256."""
    monkeypatch.setattr(gpt.inference.decoder, "CHUNK", 2)
    monkeypatch.setattr(gpt.inference.decoder, "SPARE", 2)


def weights(config, tensors=False):
    model = filled(config).double()
    return Weights(config, model.state_dict()) if tensors else weights_of(model)


def text(config, seed=3):
    return np.random.default_rng(seed).integers(0, 11, 10 * config.context + 3)


@cache
def expected(config, seed=3):
    """Logits after every token of `text`: (n, V)."""
    return reference.text(filled(config).double().state_dict(), config, text(config, seed))[0]


def same(result, wanted):
    np.testing.assert_allclose(result, wanted, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(("config", "tensors"), CASES)
def test_every_place_equals_one_forward_pass(config, tensors):
    """Texts of many lengths in one batch: their prompts, then a few tokens at once."""
    T = config.context
    lengths = [*range(1, 3 * T + 2), 5 * T + 2, 1]
    rows = [(length, 3 + row % 2) for row, length in enumerate(lengths)]  # with seeds
    ready = weights(config, tensors)
    decoder = Decoder(ready, len(rows))
    logits = decoder.begin([text(config, seed)[:length] for length, seed in rows])
    same(logits, [expected(config, seed)[length - 1] for length, seed in rows])
    k = 0
    while k < 4 * T:
        n = 1 + k % 3
        tokens = [text(config, seed)[length + k :][:n] for length, seed in rows]
        logits = decoder.read(np.array(tokens))
        same(logits, [expected(config, seed)[length + k :][:n] for length, seed in rows])
        k += n
    texts = np.stack([text(config, seed) for seed in (3, 4)])  # all places of a prompt
    same(Decoder(ready, 2).read(texts), [expected(config, seed) for seed in (3, 4)])


@pytest.mark.parametrize("config", CONFIGS, ids=name)
def test_of_a_long_prompt_only_the_end_is_read(config):
    reach = config.layers * (config.attention_window + config.conv_taps - 1) + 2
    most = config.context if config.absolute else reach
    for length in range(1, 10 * config.context):
        assert 0 <= config.first_needed(length) < length <= config.first_needed(length) + most


@pytest.mark.parametrize("config", [CONFIGS[-1], CONFIGS[0]], ids=name)
def test_a_long_text_is_read_in_pieces_that_fit(config, monkeypatch):
    most = 2 * config.heads * config.context * 3
    monkeypatch.setattr(gpt.inference.decoder, "MAX_SCORES", most)
    mask = Decoder.mask
    scores = []  # of each piece

    def recorded(decoder, T):
        scores.append(config.heads * T * (min(decoder.end, config.attention_window) + T))
        return mask(decoder, T)

    monkeypatch.setattr(Decoder, "mask", recorded)
    same(Decoder(weights(config)).read(text(config)[None])[0], expected(config))
    assert max(scores) <= most and len(scores) > 1


@pytest.mark.parametrize(
    ("qk_norm", "scale"), [(True, 0), (False, 100)], ids=["queries of zeros", "large scores"]
)
def test_extremes_stay_finite(qk_norm, scale):
    """QK-norm divides zeros by its epsilon; without it, exponentials of scores would overflow."""
    config = tiny(qk_norm=qk_norm)
    state = {key: scale * value for key, value in weights(config).state.items()}
    assert np.isfinite(Decoder(Weights(config, state)).read(text(config)[None])).all()
