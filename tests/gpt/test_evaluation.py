"""How losses are summed, and how a model is run for them; that they are exact is proven by tests/test_score.py."""

import math
import random
from unittest.mock import Mock

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from gpt.evaluation import evaluate, window_batches, window_totals
from gpt.model import GPT
from gpt.windows import EvaluationText
from tests.reference import losses
from tests.reference.models import fill, tiny

TEXT = "naïve Ωλ 😀\n日本語 text, naïve 😀😀 end"
ALPHABET = sorted(set(TEXT))
TOKENS = [ALPHABET.index(letter) for letter in TEXT]
SIZES = [len(letter.encode()) for letter in ALPHABET]
TOKEN_SIZES = np.array([[1] * len(ALPHABET), SIZES]).T  # (V, 2)
SCORED = EvaluationText(np.array(TOKENS), TOKEN_SIZES)


def windows(batch):
    return window_batches(SCORED, SCORED.windows(7), batch * 7)


def build(**changes):
    return fill(GPT(tiny(**changes), len(ALPHABET)), std=0.4).eval()


def run(model, batch=3):
    return evaluate(model, SCORED, windows(batch))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("share", [0.6, 0.0], ids=["some are counted", "none is counted"])
def test_sums_of_surprisals_equal_the_loop(dtype, share):
    characters, sizes = [1, 1, 0, 2, 3, 1], [1, 2, 3, 5, 7, 4]
    generator = torch.Generator().manual_seed(1)
    logits = (5 * torch.randn(3, 5, 6, generator=generator)).to(dtype)
    targets = torch.randint(6, (3, 5), generator=generator)
    counted = torch.rand(3, 5, generator=generator) < share
    hidden = logits.masked_fill(~counted[..., None], torch.nan)
    found = window_totals(hidden, targets, counted, np.array([characters, sizes]).T)
    assert found.shape == (4,) and found.dtype == torch.float64
    scored = targets[counted]
    nats = F.cross_entropy(logits[counted].double(), scored, reduction="sum").item()
    assert found[0].item() == pytest.approx(nats, rel=1e-6)
    counts = [sum(each[token] for token in scored.tolist()) for each in (characters, sizes)]
    assert found[1:].tolist() == [len(scored), *counts]


def test_large_logits_do_not_overflow_and_many_targets_are_summed_in_double_precision():
    """300 thousand losses of ln 3, on top of one that is large: a float32 total would be off in the seventh digit."""
    ones, count = np.ones((3, 2), np.int64), 300_000
    logits, targets = torch.zeros(1, count, 3), torch.zeros(1, count, dtype=torch.int64)
    logits[0, 0] = torch.tensor([0.0, 1e7, 0.0])
    result = window_totals(logits, targets, targets == 0, ones)
    assert result[0].item() == pytest.approx(1e7 + (count - 1) * math.log(3), rel=2e-8)
    assert result[1].item() == count


MIXED_SIZES = 3 * [(0, 0), (0, 1), (1, -1), (1, 0), (1, 1), (10, 0)]
EACH_WAY = pytest.mark.parametrize("context, stride", [(1, 1), (2, 1), (7, 7), (7, 3), (8, 4)])
EACH_END = pytest.mark.parametrize("end", [(0,), (0, 0), (3, 0)], ids=str)
EACH_LENGTH = pytest.mark.parametrize(
    "sizes",  # of documents: how many contexts, and how many tokens more
    [[(0, 3)], [(10, 0)], MIXED_SIZES, 40 * [(0, 1), (0, 2)]],
    ids=["short", "long", "mixed", "many short ones"],
)


def documents_of(sizes, context, end):
    rng = np.random.default_rng(context)
    lengths = [contexts * context + more for contexts, more in sizes]
    documents = [
        (*rng.integers(1, 3, length).tolist(), *end) for length in rng.permutation(lengths)
    ]
    documents[-1] = documents[-1][: -len(end)] or (1,)  # the last end mark may be missing
    return documents


