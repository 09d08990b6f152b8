"""Sampling against loops: the probabilities, the draws by their frequencies, the greedy path by each character."""

import itertools
import threading
from collections.abc import Iterator

import numpy as np
import pytest
import torch

from gpt.config import ModelConfig
from gpt.generate import Drawing, draw, generate, log_probabilities, probabilities, side_by_side, stream, weights_of
from gpt.model import GPT
from tests.reference import model as reference
from tests.reference import sampling
from tests.reference.models import PLACES, SOME, fill, name, tiny

CONFIGS = [tiny(), tiny(positions="learned", norm="layernorm", bias=True, attention="sdpa"), tiny(tied=True, layers=1)]


def build(config, vocabulary: int = 11, seed: int = 0) -> GPT:
    return fill(GPT(config, vocabulary), seed).eval()


def random(*shape: int, seed: int = 7) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def following(model: GPT, text: list[int]) -> np.ndarray:
    """Logits after a text of any length by NumPy's model and the window rule of gpt/decode.py, written out."""
    config, T = model.config, model.config.context
    if config.positions in ("rotary", "alibi", "none"):
        return reference.gpt(model.state_dict(), config, np.array([text]), window=min(config.window or T, T))[0, -1]
    start = 0
    while len(text) - start > T:
        start += T - T // 2
    return reference.gpt(model.state_dict(), config, np.array([text[start:]]))[0, -1]


# Probabilities

RULES = [
    dict(zip(("temperature", "top_k", "top_p", "min_p", "repetition_penalty"), values, strict=True))
    for values in itertools.product(
        (0.0, 0.05, 0.7, 1.0, 3.0), (None, 1, 3, 1000), (1.0, 0.9, 0.3), (0.0, 0.05, 1.0), (1.0, 1.3, 0.5)
    )
]


@pytest.mark.parametrize("rows", [1, 4])
def test_probabilities_equal_loops(rows: int) -> None:
    """Each rule alone and all of them together, against one logit at a time."""
    logits = 3 * random(rows, 7).double().numpy()
    seen = random(rows, 7, seed=1).numpy() > 0
    for rules in RULES:
        expected = [
            sampling.probabilities(row.tolist(), **rules, seen=set(np.flatnonzero(was).tolist()))
            for row, was in zip(logits, seen, strict=True)
        ]
        result = probabilities(logits, Drawing(**rules), seen)
        np.testing.assert_allclose(result, expected, rtol=1e-12, atol=1e-15, err_msg=str(rules))


def test_each_rule_changes_something() -> None:
    """So that the loops above have something to be equal about."""
    logits = 3 * random(1, 7).double().numpy()
    seen = np.ones((1, 7), bool)
    plain = probabilities(logits, Drawing(), seen)
    for rule in ({"temperature": 0.7}, {"top_k": 3}, {"top_p": 0.9}, {"min_p": 0.05}, {"repetition_penalty": 1.3}):
        assert np.abs(probabilities(logits, Drawing(**rule), seen) - plain).max() > 1e-3, rule


def test_defaults_are_the_softmax() -> None:
    logits = random(5, 9).double()
    np.testing.assert_allclose(probabilities(logits.numpy(), Drawing()), logits.softmax(-1).numpy(), rtol=1e-13)
    np.testing.assert_allclose(log_probabilities(logits.numpy()), logits.log_softmax(-1).numpy(), rtol=1e-12)


def test_logits_are_not_changed() -> None:
    logits = random(3, 7).double().numpy()
    kept = logits.copy()
    for rules in RULES:
        probabilities(logits, Drawing(**rules), np.ones((3, 7), bool))
    assert np.array_equal(logits, kept)


@pytest.mark.parametrize("top_k", [1, 2, 3])
def test_ties_leave_exactly_k(top_k: int) -> None:
    """An untrained head that is all zeros: top_k=1 is still greedy."""
    result = probabilities(np.zeros((2, 5)), Drawing(top_k=top_k))
    assert ((result > 0).sum(-1) == top_k).all()
    np.testing.assert_allclose(result.sum(-1), 1)


@pytest.mark.parametrize("temperature", [1e-3, 1e-38, 1e-307])
@pytest.mark.parametrize("top_k", [None, 3])
def test_nearly_greedy_is_finite(temperature: float, top_k: int | None) -> None:
    logits = 50 * random(4, 7).double().numpy()
    result = probabilities(logits, Drawing(temperature=temperature, top_k=top_k))
    np.testing.assert_allclose(result, probabilities(logits, Drawing(temperature=0.0)), atol=1e-12)


def test_the_smallest_and_the_largest_random_number_draw_what_can_be_drawn() -> None:
    shares = np.array([[0.0, 0.25, 0.75, 0.0]])
    assert draw(shares, np.array([0.0])) == 1 and draw(shares, np.array([np.nextafter(1, 0)])) == 2
    assert draw(shares, np.array([0.2499])) == 1 and draw(shares, np.array([0.25])) == 2


# Greedy

