"""How losses are summed, and how a model is run for them; that they are exact is proven by tests/test_score.py."""

import math
from collections.abc import Iterator
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch

from gpt.evaluation import Score, evaluate, window_batches, window_totals
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


def windows(batch: int) -> Iterator[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
    return window_batches(SCORED, SCORED.windows(7), batch * 7)


def build(**changes) -> GPT:
    return fill(GPT(tiny(**changes), len(ALPHABET)), std=0.4).eval()


def run(model: GPT, batch: int = 3) -> Score:
    return evaluate(model, SCORED, windows(batch))


def test_sums_of_surprisals_equal_the_loop_for_every_kind_of_number() -> None:
    characters, sizes = [1, 1, 0, 2, 3, 1], [1, 2, 3, 5, 7, 4]
    generator = torch.Generator().manual_seed(1)
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        logits = (5 * torch.randn(3, 5, 6, generator=generator)).to(dtype)
        targets = torch.randint(6, (3, 5), generator=generator)
        counted = torch.rand(3, 5, generator=generator) < 0.6
        for mask in (counted, counted & False):
            expected = losses.totals(
                [(logits.double().numpy(), targets.numpy(), mask.numpy())], characters, sizes
            )
            hidden = logits.masked_fill(~mask[..., None], torch.nan)
            found = window_totals(hidden, targets, mask, np.array([characters, sizes]).T)
            assert found.shape == (4,) and found.dtype == torch.float64
            assert found.tolist() == pytest.approx(expected, rel=1e-6) and found[
                1:
            ].tolist() == list(expected[1:])


def test_large_logits_do_not_overflow_and_many_targets_are_summed_in_double_precision() -> None:
    """300 thousand losses of ln 3, on top of one that is large: a float32 total would be off in the seventh digit."""
    ones, count = np.ones((3, 2), np.int64), 300_000
    logits, targets = torch.zeros(1, count, 3), torch.zeros(1, count, dtype=torch.int64)
    logits[0, 0] = torch.tensor([0.0, 1e7, 0.0])
    result = window_totals(logits, targets, targets == 0, ones)
    assert (
        result[0].item() == pytest.approx(1e7 + (count - 1) * math.log(3), rel=2e-8)
        and result[1].item() == count
    )


@pytest.mark.parametrize("end", [(0,), (0, 0), (3, 0)])
@pytest.mark.parametrize("context, stride", [(1, 1), (2, 1), (7, 7), (7, 3), (8, 4)])
def test_windows_of_documents_are_those_of_a_loop(
    context: int, stride: int, end: tuple[int, ...]
) -> None:
    random = np.random.default_rng(context)
    for sizes in (
        [3],
        [10 * context],
        3 * [0, 1, context - 1, context, context + 1, 10 * context],
        40 * [1, 2],
    ):
        documents = [
            (*random.integers(1, 3, size).tolist(), *end) for size in random.permutation(sizes)
        ]
        documents[-1] = documents[-1][: -len(end)] or (1,)  # the last end mark may be missing
        tokens, mark = np.array(sum(documents, ()), np.uint8), np.array(end)
        expected = losses.read_by_document(documents, end, context, stride)
        assert [target for _, target in expected] == tokens.tolist()
        found = windows_read(tokens, context, 3, stride=stride, end=mark, in_order=True)
        assert found == expected
        for ranks in (1, 2, 3):
            options = {"stride": stride, "end": mark, "ranks": ranks}
            parts = [
                windows_read(tokens, context, 2, rank=rank, **options) for rank in range(ranks)
            ]
            assert sorted(sum(parts, [])) == sorted(expected)
        some = windows_read(tokens, context, 3, end=mark, most=len(tokens) // 3)
        assert 0 < len(some) <= len(tokens) // 3 + 10 * context and set(some) <= set(
            expected if stride == context else some
        )


def windows_read(
    tokens: np.ndarray,
    context: int,
    batch: int,
    *,
    end: np.ndarray,
    stride: Any = None,
    most: Any = None,
    **more: Any,
) -> list[tuple[tuple[int, ...], int]]:
    """For each counted token, (the tokens of its window before it, the token), in the order of the windows."""
    found = []
    text = EvaluationText(tokens, TOKEN_SIZES, end, stride)
    windows = text.windows(context, most)
    for inputs, targets, counted in window_batches(text, windows, batch * context, **more):
        for row, column in counted.nonzero().tolist():
            found.append((tuple(inputs[row, : column + 1].tolist()), int(targets[row, column])))
    return found


def test_mode_is_restored_also_after_an_error_and_dropout_is_off() -> None:
    expected = run(build())
    for training in (False, True):
        model = build(dropout=0.5).train(training)
        state = torch.get_rng_state()
        assert run(model) == expected
        assert all(module.training is training for module in model.modules())
        assert torch.equal(torch.get_rng_state(), state)
        model.register_forward_pre_hook(Mock(side_effect=OSError("gone")))
        with pytest.raises(OSError, match="gone"):
            run(model)
        assert model.training is training


def test_forward_is_in_full_precision_without_gradients_one_window_at_a_time() -> None:
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
    # A split need not fit in memory: batch n + 1 is asked for after batch n was computed.
    seen.clear()
    asked = (seen.append("asked") or window for window in windows(1))
    evaluate(model, SCORED, asked)
    assert len(seen) >= 8 and set(seen[::2]) == {"asked"} and "asked" not in seen[1::2]
