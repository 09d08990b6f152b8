"""Sampling against loops: the probabilities, the draws by their frequencies, the greedy path by each character."""

import numpy as np
import pytest
import torch

from gpt.generate import generate, probabilities
from gpt.model import GPT
from tests.reference import model as reference
from tests.reference import sampling
from tests.reference.models import fill, tiny

CONFIGS = [tiny(), tiny(positions="learned", norm="layernorm", bias=True, attention="sdpa"), tiny(tied=True, layers=1)]


def build(config, vocabulary: int = 11, seed: int = 0) -> GPT:
    return fill(GPT(config, vocabulary), seed).eval()


def random(*shape: int, seed: int = 7) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


# Probabilities


@pytest.mark.parametrize("temperature", [0.0, 0.05, 0.7, 1.0, 3.0])
@pytest.mark.parametrize("top_k", [None, 1, 2, 6, 7, 1000])
@pytest.mark.parametrize("shape", [(7,), (4, 7), (2, 3, 7)])
def test_probabilities_equal_loops(temperature: float, top_k: int | None, shape: tuple[int, ...]) -> None:
    logits = 3 * random(*shape)
    expected = [sampling.probabilities(row.tolist(), temperature, top_k) for row in logits.reshape(-1, 7)]
    result = probabilities(logits, temperature, top_k)
    assert result.shape == shape and result.is_floating_point()
    np.testing.assert_allclose(result.reshape(-1, 7).numpy(), expected, rtol=2e-5, atol=1e-7)


def test_defaults_are_the_softmax() -> None:
    torch.testing.assert_close(probabilities(random(5, 9)), random(5, 9).double().softmax(-1))


def test_logits_are_not_changed() -> None:
    logits = random(3, 7)
    probabilities(logits, 0.5, 2)
    assert torch.equal(logits, random(3, 7))


@pytest.mark.parametrize("top_k", [1, 2, 3])
def test_ties_leave_exactly_k(top_k: int) -> None:
    """An untrained head that is all zeros: top_k=1 is still greedy."""
    result = probabilities(torch.zeros(2, 5), 1.0, top_k)
    assert ((result > 0).sum(-1) == top_k).all()
    torch.testing.assert_close(result.sum(-1), torch.ones(2, dtype=torch.float64))


@pytest.mark.parametrize(
    ("dtype", "temperature"), [(torch.float32, 1e-3), (torch.float32, 1e-38), (torch.float64, 1e-307)]
)
@pytest.mark.parametrize("top_k", [None, 3])
def test_nearly_greedy_is_finite(dtype: torch.dtype, temperature: float, top_k: int | None) -> None:
    logits = 50 * random(4, 7).to(dtype)
    result = probabilities(logits, temperature, top_k)
    torch.testing.assert_close(result, probabilities(logits, 0.0))


def test_half_precision_logits_become_exact_probabilities() -> None:
    logits = (3 * random(6, 50)).bfloat16()
    result = probabilities(logits, 0.8, 20)
    expected = [sampling.probabilities(row, 0.8, 20) for row in logits.float().tolist()]
    kept = result > 0
    assert result.dtype in (torch.float32, torch.float64)
    torch.testing.assert_close(result.double().sum(-1), torch.ones(6, dtype=torch.float64), rtol=0, atol=1e-6)
    # Equal bfloat16 logits may be cut at either: compare what was kept by both.
    both = kept & (torch.tensor(np.array(expected)) > 0)
    assert both.sum() >= 6 * 18
    np.testing.assert_allclose(result[both].numpy(), np.array(expected)[both.numpy()], rtol=1e-4)


# Greedy


@pytest.mark.parametrize("config", CONFIGS, ids=["rotary", "learned", "tied"])
@pytest.mark.parametrize("start", [1, 5, 7, 12])
def test_greedy_equals_the_naive_loop(config, start: int) -> None:
    """Past the context too, where each step sees the last `context` characters at places 0, 1, ..."""
    model = build(config)
    prompt = torch.randint(11, (2, start), generator=torch.Generator().manual_seed(3))
    text = prompt.tolist()
    state = model.state_dict()
    for _ in range(9):
        for row in text:
            logits = reference.gpt(state, config, np.array([row[-config.context :]]))[0, -1]
            row.append(int(logits.argmax()))
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
        logits = reference.gpt(model.state_dict(), config, np.array([text[-config.context :]]))[0, -1]
        return sampling.probabilities(logits, temperature, top_k)

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


def test_mode_is_restored_after_an_error() -> None:
    model = build(tiny()).train()
    with pytest.raises(ValueError):
        generate(model, torch.tensor([[1, 99]]), 3, seed=1)
    assert all(module.training for module in model.modules())


def test_no_gradients_and_the_prompt_stays() -> None:
    model, prompt, states = build(tiny()), torch.tensor([[1, 2, 3]]), []
    model.register_forward_hook(lambda module, args, out: states.append(out.requires_grad))
    out = generate(model, prompt, 4, seed=1)
    assert states and not any(states)
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