# One of each window rule, with what makes a place depend on most that came before it.
WINDOWED = [
    tiny(positions=positions, window=window, key_offset=True, token_shift=True, heads=3)
    for positions, window in (("alibi", 3), ("sinusoidal", 2), ("none", 1), ("rotary", 5), ("learned", 20))
]


@pytest.mark.parametrize("config", CONFIGS + WINDOWED, ids=name)
@pytest.mark.parametrize("start", [1, 5, 7, 12, 25])
def test_greedy_equals_the_naive_loop(config, start: int) -> None:
    """Past the context too."""
    model = build(config)
    prompt = torch.randint(11, (2, start), generator=torch.Generator().manual_seed(3))
    text = prompt.tolist()
    for _ in range(9):
        for row in text:
            row.append(int(following(model, row).argmax()))
    result = generate(model, prompt, 9, temperature=0)
    assert result.dtype == torch.int64 and result.tolist() == text


def test_top_k_one_is_greedy() -> None:
    model, prompt = build(tiny()), torch.tensor([[1, 2, 3], [4, 5, 6]])
    greedy = generate(model, prompt, 20, temperature=0)
    for temperature in (0.5, 1.0, 9.0):
        assert torch.equal(generate(model, prompt, 20, temperature=temperature, top_k=1, seed=3), greedy)
    assert greedy[:, 3:].unique().numel() > 1


def test_top_k_beyond_the_vocabulary_is_all() -> None:
    model, prompt = build(tiny()), torch.tensor([[1, 2, 3]])
    assert torch.equal(generate(model, prompt, 30, top_k=10**6, seed=3), generate(model, prompt, 30, seed=3))


# Draws


@pytest.mark.parametrize(("temperature", "top_k"), [(1.0, None), (0.6, None), (2.0, 3)])
@pytest.mark.parametrize("start", [1, 9])
def test_draws_have_the_model_s_probabilities(temperature: float, top_k: int | None, start: int) -> None:
    """Two characters in a row, 4000 times: chi-square against the product of NumPy's probabilities."""
    config, vocabulary, rows = tiny(layers=1), 5, 4000
    model = build(config, vocabulary)
    prompt = torch.randint(vocabulary, (start,), generator=torch.Generator().manual_seed(2)).tolist()

    def after(text: list[int]) -> np.ndarray:
        return sampling.probabilities(following(model, text).tolist(), temperature, top_k)

    first = after(prompt)
    expected = np.concatenate([first[a] * after([*prompt, a]) for a in range(vocabulary)]) * rows
    drawn = generate(model, torch.tensor([prompt] * rows), 2, temperature=temperature, top_k=top_k, seed=1)[
        :, start:
    ].numpy()
    counts = np.bincount(drawn[:, 0] * vocabulary + drawn[:, 1], minlength=vocabulary**2)
    assert counts[expected == 0].sum() == 0, "nothing outside the k largest is drawn"
    assert 1e-3 < sampling.chi_square(counts, expected) < 1 - 1e-6
    # The same draws do not fit another temperature: the test can fail.
    other = np.concatenate([[first[a]] * vocabulary for a in range(vocabulary)]) / vocabulary * rows
    assert (
        sampling.chi_square(counts, np.where(expected > 0, other * counts.sum() / other[expected > 0].sum(), 0)) < 1e-3
    )


def test_seed_decides() -> None:
    model, prompt = build(tiny()), torch.tensor([[1, 2, 3]])
    first = generate(model, prompt, 40, seed=5)
    torch.rand(17)
    assert torch.equal(generate(model, prompt, 40, seed=5), first)
    assert not torch.equal(generate(model, prompt, 40, seed=6), first)
    assert torch.equal(generate(model, prompt, 40, seed=5)[:, :20], generate(model, prompt, 17, seed=5))
    rows = generate(model, prompt.expand(2, 3), 40, seed=5)
    assert not torch.equal(rows[0], rows[1]), "rows are drawn independently"


@pytest.mark.parametrize("config", CONFIGS + WINDOWED, ids=name)
def test_a_text_is_the_same_whatever_its_neighbours(config) -> None:
    """In float64: its seed and its prompt decide, in a batch of prompts of other lengths and beyond the context."""
    weights = weights_of(build(config).double())
    prompts = [np.arange(1 + 5 * row % 9) % 11 for row in range(6)]

    def texts(rows: list[int]) -> list[list[int]]:
        drawn = stream(weights, [prompts[row] for row in rows], 30, Drawing(), [100 + row for row in rows])
        return np.stack([tokens for tokens, _ in drawn], axis=1).tolist()

    together = texts(list(range(6)))
    assert together == [texts([row])[0] for row in range(6)]
    assert texts([5, 2, 0]) == [together[5], together[2], together[0]]
    assert len(set(map(tuple, together))) == 6


def test_rows_are_texts_of_the_seeds_that_follow() -> None:
    model, prompt = build(tiny()).double(), torch.tensor([[1, 2, 3]])
    rows = generate(model, prompt.expand(20, 3), 40, seed=5)
    assert all(torch.equal(row, generate(model, prompt, 40, seed=5 + i)[0]) for i, row in enumerate(rows))


