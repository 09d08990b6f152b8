import numpy as np
import pytest
import torch

from gpt.analysis import BINS, attention_maps, calibration, calibration_totals
from gpt.model import GPT
from tests.reference import model as reference
from tests.reference.models import ALL, fill, name, tiny

VOCABULARY = 11


def test_attention_maps_equal_loops() -> None:
    for config in ALL:
        model = fill(GPT(config, VOCABULARY).double(), std=1.0)  # with less, they look everywhere alike
        tokens = torch.randint(VOCABULARY, (config.context,), generator=torch.Generator().manual_seed(5))
        seen: list[np.ndarray] = []
        reference.gpt(model.state_dict(), config, tokens[None].numpy(), seen=seen)
        expected = np.reshape(seen, (config.layers, config.heads, config.context, config.context))
        found = attention_maps(model, tokens)
        assert found.dtype == torch.float32
        np.testing.assert_allclose(found, expected, rtol=0, atol=2e-5, err_msg=name(config))  # scores in fp32
    # The model stays as it is.
    model, state = fill(GPT(tiny(dropout=0.5), VOCABULARY)).train(), torch.get_rng_state()
    first, again = (attention_maps(model, torch.arange(5)) for _ in range(2))
    assert torch.equal(first, again) and model.training and torch.equal(torch.get_rng_state(), state)


def naive(logits: np.ndarray, targets: np.ndarray) -> tuple[list[int], list[float], list[float], float]:
    """Guo et al., arXiv:1706.04599, equations 1 to 3, one bin and one prediction at a time."""
    counts, confidences, accuracies, error = [], [], [], 0.0
    for m in range(BINS):
        inside = [(0.0, 0.0)]  # a share, and whether it was right, of each; the sums of none are 0
        for row, target in zip(logits, targets, strict=True):
            shares = np.exp(row - row.max()) / np.exp(row - row.max()).sum()
            if m / BINS < shares.max() <= (m + 1) / BINS:
                inside.append((shares.max(), shares.argmax() == target))
        counts.append(len(inside) - 1)
        for sums, column in zip((confidences, accuracies), zip(*inside, strict=True), strict=True):
            sums.append(sum(column) / max(1, counts[-1]))
        error += counts[-1] / len(targets) * abs(accuracies[-1] - confidences[-1])
    return counts, confidences, accuracies, error


@pytest.mark.parametrize(("scale", "vocabulary"), [(0.1, 2), (1.0, 7), (4.0, 2), (4.0, 7)])
def test_calibration_equals_loops(scale: float, vocabulary: int) -> None:
    generator = torch.Generator().manual_seed(0)
    logits = scale * torch.randn(300, vocabulary, generator=generator)
    targets = torch.where(torch.rand(300, generator=generator) < 0.4, logits.argmax(-1), torch.zeros(300).long())
    counts, confidence, accuracy, error = naive(logits.double().numpy(), targets.numpy())
    batches = zip(logits.split(70), targets.split(70), strict=True)
    found = calibration(sum((calibration_totals(*batch) for batch in batches), torch.zeros(3, BINS)))
    assert found.counts.tolist() == counts and sum(counts) == 300
    np.testing.assert_allclose(found.confidence, confidence, atol=1e-6)
    np.testing.assert_allclose(found.accuracy, accuracy, atol=1e-12)
    assert found.error == pytest.approx(error, abs=1e-6)


def test_what_calibration_means() -> None:
    logits = torch.tensor([[100.0, 0.0]]).expand(8, 2)
    assert calibration(calibration_totals(logits, torch.tensor([0, 0, 0, 1] * 2))).error == pytest.approx(0.25)
    even = calibration(calibration_totals(torch.zeros(4, 2), torch.tensor([0, 1, 0, 1])))
    assert even.error == 0 and even.counts.nonzero().tolist() == [[4]], "0.5 is the end of the fifth bin"
    none = calibration(torch.zeros(3, BINS))
    assert none.error == 0 and all(bool(each.isfinite().all()) for each in none[:3])
