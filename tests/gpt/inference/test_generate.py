import itertools

import numpy as np
import pytest
import torch

from gpt.inference.generate import (
    SamplingParams,
    generate,
    generate_many,
    probabilities,
    sample_tokens,
)
from gpt.inference.weights import weights_of
from tests.conftest import refusal
from tests.model_files import filled as build
from tests.reference import sampling
from tests.reference.models import normal, tiny


def test_probabilities_equal_loops() -> None:
    logits = 3 * normal(4, 7).numpy()
    kept = logits.copy()
    keys = "temperature", "top_k", "top_p", "min_p"
    given = (0.0, 0.05, 0.7, 1.0, 3.0), (None, 1, 3, 1000), (1.0, 0.9, 0.3), (0.0, 0.05, 1.0)
    for values in itertools.product(*given):
        rules = dict(zip(keys, values, strict=True))
        expected = [sampling.probabilities(row.tolist(), **rules) for row in logits]
        result = probabilities(logits, SamplingParams(**rules))
        np.testing.assert_allclose(result, expected, rtol=1e-12, atol=1e-15, err_msg=str(rules))
        assert np.array_equal(logits, kept), rules


def test_ties_nearly_greedy_temperatures_and_extreme_random_numbers() -> None:
    for top_k in (1, 2, 3):  # of an untrained head that is all zeros: top_k=1 is still greedy
        result = probabilities(np.zeros((2, 5)), SamplingParams(top_k=top_k))
        assert ((result > 0).sum(-1) == top_k).all(), top_k
        np.testing.assert_allclose(result.sum(-1), 1)
    logits = 50 * normal(4, 7).numpy()
    for temperature, top_k in itertools.product((1e-3, 1e-38, 1e-307), (None, 3)):
        result = probabilities(logits, SamplingParams(temperature=temperature, top_k=top_k))
        np.testing.assert_allclose(
            result, probabilities(logits, SamplingParams(temperature=0.0)), atol=1e-12
        )
    for number, token in ((0.0, 1), (0.2499, 1), (0.25, 2), (np.nextafter(1, 0), 2)):
        assert sample_tokens(np.array([[0.0, 0.25, 0.75, 0.0]]), np.array([number])) == token, (
            number
        )


def test_seed_decides() -> None:
    """Row i is drawn by the seed + i, as it would be alone; a shorter text is the beginning of a longer one."""
    model, prompt = build(tiny()).double(), torch.tensor([[1, 2, 3]])
    rows = generate(model, prompt.expand(20, 3), 40, seed=5)
    torch.rand(17)
    assert all(
        torch.equal(row, generate(model, prompt, 40, seed=5 + i)[0]) for i, row in enumerate(rows)
    )
    assert not torch.equal(rows[0], rows[1])
    assert torch.equal(rows[:1, :20], generate(model, prompt, 17, seed=5))
    assert not torch.equal(generate(model, prompt, 60), generate(model, prompt, 60)), (
        "without a seed texts differ"
    )


def test_many_texts_are_done_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    weights = weights_of(build(tiny()))
    for rows, most, threads in itertools.product((1, 7, 8, 16, 200), (64, 10), ("1", "2")):
        monkeypatch.setenv("OMP_NUM_THREADS", threads)
        monkeypatch.setattr("gpt.inference.generate.MAX_ROWS", most)
        parts = list(
            generate_many(
                lambda part: iter([[], list(range(part.start, part.stop))]), rows, weights
            )
        )
        assert sum(parts, []) == list(range(rows)) and max(map(len, parts)) <= most


def test_model_prompt_and_random_state_are_left_as_they_were() -> None:
    model, prompt = build(tiny(dropout=0.5)), torch.tensor([[1, 2, 3]])
    weights, random = (
        {key: value.clone() for key, value in model.state_dict().items()},
        torch.get_rng_state(),
    )
    out = generate(model, prompt, 30, seed=1)
    assert not model.training
    model.train()
    assert torch.equal(generate(model, prompt, 30, seed=1), out)
    generate(model, prompt, 3, temperature=0)
    assert all(module.training for module in model.modules()) and torch.equal(
        torch.get_rng_state(), random
    )
    assert all(torch.equal(value, weights[key]) for key, value in model.state_dict().items())
    assert (
        prompt.tolist() == [[1, 2, 3]]
        and out[:, :3].tolist() == [[1, 2, 3]]
        and out.shape == (1, 33)
    )
    assert not out.is_inference(), "an ordinary tensor, usable afterwards"
    # The text has the shape of its prompt, and nothing asked is nothing added.
    for given in (prompt[0], prompt[0].numpy(), prompt[0].tolist()):
        assert torch.equal(generate(model, given, 30, seed=1), out[0])
    assert generate(model, prompt, 0).tolist() == [[1, 2, 3]]


def test_wrong_arguments_are_named() -> None:
    nan, model = float("nan"), build(tiny())
    for tokens, count, options, named in (
        ([[1]], -1, {}, "count=-1"), ([[1]], 3, {"temperature": nan}, "temperature=nan"),
        ([[1]], 3, {"top_k": 0}, "top_k=0"), ([[1]], 3, {"top_p": 0.0}, "top_p=0"),
        ([[1]], 3, {"min_p": 1.1}, "min_p=1.1"),
        ([[1, -1]], 3, {}, "tokens: -1"), ([[1, 11]], 3, {}, "tokens: 11"), ([], 3, {}, "prompt"),
    ):  # fmt: skip
        assert named in refusal(
            ValueError, generate, model, torch.tensor(tokens).long(), count, **options
        )
