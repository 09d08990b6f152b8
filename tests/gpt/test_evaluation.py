import itertools
import math
from collections.abc import Iterator
from unittest.mock import Mock

import numpy as np
import pytest
import torch

from data.batches import evaluation_windows
from gpt.evaluation import Score, evaluate, first_totals, make_score, predictions, surprisals, window_totals
from gpt.model import GPT
from tests.reference import losses
from tests.reference import model as reference
from tests.reference.models import fill, tiny

TEXT = "naïve Ωλ 😀\n日本語 text, naïve 😀😀 end"
ALPHABET = sorted(set(TEXT))
TOKENS = [ALPHABET.index(letter) for letter in TEXT]
SIZES = [len(letter.encode()) for letter in ALPHABET]
ONES = [1] * len(ALPHABET)
TOKEN_SIZES = np.array([ONES, SIZES]).T  # (V, 2)

Window = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def windows(tokens: list[int], length: int, batch: int, stride: int | None = None, junk: int = 0) -> Iterator[Window]:
    """Every target once, in windows of `length` that start each `stride`; a target that is not counted is `junk`."""
    for inputs, targets, counted in evaluation_windows(np.array(tokens), length, batch, stride=stride):
        yield inputs, targets.masked_fill(~counted, junk), counted


def build(**changes) -> GPT:
    return fill(GPT(tiny(**changes), len(ALPHABET)), std=0.4).eval()


def naive(model: GPT, length: int, stride: int | None = None) -> tuple[float, int, int, int]:
    computed = [
        (reference.gpt(model.state_dict(), tiny(), inputs.numpy()), targets.numpy(), counted.numpy())
        for inputs, targets, counted in windows(TOKENS, length, 3, stride)
    ]
    nats, tokens, characters, octets = losses.totals(computed, ONES, SIZES)
    first = TOKENS[0]
    return nats + math.log(len(ALPHABET)), tokens + 1, characters + 1, octets + SIZES[first]


def run(model: GPT, batch: int, length: int = 7, stride: int | None = None, junk: int = 0) -> Score:
    return evaluate(model, windows(TOKENS, length, batch, stride, junk), TOKENS[0], TOKEN_SIZES)


def test_equals_the_loop_whatever_the_batch() -> None:
    model = build()
    for length, stride in ((7, None), (4, None), (6, 3), (7, 1)):
        nats, tokens, characters, octets = naive(model, length, stride)
        assert (tokens, characters, octets) == (len(TEXT), len(TEXT), len(TEXT.encode())), "each character once"
        for batch, junk in ((1, 0), (2, 9), (3, 0), (100, 0)):
            result = run(model, batch, length, stride, junk)
            assert (result.tokens, result.characters, result.bytes) == (tokens, characters, octets)
            assert result.loss == pytest.approx(nats / tokens, abs=1e-6)
            assert result.bpc == pytest.approx(nats / math.log(2) / len(TEXT), abs=1e-6)
            assert result.bpb == pytest.approx(nats / math.log(2) / len(TEXT.encode()), abs=1e-6)
    assert isinstance(result.loss, float) and isinstance(result.bytes, int)


def test_surprisals_and_their_sums_equal_the_loop() -> None:
    characters, sizes = [1, 1, 0, 2, 3, 1], [1, 2, 3, 5, 7, 4]
    generator = torch.Generator().manual_seed(1)
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        logits = (5 * torch.randn(3, 5, 6, generator=generator)).to(dtype)
        targets = torch.randint(6, (3, 5), generator=generator)
        counted = torch.rand(3, 5, generator=generator) < 0.6
        nats = surprisals(logits[counted], targets[counted])
        pairs = zip(logits[counted].tolist(), targets[counted].tolist(), strict=True)
        wanted = [losses.surprisal(row, target) for row, target in pairs]
        assert nats.dtype == torch.float64 and nats.tolist() == pytest.approx(wanted, rel=1e-6, abs=1e-6)
        for mask in (counted, counted & False):
            expected = losses.totals([(logits.double().numpy(), targets.numpy(), mask.numpy())], characters, sizes)
            found = window_totals(
                logits.masked_fill(~mask[..., None], torch.nan), targets, mask, np.array([characters, sizes]).T
            )
            assert found.shape == (4,) and found.dtype == torch.float64
            assert found.tolist() == pytest.approx(expected, rel=1e-6) and found[1:].tolist() == list(expected[1:])


