"""How losses are summed, and how a model is run for them; that they are exact is proven by tests/test_score.py."""

import math
import random
from unittest.mock import Mock

import numpy as np
import pytest
import torch

from gpt.evaluation import evaluate, surprisals, totals, window_batches
from gpt.windows import EvaluationText
from tests.model_files import filled
from tests.reference import losses
from tests.reference.models import normal, tiny

SCORED = EvaluationText(np.arange(40) % 11, np.ones((11, 2), np.int64))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("count", [15, 0])
def test_sums_of_surprisals_equal_the_loop(dtype, count):
    sizes = np.array([[1, 1], [1, 2], [0, 3], [2, 5], [3, 7], [1, 4]])
    logits = (5 * normal(count, 6)).to(dtype)
    targets = torch.arange(count) % 6
    found = totals(surprisals(logits, targets), targets, sizes)
    assert found.dtype == torch.float64
    nats = sum(map(losses.surprisal, logits.tolist(), targets.tolist()))
    assert found.tolist() == pytest.approx([nats, count, *sizes[targets].sum(0)], rel=1e-6)


def test_large_logits_do_not_overflow_and_many_targets_are_summed_in_double_precision():
    """300 thousand losses of ln 3, on top of one that is large: a float32 total would be off in the seventh digit."""
    count = 300_000
    logits, targets = torch.zeros(count, 3), torch.zeros(count, dtype=torch.int64)
    logits[0, 1] = 1e7
    total, *_ = totals(surprisals(logits, targets), targets, np.ones((3, 2), np.int64)).tolist()
    assert total == pytest.approx(1e7 + (count - 1) * math.log(3), rel=2e-8)


MIXED_SIZES = 3 * [(0, 0), (0, 1), (1, -1), (1, 0), (1, 1), (10, 0)]


@pytest.mark.parametrize("end", [(0,), (0, 0), (3, 0)], ids=str)
@pytest.mark.parametrize("context, stride", [(1, 1), (2, 1), (7, 7), (7, 3), (8, 4)])
@pytest.mark.parametrize(
    "sizes",  # of documents: how many contexts, and how many tokens more
    [[(0, 3)], [(10, 0)], MIXED_SIZES, 40 * [(0, 1), (0, 2)]],
    ids=["short", "long", "mixed", "many short ones"],
)
def test_windows_of_documents_are_those_of_a_loop(context, stride, end, sizes):
    rng = np.random.default_rng(context)
    lengths = rng.permutation([contexts * context + more for contexts, more in sizes])
    documents = [(*rng.integers(1, 3, length).tolist(), *end) for length in lengths]
    documents[-1] = documents[-1][: -len(end)] or (1,)  # the last end mark may be missing
    tokens = np.array(sum(documents, ()), np.uint8)
    options = {"stride": stride, "end": np.array(end)}
    expected = losses.read_by_document(documents, end, context, stride)
    assert [target for _, target in expected] == tokens.tolist()
    assert windows_read(tokens, context, 3, in_order=True, **options) == expected
    some = windows_read(tokens, context, 3, most=len(tokens) // 3, **options)
    assert 0 < len(some) <= len(tokens) // 3 + 10 * context
    assert set(some) <= set(expected)
    for ranks in (1, 2, 3):
        read = windows_read(tokens, context, 2, ranks=ranks, **options)
        assert sorted(read) == sorted(expected), ranks


def windows_read(tokens, context, batch, *, stride, end=None, most=None, ranks=1, in_order=False):
    """For each counted token, (the tokens of its window before it, the token), in the order of the windows."""
    found = []
    text = EvaluationText(tokens, np.ones((256, 2), np.int64), end, stride)
    options = {"size": batch * context, "ranks": ranks, "in_order": in_order}
    windows = text.windows(context, most)
    parts = [list(window_batches(text, windows, rank=rank, **options)) for rank in range(ranks)]
    assert len(set(map(len, parts))) == 1
    for inputs, targets, counted in sum(parts, []):
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
    found = windows_read(tokens, context, batch, stride=stride, most=most, ranks=ranks)
    stride = stride or context
    expected = losses.read_by_document([tuple(tokens.tolist())], (), context, stride)[1:]
    windows = {}  # what each reads, by its start
    for before, target in expected:
        windows.setdefault(target - len(before), []).append((before, target))
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
def test_a_model_is_run_without_dropout_in_full_precision_and_left_as_it_was(training):
    expected = evaluate(filled(tiny()), SCORED)
    model = filled(tiny(dropout=0.5)).train(training)
    state = torch.get_rng_state()
    seen = []
    model.register_forward_hook(lambda _, args, out: seen.append((out.dtype, out.requires_grad)))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert evaluate(model, SCORED) == expected
    assert set(seen) == {(torch.float32, False)}
    assert torch.equal(torch.get_rng_state(), state)
    assert all(parameter.requires_grad for parameter in model.parameters())
    assert all(module.training is training for module in model.modules())
    model.register_forward_pre_hook(Mock(side_effect=OSError("gone")))
    with pytest.raises(OSError, match="gone"):
        evaluate(model, SCORED)
    assert model.training is training
