import math
import threading
import time
from unittest.mock import Mock

import numpy as np
import pytest
import torch

from gpt.inference.decoder import Decoder
from gpt.inference.generate import (
    SamplingParams,
    generate,
    generate_many,
    probabilities,
    sample_tokens,
)
from gpt.inference.weights import Weights, weights_of
from tests.conftest import refusal
from tests.model_files import filled as build
from tests.reference import sampling
from tests.reference.models import normal, tiny


@pytest.mark.parametrize("temperature", [0.0, 1e-307, 0.05, 0.7, 1.0, 3.0])
@pytest.mark.parametrize("top_k", [None, 1, 3, 1000])
@pytest.mark.parametrize("top_p", [1.0, 0.9, 0.3])
@pytest.mark.parametrize("min_p", [0.0, 0.05, 1.0])
def test_probabilities_equal_loops(temperature, top_k, top_p, min_p):
    """The last row is that of an untrained head: no more than top_k of its ties are left."""
    rules = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "min_p": min_p}
    logits = np.concatenate([3 * normal(4, 7).numpy(), np.zeros((1, 7))])
    kept = logits.copy()
    expected = [sampling.probabilities(row.tolist(), **rules) for row in logits]
    result = probabilities(logits, SamplingParams(**rules))
    np.testing.assert_allclose(result, expected, rtol=1e-12, atol=1e-15)
    assert np.array_equal(logits, kept)


def test_a_random_number_chooses_a_token_that_has_a_probability():
    numbers = np.array([0.0, 0.2499, 0.25, np.nextafter(1, 0)])
    shares = np.tile([0.0, 0.25, 0.75, 0.0], (4, 1))
    assert sample_tokens(shares, numbers).tolist() == [1, 1, 2, 2]


def test_seed_decides():
    """Row i is drawn by the seed + i, as it would be alone; a shorter text is the beginning of a longer one."""
    model, prompt = build(tiny()).double(), torch.tensor([1, 2, 3])
    rows = generate(model, prompt.expand(20, 3), 40, seed=5)
    for i, row in enumerate(rows):
        assert row.equal(generate(model, prompt, 40, seed=5 + i))
    assert not rows[0].equal(rows[1])
    assert rows[0, :20].equal(generate(model, prompt, 17, seed=5))
    assert not generate(model, prompt, 60).equal(generate(model, prompt, 60)), "without a seed"


KEYS_VALUES = 2 * 2 * 7 * 12 * 4  # bytes of a text of `tiny()`: two layers, 7 tokens, 12 channels


@pytest.mark.parametrize(
    ("limit", "most"), [("ROWS", 3), ("CACHE", 3 * KEYS_VALUES), ("CACHE", 0)]
)
def test_many_texts_are_done_in_parts_that_fit_into_memory(limit, most, monkeypatch):
    """And are the texts that one part would be, the last of a shorter part, too."""
    model, prompts = build(tiny()), torch.ones(20, 2)
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    whole = generate(model, prompts, 9, seed=1)
    monkeypatch.setattr(f"gpt.inference.generate.MAX_{limit}", most)
    decoder = Mock(side_effect=Decoder)
    monkeypatch.setattr("gpt.inference.generate.Decoder", decoder)
    assert generate(model, prompts, 9, seed=1).equal(whole)
    parts = [rows for (_, rows), _ in decoder.call_args_list]
    assert sum(parts) == 20 and max(parts) == (3 if most else 1)


@pytest.mark.parametrize(("library", "most"), [("numpy", 2), ("torch", 1)])
def test_only_numpy_runs_in_several_threads(library, most, monkeypatch):
    """Torch on a CPU stands for MPS, which is not CUDA, either."""
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    monkeypatch.setattr("gpt.inference.generate.MAX_ROWS", 10)
    model = build(tiny())
    weights = weights_of(model)
    if library == "torch":
        weights = Weights(model.config, model.state_dict())
    threads = set()

    def write(part):
        time.sleep(0.2)  # the other part begins meanwhile, if there is a thread for it
        threads.add(threading.get_ident())
        yield list(part)

    assert sum(generate_many(write, range(20), weights), []) == list(range(20))
    assert len(threads) == most


def test_model_prompt_and_random_state_are_left_as_they_were():
    model, prompt = build(tiny(dropout=0.5)), torch.tensor([1, 2, 3])
    random = torch.get_rng_state()
    out = generate(model, prompt, 30, seed=1)
    assert not model.training
    assert generate(model.train(), prompt, 30, seed=1).equal(out)
    assert all(module.training for module in model.modules())
    assert random.equal(torch.get_rng_state())
    assert prompt.tolist() == [1, 2, 3]


@pytest.mark.parametrize("kind", [torch.tensor, np.array, list])
def test_a_text_begins_with_its_prompt_and_has_its_shape(kind):
    model = build(tiny())
    given = kind([1, 2, 3])
    texts = generate(model, [[1, 2, 3]], 30, seed=1)
    assert texts[:, :3].tolist() == [[1, 2, 3]] and texts.shape == (1, 33)
    assert generate(model, given, 30, seed=1).equal(texts[0])
    assert generate(model, given, 0).tolist() == [1, 2, 3], "nothing asked is nothing added"


WRONG = {  # what is named
    "count=-1": {"count": -1}, "temperature=nan": {"temperature": math.nan}, "top_k=0": {"top_k": 0},
    "top_p=0": {"top_p": 0.0}, "min_p=1.1": {"min_p": 1.1},
    "tokens: -1": {"tokens": [1, -1]}, "tokens: 11": {"tokens": [1, 11]}, "prompt": {"tokens": []},
}  # fmt: skip


@pytest.mark.parametrize("named", WRONG)
def test_wrong_arguments_are_named(named):
    given = {"tokens": [1], "count": 3} | WRONG[named]
    assert named in refusal(ValueError, generate, build(tiny()), **given)
