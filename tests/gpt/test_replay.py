"""A step that is recorded and replayed against NumPy's decoder: the same tokens, and the logits to 1e-9."""

import gc
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

from gpt import capture, replay
from gpt.config import ModelConfig
from gpt.decode import Weights
from gpt.generate import Drawing, draw, generate, probabilities, side_by_side, stream
from gpt.model import GPT
from tests.gpt.test_generate import RULES
from tests.reference.capture import record
from tests.reference.models import PLACES, SOME, fill, name, tiny

V = 11
# Decoding knows one kernel of attention only. Besides: a context of one place, and ALiBi with offset keys and a window.
CONFIGS = list({repr(each): each for each in (replace(config, attention="auto") for config in SOME + PLACES)}.values())
CONFIGS += [
    tiny(positions=each, context=1, key_offset=True, token_shift=True, heads=3)
    for each in ("rotary", "learned")
    for positions in ("rotary", "learned")
]
CONFIGS += [tiny(positions="alibi", window=window, key_offset=True, qk_norm=False, heads=3) for window in (None, 3)]
CUDA = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA GPU here")


@cache
def pair(key: str) -> tuple[Weights, Weights]:
    config = ModelConfig(**dict(eval(key)))  # noqa: S307 - a dataclass is no key for a cache
    state = fill(GPT(config, V)).double().state_dict()
    return Weights(config, {name: value.numpy() for name, value in state.items()}), Weights(config, state)


def weights(config: ModelConfig) -> tuple[Weights, Weights]:
    """The same in float64 as NumPy arrays and as tensors."""
    return pair(repr(sorted(vars(config).items())))


def prompts(lengths: list[int]) -> list[np.ndarray]:
    return [np.random.default_rng(length).integers(0, V, length) for length in lengths]


def written(
    ready: Weights, given: list[np.ndarray], count: int, recorder: Callable | None = None, **rules: Any
) -> tuple[np.ndarray, np.ndarray]:
    """Tokens and logits of a stream: (count, B), (count, B, V)."""
    tokens, logits = zip(*stream(ready, given, count, Drawing(**rules), range(len(given)), recorder), strict=True)
    return np.array(tokens), np.array(logits)


def check(config: ModelConfig, lengths: list[int], count: int, **rules: Any) -> None:
    arrays, tensors = weights(config)
    wanted, result = (
        written(ready, prompts(lengths), count, recorder, **rules)
        for ready, recorder in ((arrays, None), (tensors, record))
    )
    np.testing.assert_allclose(result[1], wanted[1], rtol=1e-9, atol=1e-9)
    assert np.array_equal(result[0], wanted[0])


