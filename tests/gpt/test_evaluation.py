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
    nats = sum(map(losses.surprisal, logits.tolist(), targets.tolist()))
    assert found.tolist() == pytest.approx([nats, count, *sizes[targets].sum(0)], rel=1e-6)


def test_large_logits_do_not_overflow_and_many_targets_are_summed_in_double_precision():
    """300 thousand losses of ln 3, on top of one that is large: a float32 total would be off in the seventh digit."""
    count = 300_000
    logits, targets = torch.zeros(count, 3), torch.zeros(count, dtype=torch.int64)
    logits[0, 1] = 1e7
    total, *_ = totals(surprisals(logits, targets), targets, np.ones((3, 2), np.int64)).tolist()
    assert total == pytest.approx(1e7 + (count - 1) * math.log(3), rel=2e-8)


def windows_read(tokens, context, batch, *, stride, end=None, most=None, ranks=1, in_order=False):
    """For each counted token, (the tokens of its window before it, the token), in the order of the windows."""
    found = []
    text = EvaluationText(tokens, np.ones((256, 2), np.int64), end, stride)
    options = {"size": batch * context, "ranks": ranks, "in_order": in_order}
    windows = text.windows(context, most)
    parts = [list(window_batches(text, windows, rank=rank, **options)) for rank in range(ranks)]
    assert len(set(map(len, parts))) == 1
    for inputs, targets, counted in sum(parts, []):
        for row, column in counted.nonzero().tolist():
            found.append((tuple(inputs[row, : column + 1].tolist()), int(targets[row, column])))
    return found


@pytest.mark.parametrize("seed", range(300))
def test_every_target_is_counted_once_with_its_context(seed):
    """Of a text or of documents, short and long, with end marks of one and two tokens."""
    rng = random.Random(seed)
    context, batch, ranks = rng.randint(1, 9), rng.randint(1, 5), rng.randint(1, 4)
    stride = rng.randint(1, context)
    end = rng.choice([None, (0,), (0, 0), (3, 0)])
    options = {"stride": stride, "end": end and np.array(end)}
    documents = [tuple(range(rng.randint(0, 150)))]
    if end:
        least = 1 if end == (0, 0) else 0  # no paragraph is empty
        sizes = rng.choices([least, 1, 2, context, context + 1, 10 * context], k=30)
        documents = [(*rng.choices((1, 2), k=size), *end) for size in sizes]
        documents[-1] = documents[-1][: -len(end)] or (1,)  # the last end mark may be missing
    tokens = np.array(sum(documents, ()), np.uint8)
    expected = losses.read_by_document(documents, end or (), context, stride)
    if not end:
        del expected[:1]
    assert windows_read(tokens, context, batch, in_order=True, **options) == expected
    read = windows_read(tokens, context, batch, ranks=ranks, **options)
    assert sorted(read) == sorted(expected)
    part = windows_read(tokens, context, batch, most=len(tokens) // 3, **options)
    assert len(part) <= len(tokens) // 3 + 10 * context and set(part) <= set(expected)


@pytest.mark.parametrize("seed", range(100))
def test_a_part_of_a_text_is_whole_windows_as_many_as_fit_evenly_spaced(seed):
    rng = random.Random(seed)
    context, length = rng.randint(1, 9), rng.randint(20, 150)
    stride, most = rng.randint(1, context), rng.randint(1, length - 2)
    tokens = np.arange(length, dtype=np.uint8)
    windows = {}  # what each reads, by its start
    for before, target in windows_read(tokens, context, 3, stride=stride):
        windows.setdefault(target - len(before), []).append((before, target))
    read = windows_read(tokens, context, 3, stride=stride, most=most, ranks=2)
    starts = sorted({target - len(before) for before, target in read})
    assert sorted(read) == sorted(sum((windows[start] for start in starts), []))
    assert starts[0] == 0 and len(read) <= max(most, len(windows[0]))
    assert len(read) > most - stride or len(read) == len(windows[0])
    gaps = np.diff([*starts, max(windows) + stride])
    assert gaps.max() - gaps.min() <= stride


@pytest.mark.parametrize("training", [False, True])
def test_a_model_is_run_without_dropout_in_full_precision_and_left_as_it_was(training):
    expected = evaluate(filled(tiny()), SCORED)
    model = filled(tiny(dropout=0.5)).train(training)
    state = torch.get_rng_state()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert evaluate(model, SCORED) == expected
    assert torch.equal(torch.get_rng_state(), state)
    assert all(parameter.requires_grad for parameter in model.parameters())
    assert all(module.training is training for module in model.modules())
    model.register_forward_pre_hook(Mock(side_effect=OSError("gone")))
    with pytest.raises(OSError, match="gone"):
        evaluate(model, SCORED)
    assert model.training is training