def test_many_texts_are_done_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of as many rows as memory and the cores suggest; their order stays."""
    weights = weights_of(build(tiny()))
    for rows, most, threads in itertools.product((1, 7, 8, 16, 200), (64, 10), ("1", "2")):
        monkeypatch.setenv("OMP_NUM_THREADS", threads)
        monkeypatch.setattr("gpt.generate.MOST_ROWS", most)
        parts = list(side_by_side(lambda part: iter([[], list(range(part.start, part.stop))]), rows, weights))
        assert sum(parts, []) == list(range(rows)) and max(map(len, parts)) <= most
        assert len(parts) >= min(int(threads), rows // 8)


def test_a_gpu_does_as_many_texts_as_fit_one_part_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    weights = weights_of(build(tiny()))
    monkeypatch.setattr(weights, "cuda", True)
    cache = 2 * 2 * 7 * 12 * weights.dtype.itemsize  # bytes of a text: keys and values, layers, places, channels
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

        parts = list(side_by_side(work, rows, weights))
        assert [len(part) for part in parts] == sizes and len(threads) == 1
        assert [row for part in parts for row in part] == list(range(rows))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA GPU here")
@pytest.mark.parametrize("config", SOME[::3] + PLACES[::3], ids=name)
def test_a_gpu_generates_what_a_cpu_does(config: ModelConfig) -> None:
    model, prompt = build(config).double(), torch.arange(5).expand(9, 5)
    wanted = generate(model, prompt, 50, seed=1, top_p=0.9)
    assert torch.equal(generate(model.cuda(), prompt, 50, seed=1, top_p=0.9), wanted)


def test_without_a_seed_texts_differ() -> None:
    model, prompt = build(tiny()), torch.tensor([[1, 2, 3]])
    assert not torch.equal(generate(model, prompt, 60), generate(model, prompt, 60))


# Manners


@pytest.mark.parametrize("seed", [None, 5])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_global_random_state_is_left_alone(seed: int | None, temperature: float) -> None:
    model = build(tiny(dropout=0.5)).train()
    before = torch.get_rng_state()
    generate(model, torch.tensor([[1]]), 3, temperature=temperature, seed=seed)
    assert torch.equal(torch.get_rng_state(), before)


def test_mode_is_restored_and_dropout_is_off() -> None:
    model, prompt = build(tiny(dropout=0.5)), torch.tensor([[1, 2]])
    expected = generate(model, prompt, 30, seed=1)
    assert not model.training
    model.train()
    assert torch.equal(generate(model, prompt, 30, seed=1), expected)
    assert all(module.training for module in model.modules())


def test_no_gradients_and_the_prompt_stays() -> None:
    model, prompt = build(tiny(activation="gelu")), torch.tensor([[1, 2, 3]])  # on torch
    before = {key: value.clone() for key, value in model.state_dict().items()}
    out = generate(model, prompt, 4, seed=1)
    assert not any(value.requires_grad for value in vars(weights_of(model)).values() if hasattr(value, "requires_grad"))
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    assert prompt.tolist() == [[1, 2, 3]] and out[:, :3].tolist() == [[1, 2, 3]] and out.shape == (1, 7)
    torch.nn.functional.one_hot(out, 11)  # an ordinary tensor, usable afterwards
    assert not out.is_inference()


def test_one_dimension_is_one_row() -> None:
    model = build(tiny())
    row = generate(model, torch.tensor([1, 2, 3]), 5, seed=1)
    assert row.shape == (1, 8) and torch.equal(row, generate(model, torch.tensor([[1, 2, 3]]), 5, seed=1))


def test_nothing_asked_nothing_added() -> None:
    assert generate(build(tiny()), torch.tensor([[1, 2, 3]]), 0).tolist() == [[1, 2, 3]]


@pytest.mark.parametrize(
    ("tokens", "count", "options", "named"),
    [
        ([[1]], -1, {}, "-1"),
        ([[1]], 3, {"temperature": -0.5}, "-0.5"),
        ([[1]], 3, {"temperature": float("nan")}, "nan"),
        ([[1]], 3, {"top_k": 0}, "0"),
        ([[1]], 3, {"top_k": -2}, "-2"),
        ([[1]], 3, {"top_p": 0.0}, "top_p=0"),
        ([[1]], 3, {"top_p": 1.5}, "top_p=1.5"),
        ([[1]], 3, {"min_p": -0.1}, "min_p=-0.1"),
        ([[1]], 3, {"min_p": float("nan")}, "min_p=nan"),
        ([[1]], 3, {"repetition_penalty": 0.0}, "repetition_penalty=0"),
        ([[1, -1]], 3, {}, "-1"),
        ([[]], 3, {}, "prompt"),
        ([], 3, {}, "prompt"),
        ([[]], 0, {}, "prompt"),
        ([[1, 99]], 3, {}, "99"),
    ],
)
def test_wrong_arguments_are_named(tokens: list, count: int, options: dict, named: str) -> None:
    with pytest.raises(ValueError) as caught:
        generate(build(tiny()), torch.tensor(tokens, dtype=torch.int64), count, **options)
    assert "\n" not in str(caught.value) and named in str(caught.value)