def test_large_logits_do_not_overflow_and_many_targets_are_summed_in_double_precision() -> None:
    """300 thousand losses of ln 3, on top of one that is large: a float32 total would be off in the seventh digit."""
    ones, count = np.ones((3, 2), np.int64), 300_000
    logits, targets = torch.zeros(1, count, 3), torch.zeros(1, count, dtype=torch.int64)
    logits[0, 0] = torch.tensor([0.0, 1e7, 0.0])
    result = window_totals(logits, targets, targets == 0, ones)
    assert result[0].item() == pytest.approx(1e7 + (count - 1) * math.log(3), rel=2e-8) and result[1].item() == count


def test_the_first_character_costs_the_logarithm_of_the_vocabulary() -> None:
    result = first_totals(2, 50, np.array([[1] * 50, [1, 2, 4] + [3] * 47]).T)
    assert result.dtype == torch.float64
    assert result.tolist() == pytest.approx([math.log(50), 1, 1, 4], rel=1e-14)
    alone = evaluate(build(), iter(()), TOKENS[0], TOKEN_SIZES)  # all of its text
    assert (alone.tokens, alone.characters, alone.bytes) == (1, 1, 1)
    assert alone.loss == pytest.approx(math.log(len(ALPHABET)), rel=1e-12)
    no_characters = make_score(torch.tensor([3.0, 2, 0, 2], dtype=torch.float64))  # of bytes that begin none
    assert math.isnan(no_characters.bpc) and (no_characters.loss, no_characters.characters) == (1.5, 0)


def test_mode_is_restored_also_after_an_error_and_dropout_is_off() -> None:
    expected = run(build(), 3)
    for training in (False, True):
        model = build(dropout=0.5).train(training)
        state = torch.get_rng_state()
        assert run(model, 3) == expected
        assert all(module.training is training for module in model.modules())
        assert torch.equal(torch.get_rng_state(), state)
        model.register_forward_pre_hook(Mock(side_effect=OSError("gone")))
        with pytest.raises(OSError, match="gone"):
            run(model, 3)
        assert model.training is training


def test_forward_is_in_full_precision_without_gradients_one_window_at_a_time() -> None:
    model, seen = build(), []
    expected = run(model, 3)
    model.register_forward_hook(
        lambda module, args, out: seen.append((out.dtype, out.requires_grad, torch.is_autocast_enabled("cpu")))
    )
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert run(model, 3) == expected
    assert set(seen) == {(torch.float32, False, False)}
    assert all(parameter.requires_grad and parameter.grad is None for parameter in model.parameters())
    # A split need not fit in memory: batch n + 1 is asked for after batch n was computed.
    seen.clear()
    asked = (seen.append("asked") or window for window in windows(TOKENS, 7, 1))
    evaluate(model, asked, TOKENS[0], TOKEN_SIZES)
    assert len(seen) >= 8 and set(seen[::2]) == {"asked"} and "asked" not in seen[1::2]


def test_predictions_come_in_the_order_of_the_text() -> None:
    model = build()
    for (length, stride), batch in itertools.product(((7, None), (6, 3), (7, 1)), (1, 3, 100)):
        found = list(predictions(model, windows(TOKENS, length, batch, stride)))
        assert torch.cat([targets for _, targets in found]).tolist() == TOKENS[1:]
        logits = torch.cat([each for each, _ in found])
        # The first window sees all that came before.
        expected = reference.gpt(model.state_dict(), tiny(), np.array([TOKENS[:length]]))[0]
        np.testing.assert_allclose(logits[:length], expected, rtol=0, atol=1e-4)
        assert not logits.requires_grad