@EACH_END
@EACH_WAY
@EACH_LENGTH
def test_windows_of_documents_are_those_of_a_loop(context, stride, end, sizes):
    documents = documents_of(sizes, context, end)
    tokens = np.array(sum(documents, ()), np.uint8)
    options = {"stride": stride, "end": np.array(end)}
    expected = losses.read_by_document(documents, end, context, stride)
    assert [target for _, target in expected] == tokens.tolist()
    assert windows_read(tokens, context, 3, in_order=True, **options) == expected
    some = windows_read(tokens, context, 3, most=len(tokens) // 3, **options)
    assert 0 < len(some) <= len(tokens) // 3 + 10 * context
    assert set(some) <= set(expected)
    for ranks in (1, 2, 3):
        parts = [
            windows_read(tokens, context, 2, rank=rank, ranks=ranks, **options)
            for rank in range(ranks)
        ]
        assert sorted(sum(parts, [])) == sorted(expected), ranks


def windows_read(tokens, context, batch, *, end, stride=None, most=None, **more):
    """For each counted token, (the tokens of its window before it, the token), in the order of the windows."""
    found = []
    text = EvaluationText(tokens, np.ones((256, 2), np.int64), end, stride)
    windows = text.windows(context, most)
    batches = list(window_batches(text, windows, batch * context, **more))
    alone = dict(more, rank=0)
    assert len(batches) == len(list(window_batches(text, windows, batch * context, **alone)))
    for inputs, targets, counted in batches:
        assert inputs.dtype == targets.dtype == torch.int64 and counted.dtype == torch.bool
        assert inputs.shape == targets.shape == counted.shape and inputs.shape[1] <= context
        for row, column in counted.nonzero().tolist():
            found.append((tuple(inputs[row, : column + 1].tolist()), int(targets[row, column])))
    return found


@pytest.mark.parametrize("seed", range(150))
def test_every_target_is_counted_once_with_its_context_or_those_of_an_even_choice(seed):
    rng = random.Random(seed)
    context, batch, ranks = rng.randint(1, 9), rng.randint(1, 5), rng.randint(1, 4)
    length, most = rng.randint(0, 150), rng.choice([None, rng.randint(1, 160)])
    stride = rng.choice([None, rng.randint(1, context)])
    tokens = np.arange(length, dtype=np.uint8)
    parts = [
        windows_read(
            tokens, context, batch, end=None, stride=stride, most=most, rank=rank, ranks=ranks
        )
        for rank in range(ranks)
    ]
    stride = stride or context
    expected = losses.read_by_document([tuple(tokens.tolist())], (), context, stride)[1:]
    windows = {}  # what each reads, by its start
    for before, target in expected:
        windows.setdefault(target - len(before), []).append((before, target))
    found = sum(parts, [])
    starts = sorted({target - len(before) for before, target in found})
    # Whole windows, no target twice.
    assert sorted(found) == sorted(sum((windows[start] for start in starts), []))
    if most is None or most >= length - 1:
        assert starts == list(windows)
        return
    assert starts[0] == 0 and len(found) <= max(most, len(windows[0]))
    # no window more fits
    assert len(found) > most - stride or len(found) == len(windows[0])
    gaps = np.diff([*starts, max(windows) + stride])
    assert gaps.max() - gaps.min() <= stride


@pytest.mark.parametrize("training", [False, True])
def test_mode_is_restored_also_after_an_error_and_dropout_is_off(training):
    expected = run(build())
    model = build(dropout=0.5).train(training)
    state = torch.get_rng_state()
    assert run(model) == expected
    assert all(module.training is training for module in model.modules())
    assert torch.equal(torch.get_rng_state(), state)
    model.register_forward_pre_hook(Mock(side_effect=OSError("gone")))
    with pytest.raises(OSError, match="gone"):
        run(model)
    assert model.training is training


def test_forward_is_in_full_precision_without_gradients():
    model, seen = build(), []
    expected = run(model)
    model.register_forward_hook(
        lambda module, args, out: seen.append(
            (out.dtype, out.requires_grad, torch.is_autocast_enabled("cpu"))
        )
    )
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert run(model) == expected
    assert set(seen) == {(torch.float32, False, False)}
    assert all(
        parameter.requires_grad and parameter.grad is None for parameter in model.parameters()
    )
