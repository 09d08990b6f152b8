"""The KV cache against one forward pass over the whole text, in float64, at every place of ten contexts."""

import itertools
import sys
import tracemalloc
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch

import gpt.decode
from gpt.config import ModelConfig
from gpt.decode import Decoder, Weights, gelu, load_weights
from gpt.generate import needed
from gpt.model import GPT
from tests.model_files import write_model_file
from tests.reference import model as reference
from tests.reference.models import OFFSET, SHIFT, fill, name, tiny

V = 11
# Every option, those that meet in the cache in every combination.
CONFIGS = [
    tiny(
        positions=positions, key_offset=offset, token_shift=shift, qk_norm=qk_norm, heads=3,
        norm=("layernorm", "rmsnorm")[i % 2], bias=i % 3 == 0, tied=i % 5 == 0,
        activation="gelu" if i % 7 == 3 else "relu2",
    )
    for i, (positions, offset, shift, qk_norm) in enumerate(
        itertools.product(("learned", "rotary"), (False, True), (False, True), (False, True))
    )
] + [
    tiny(positions="rotary", context=1, key_offset=True, token_shift=True, heads=3),
    tiny(positions="learned", context=1, key_offset=True, token_shift=True),
    *(
        tiny(
            positions=positions, window=window, key_offset=offset, token_shift=offset, qk_norm=i % 4 < 2, heads=3,
            norm=("layernorm", "rmsnorm")[i % 2], bias=i % 3 == 0, tied=i % 5 == 0,
        )
        for i, (window, offset, positions) in enumerate(
            itertools.product(
                (None, 3, 1, 20), (False, True), ("alibi", "sinusoidal", "none", "learned", "rotary")
            )
        )
        if window or positions not in ("learned", "rotary")  # those are above
    ),
    tiny(positions="learned", context=2), tiny(positions="rotary", context=8, heads=1, layers=3, key_offset=True),
]  # fmt: skip
EVERY = pytest.mark.parametrize("config", CONFIGS, ids=lambda config: f"{name(config)}-{config.context}")


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Caches that begin with two slots and grow, tables of two places: no text here is as long as those of 256."""
    monkeypatch.setattr(gpt.decode, "PIECE", 2)


def build(config: ModelConfig) -> GPT:
    return fill(GPT(config, V)).double().eval()


def weights(config: ModelConfig, module: ModuleType = gpt.decode, tensors: bool = False) -> Weights:
    state = build(config).state_dict()
    if tensors:
        return module.Weights(config, state)
    return module.Weights(config, {key: value.numpy() for key, value in state.items()})


def text(config: ModelConfig, seed: int = 3) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, V, 10 * config.context + 3)


@cache
def _expected(key: str, seed: int) -> np.ndarray:
    config = ModelConfig(**dict(eval(key)))  # noqa: S307 - a dataclass is no key for a cache
    model, tokens = build(config), text(config, seed)
    if not config.absolute:  # one forward pass, a band of `context` places
        return reference.gpt(model.state_dict(), config, tokens[None], window=config.span)[0]
    # The window rule written out: start over with the last half whenever the context is full.
    logits, start = [], 0
    while len(logits) < len(tokens):
        window = tokens[start : start + config.context]
        logits.extend(reference.gpt(model.state_dict(), config, window[None])[0, len(logits) - start :])
        start = len(logits) - config.context // 2
    return np.array(logits)


def expected(config: ModelConfig, seed: int = 3) -> np.ndarray:
    """Logits after every token of `text`: (n, V)."""
    return _expected(repr(sorted(vars(config).items())), seed)


def same(result: np.ndarray, wanted: np.ndarray) -> None:
    np.testing.assert_allclose(result, wanted, rtol=1e-10, atol=1e-10)


def check(config: ModelConfig, module: ModuleType = gpt.decode, tensors: bool = False) -> None:
    """Token by token, and after prompts that end before, at and beyond the border of the context."""
    T, tokens, wanted = config.context, text(config), expected(config)
    for prompt in sorted({0, 1, T // 2, T - 1, T, T + 1, 2 * T, 5 * T + 2}):
        decoder = module.Decoder(weights(config, module, tensors))
        if prompt:
            same(decoder.read(tokens[None, :prompt])[0], wanted[:prompt])
        for t in range(prompt, len(tokens)):
            same(decoder.step(tokens[t : t + 1])[0], wanted[t])


@EVERY
def test_every_place_equals_one_forward_pass(config: ModelConfig) -> None:
    check(config)


@pytest.mark.parametrize("config", CONFIGS[::5], ids=lambda config: f"{name(config)}-{config.context}")
def test_torch_decodes_as_numpy_does(config: ModelConfig) -> None:
    check(config, tensors=True)


@EVERY
def test_texts_of_different_lengths_side_by_side(config: ModelConfig) -> None:
    """Each as if it were alone, whatever its neighbours, while some are beyond the context and others are not."""
    T = config.context
    lengths = [1, T + 2, max(1, T // 2), 4 * T, 1]
    decoder = Decoder(weights(config), len(lengths))
    texts = [text(config, seed) for seed in range(len(lengths))]
    for length in set(lengths):
        rows = np.array([row for row, each in enumerate(lengths) if each == length])
        logits = decoder.read(np.stack([texts[row][:length] for row in rows]), rows)
        for row, result in zip(rows, logits, strict=True):
            same(result, expected(config, int(row))[:length])
    k = 0
    while k < 4 * T:
        n = 1 + k % 3  # one token at a time, and a few at once
        tokens = np.array([each[length + k : length + k + n] for each, length in zip(texts, lengths, strict=True)])
        logits = decoder.step(tokens[:, 0])[:, None] if n == 1 else decoder.read(tokens)
        for row, length in enumerate(lengths):
            same(logits[row], expected(config, row)[length + k : length + k + n])
        k += n


@EVERY
def test_a_long_prompt_is_read_from_where_it_matters(config: ModelConfig) -> None:
    tokens, wanted, ready = text(config), expected(config), weights(config)
    for length in range(1, len(tokens) + 1):
        start = needed(ready, length)
        held = config.context if config.absolute else config.layers * config.span + 2
        assert 0 <= start < length and length - start <= held
        same(Decoder(ready).read(tokens[None, start:length])[0, -1], wanted[length - 1])


@pytest.mark.parametrize("config", [CONFIGS[-1], CONFIGS[0]], ids=name)
def test_pieces_that_fit_into_memory(config: ModelConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpt.decode, "MOST_SCORES", 2 * config.heads * config.context * 3)
    same(Decoder(weights(config)).read(text(config)[None])[0], expected(config))


@pytest.mark.parametrize("positions", ["sinusoidal", "rotary", "alibi", "none"])
def test_a_long_context_takes_memory_as_text_is_read(positions: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpt.decode, "PIECE", 256)
    config = tiny(positions=positions, context=2**20, heads=3)
    ready = weights(config)
    tracemalloc.start()
    decoder = Decoder(ready)
    logits = [*decoder.read(text(tiny())[None, :20])[0], *(decoder.step(np.array([k % V])) for k in range(600))]
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert most < 2**24 and len(logits) == 620 and decoder.slots == 1024


@pytest.mark.parametrize("config", OFFSET[::3] + SHIFT[::3], ids=name)
def test_the_context_itself_in_single_precision(config: ModelConfig) -> None:
    """As the model in training computes it, rotary tables and all."""
    model = fill(GPT(config, V)).eval()
    tokens = text(config)[: config.context]
    state = {key: value.numpy() for key, value in model.state_dict().items()}
    single = Weights(config, state)
    with torch.no_grad():
        wanted = model(torch.from_numpy(tokens)[None])[0].numpy()
    assert np.abs(Decoder(single).read(tokens[None])[0] - wanted).max() < 2e-4 * np.abs(wanted).max()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("activation", ["relu2", "gelu"])
def test_weights_of_a_file_are_those_of_the_model(tmp_path: Path, dtype: torch.dtype, activation: str) -> None:
    config = tiny(activation=activation, heads=3, key_offset=True, token_shift=True, tied=True)
    model = fill(GPT(config, V)).to(dtype)
    opened, meta = load_weights(write_model_file(tmp_path / "x.safetensors", model, step=3))
    assert meta["step"] == 3 and opened.config == config
    state = {key: value.float() for key, value in model.state_dict().items()}
    direct = Weights(config, {key: value.numpy() for key, value in state.items()})
    tokens = text(config)[None]
    assert np.array_equal(Decoder(opened).read(tokens), Decoder(direct).read(tokens))


MUTATIONS = [
    ("place % S)", "(place + 1) % S)"),
    ("filled, bias = min(place + 1, S), None", "filled, bias = min(place, S) or 1, None"),
    ("filled, bias = min(place + 1, S), None", "filled, bias = S, None"),
    ("newest = self.slots - place % S", "newest = 0"),
    ("-np.arange(2.0 * slots) % slots", "np.arange(2.0 * slots) % slots"),
    ("filled, 2 * self.slots), S)", "filled, 2 * self.slots), 2)"),
    ("(each, more), axis=2)", "(more, each), axis=2)"),
    ("distance = (place[:, None] - slots) % S", "distance = place[:, None] - slots"),
    ("bias - w.slopes * ", "bias + w.slopes * "),
    ("exponents += [4 * (2 * h + 1) / below", "exponents += [4 * (2 * h + 2) / below"),
    ("k[:, -S:]", "k[:, :S]"),
    ("[..., : self.config.dim] / self.config.dim**0.5", "[..., : self.config.dim]"),
    ("keys[rest] = self.moved[i]", "keys[rest] = k[:, 0, :, self.own :]"),
    ("                self.moved[i] = k[:, 0, :, self.own :]\n", ""),
    ("self.moved[i][row] = moved[:, -1]", "self.moved[i][row] = moved[:, 0]"),
    ("self.place[full], self.before[full] = 0, -1", "self.place[full] = 0"),
    ("moved[self.weights.integers(full)] = 0", "pass"),
    ("T - T // 2 :]", "T // 2 :]"),
    ("(distance < S)", "(distance <= S)"),
    ("& (key_places >= 0)[:, None]", ""),
    ("newest - (newest - np.arange(held)) % S", "newest - np.arange(held)"),
    ("held = min(int(self.place[rows].max()), S)", "held = min(int(self.place[rows].max()), S - 1)"),
    ("self.keys[i][row[:, None], :, slots] = k[:, -S:]", "pass"),
    ("self.place[rows] += tokens.shape[1]", "self.place[rows] += 1"),
    ("self.before[rows] = tokens[:, -1]", "self.before[rows] = tokens[:, 0]"),
    ("values[at] = v[:, 0]", "values[at] += v[:, 0]"),
    ("+ w.eps", ""),
    ("if places // PIECE != self.block", "if self.block < 0"),
    ("(place == place[0]).all()", "True"),
]


def check_all(
    old: str, new: str, mutant: ModuleType, monkeypatch: pytest.MonkeyPatch, others: list[ModelConfig] = CONFIGS
) -> None:
    """The tests above on a decoder in whose source `old` is replaced."""
    source = Path(gpt.decode.__file__).read_text("utf-8").replace("PIECE = 256", "PIECE = 4")
    exec(compile(source.replace(old, new), "mutant.py", "exec"), mutant.__dict__)
    monkeypatch.setattr(sys.modules[__name__], "Decoder", mutant.Decoder)
    with np.errstate(all="ignore"):
        zeros(mutant)
        for config in [*CONFIGS[1::6], *others]:  # a few of all kinds first, which fail sooner
            check(config, mutant)
            test_texts_of_different_lengths_side_by_side(config)


@pytest.mark.slow
def test_what_finds_faults_finds_none(mutant: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    check_all("", "", mutant, monkeypatch, [])


@pytest.mark.slow
@pytest.mark.parametrize(("old", "new"), MUTATIONS, ids=lambda text: text.strip()[:40])
def test_a_fault_in_the_cache_is_seen(old: str, new: str, mutant: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of these lines matters: with another in its place, a test above fails."""
    assert old in Path(gpt.decode.__file__).read_text("utf-8")
    with pytest.raises((AssertionError, IndexError)):
        check_all(old, new, mutant, monkeypatch)


@pytest.fixture
def mutant() -> Iterator[ModuleType]:
    module = ModuleType("mutant")
    sys.modules["mutant"] = module
    yield module
    del sys.modules["mutant"]


def zeros(module: ModuleType) -> None:
    """Queries and keys of zeros, which QK-norm divides by its epsilon."""
    config = tiny(qk_norm=True)
    state = {key: 0 * value.numpy() for key, value in build(config).state_dict().items()}
    assert np.isfinite(module.Decoder(module.Weights(config, state)).read(text(config)[None])).all()


def test_gelu_is_torch_s() -> None:
    x = np.concatenate([np.linspace(-40, 40, 100_001), [0.0, -0.0, 9.0, -9.0, 1e30, -1e30]])
    wanted = torch.nn.functional.gelu(torch.from_numpy(x)).numpy()
    np.testing.assert_allclose(gelu(x), wanted, rtol=1e-12, atol=1e-13)
    single = gelu(x.astype(np.float32))
    assert single.dtype == np.float32 and (np.abs(single - wanted) <= 1e-6 * np.maximum(1, np.abs(x))).all()


def test_queries_of_zeros_are_numbers() -> None:
    zeros(gpt.decode)