def check_lengths(config: ModelConfig) -> None:
    """Prompts that end before, at and beyond the border of the context, side by side; and one; in several chunks."""
    T = config.context
    check(config, [1, T, T + 2, max(1, T // 2), 5 * T + 1], max(T + 2, replay.CHUNK + 3))
    check(config, [max(1, T - 1)], 2 * T + 3)


@pytest.fixture
def chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks that end in the middle of a text of a tiny model."""
    monkeypatch.setattr(replay, "CHUNK", 9)


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: f"{name(config)}-{config.context}")
def test_texts_are_numpy_s(config: ModelConfig, chunks: None) -> None:
    check_lengths(config)


@pytest.mark.parametrize("config", [tiny(), tiny(positions="learned", key_offset=True, heads=3)], ids=name)
@pytest.mark.parametrize(
    "rules",
    [
        {"temperature": 0.0},
        {"temperature": 0.0, "repetition_penalty": 1.5},
        {"temperature": 0.6, "top_k": 4, "top_p": 0.9, "min_p": 0.05, "repetition_penalty": 1.3},
    ],
    ids=lambda rules: "-".join(rules),
)
def test_texts_are_drawn_as_numpy_draws(config: ModelConfig, rules: dict, chunks: None) -> None:
    """What has occurred counts, in the prompt too."""
    check(config, [3, 20, 1], 25, **rules)


@pytest.mark.parametrize("rules", RULES, ids=lambda rules: "-".join(str(value) for value in rules.values()))
def test_every_rule_draws_what_numpy_draws(rules: dict) -> None:
    rng = np.random.default_rng(5)
    logits, seen, numbers = rng.normal(0, 3, (200, 7)), rng.random((200, 7)) < 0.4, rng.random(200)
    logits[::4] = logits[::4].round()  # many are equal
    wanted = draw(probabilities(logits, Drawing(**rules), seen), numbers)
    result = replay.draw(torch.from_numpy(logits), Drawing(**rules), torch.from_numpy(numbers), torch.from_numpy(seen))
    assert result.dtype == torch.int64 and result.tolist() == wanted.tolist()


@pytest.mark.parametrize("temperature", [1e-3, 1e-38, 1e-307])
def test_nearly_greedy_is_greedy(temperature: float) -> None:
    logits = 1000 * torch.randn(50, 7, generator=torch.Generator().manual_seed(3))
    drawn = replay.draw(logits, Drawing(temperature=temperature), torch.rand(50).double(), logits > 0)
    assert torch.equal(drawn, logits.argmax(-1))


def test_what_is_no_number_draws_a_token() -> None:
    """On a GPU an index out of range would end the process."""
    drawn = replay.draw(torch.full((1, 5), torch.nan), Drawing(), torch.tensor([0.5]).double(), torch.zeros(1, 5) > 0)
    assert 0 <= drawn.item() < 5


@pytest.mark.parametrize("config", [tiny(key_offset=True, token_shift=True, heads=3), tiny(tied=True)], ids=name)
def test_single_precision(config: ModelConfig, chunks: None) -> None:
    state = fill(GPT(config, V)).state_dict()
    arrays = Weights(config, {name: value.numpy() for name, value in state.items()})
    given = prompts([3, 9])
    (tokens, logits), (wanted_tokens, wanted) = (
        written(ready, given, 20, recorder) for ready, recorder in ((Weights(config, state), record), (arrays, None))
    )
    assert np.array_equal(tokens, wanted_tokens)
    assert logits.dtype == np.float64 and 0 < np.abs(logits - wanted).max() < 1e-3 * np.abs(wanted).max()


def test_recorded_once_however_long_the_text_is(chunks: None) -> None:
    recordings = []

    def counted(work: Callable[[], None]) -> Callable[[], None]:
        recordings.append(work)
        return record(work)

    written(weights(tiny(positions="learned"))[1], prompts([2, 4]), 40, counted)
    assert len(recordings) == 1


def test_what_was_yielded_stays(chunks: None) -> None:
    """The buffers on the device are written again in the next chunk."""
    ready = weights(tiny())[1]
    tokens, logits = next(first := stream(ready, prompts([3]), 30, Drawing(), [0], record))
    kept = tokens.copy(), logits.copy()
    assert len(list(first)) == 29
    assert np.array_equal(tokens, kept[0]) and np.array_equal(logits, kept[1])


def test_memory_goes_with_the_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    """At once, not when Python looks for circles: what is left of it is memory of the GPU."""
    held = []
    plain = replay.Texts.__init__
    monkeypatch.setattr(replay.Texts, "__init__", lambda self, *a: (held.append(weakref.ref(self)), plain(self, *a))[1])
    gc.disable()
    try:
        texts = stream(weights(tiny())[1], prompts([3]), 30, Drawing(), [0], record)
        next(texts)
        assert held[0]() is not None
        texts.close()
        assert held[0]() is None
    finally:
        gc.enable()


def test_deterministic_mode_is_left_as_it_was(chunks: None) -> None:
    """Sums in order have no deterministic way on a GPU, says torch; of one row after the other they need none."""

    def checked(work: Callable[[], None]) -> Callable[[], None]:
        assert not torch.are_deterministic_algorithms_enabled()
        return record(work)

    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        for _ in stream(weights(tiny())[1], prompts([3]), 12, Drawing(), [0], checked):
            assert (
                torch.are_deterministic_algorithms_enabled() and torch.is_deterministic_algorithms_warn_only_enabled()
            )
    finally:
        torch.use_deterministic_algorithms(False)


def test_a_gpu_does_as_many_texts_as_fit_one_part_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    ready = Weights(tiny(), fill(GPT(tiny(), V)).state_dict())
    monkeypatch.setattr(ready, "cuda", True)
    cache = 2 * 2 * 7 * 12 * 4  # bytes of a text: keys and values, layers, places, channels, four bytes each
    for free, rows, sizes in (
        (2**34, 1000, [1000]),
        (2**34, 2048, [1024, 1024]),
        (4 * 10 * cache, 25, [8, 9, 8]),
        (0, 2, [1, 1]),
    ):
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device, free=free: (free, 2**37))
        threads = set()

        def work(part: slice, threads: set = threads) -> Iterator[range]:
            threads.add(threading.get_ident())
            yield range(part.start, part.stop)

        parts = list(side_by_side(work, rows, ready))
        assert [len(part) for part in parts] == sizes and len(threads) == 1
        assert [row for part in parts for row in part] == list(range(rows))


MUTATIONS = [
    ("S + 8 * config.key_offset", "S"),
    ("places % R, (places + 1) % R", "places % R, places % R"),
    ("np.where(places < R, R - 1 - places, 3 * R - 2 - places % R)", "R - 1 - places % R"),
    ("np.where(places < R, R - 1 - places, 3 * R - 2 - places % R)", "3 * R - 2 - places % R"),
    ("(distance >= 0) & (distance < S)", "distance >= 0"),
    ("(distance >= 0) & (distance < S)", "distance < S"),
    ("-fall * ", "fall * "),
    ("moved & np.array([[True], [False]])", "moved & np.array([[True], [True]])"),
    ("moved & np.array([[True], [False]])", "moved & np.array([[False], [False]])"),
    ("keys[row, :, place % R, decoder.own :] = decoder.moved[i]", "pass"),
    ("held % self.weights.config.span, held % R", "held % R, held % R"),
    ("self.before[row] = self._put(tokens[:, -1])", "pass"),
    ("self.before[self._put(full)] = len(self.weights.embedding)", "pass"),
    ("self.before.copy_(tokens)", "pass"),
    ("self.k += 1", "pass"),
    ("self.k.zero_()", "pass"),
    ("T - T // 2 :]", "T // 2 :]"),
    ("[:, steps:]", "[:, : config.context]"),
    ("self.place += steps", "pass"),
    ("config.context - int(self.place.max())", "config.context"),
    ("self._plan(done, steps)", "self._plan(0, steps)"),
    ("slot, following, on_strip, place = self.where.index_select(0, self.k)[0]",
     "slot, following, on_strip, place = self.where[int(self.place[0]) % 9]"),
    ("self.numbers.index_select(0, self.k)[0]", "self.numbers[int(self.place[0]) % 9]"),
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(("old", "new"), [("", ""), *MUTATIONS], ids=lambda text: text.strip()[:40])
def test_a_fault_in_the_step_is_seen(old: str, new: str, monkeypatch: pytest.MonkeyPatch, chunks: None) -> None:
    """Each of these lines matters: with another in its place, texts are not NumPy's."""
    source = Path(replay.__file__).read_text("utf-8")
    assert old in source
    mutant = ModuleType("gpt.replay")
    exec(compile(source.replace(old, new) if old else source, "mutant.py", "exec"), mutant.__dict__)
    mutant.CHUNK = replay.CHUNK
    monkeypatch.setitem(sys.modules, "gpt.replay", mutant)
    monkeypatch.setattr("gpt.replay", mutant)

    def check_some() -> None:
        for config in (
            CONFIGS[-1],
            CONFIGS[-3],
            CONFIGS[0],
            tiny(key_offset=True, token_shift=True, heads=3),
            *CONFIGS[1::9],
        ):
            check_lengths(config)

    if not old:
        return check_some()
    with pytest.raises((AssertionError, IndexError, RuntimeError)):
        check_some()


@CUDA
@pytest.mark.parametrize("config", CONFIGS[::3], ids=lambda config: f"{name(config)}-{config.context}")
def test_a_gpu_writes_what_numpy_writes(config: ModelConfig, chunks: None) -> None:
    arrays, _ = weights(config)
    state = {key: value.cuda() for key, value in fill(GPT(config, V)).double().state_dict().items()}
    T = config.context
    given = prompts([1, T, T + 2, max(1, T // 2), 5 * T + 1])
    wanted, result = (written(ready, given, 2 * T + 30) for ready in (arrays, Weights(config, state)))
    np.testing.assert_allclose(result[1], wanted[1], rtol=1e-9, atol=1e-9)
    assert np.array_equal(result[0], wanted[0])


@CUDA
@pytest.mark.parametrize("deterministic", [False, True])
def test_a_gpu_generates_what_a_cpu_does(deterministic: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Many rows, in deterministic mode too, and no memory is left behind."""
    model = fill(GPT(tiny(heads=3, key_offset=True, token_shift=True), V)).double()
    prompt = torch.arange(5).expand(40, 5)
    wanted = generate(model, prompt, 100, seed=1, top_p=0.9)
    model.cuda()
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(deterministic, warn_only=True)
    try:
        assert torch.equal(generate(model, prompt, 100, seed=1, top_p=0.9), wanted)
        held = torch.cuda.memory_allocated()
        generate(model, prompt, 100, seed=1)
        assert torch.cuda.memory_allocated() == held
    finally:
        torch.use_deterministic_algorithms(False)


@CUDA
def test_a_gpu_records_a_step() -> None:
    recordings = []

    def counted(work: Callable[[], None]) -> Callable[[], None]:
        recordings.append(work)
        return capture.record(work)

    state = {key: value.cuda() for key, value in fill(GPT(tiny(), V)).state_dict().items()}
    written(Weights(tiny(), state), prompts([3]), 200, counted)
    assert len(recordings) == 1
