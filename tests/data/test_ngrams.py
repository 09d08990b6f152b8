import numpy as np
import pytest

from data.ngrams import ngram_losses
from tests.reference.ngrams import ngram_loss


@pytest.mark.parametrize(
    ("size", "length", "orders"), [(2, 40, 7), (3, 300, 7), (65, 400, 7), (40_000, 60, 3), (5, 4, 4)]
)
def test_counting_equals_the_formula(size: int, length: int, orders: int) -> None:
    rng = np.random.default_rng(0)
    train, text = (rng.integers(0, size, count).astype(np.uint16) // rng.integers(1, 4) for count in (length, 90))
    found = ngram_losses(train, text, size)
    expected = [ngram_loss(train.tolist(), text.tolist(), size, n, orders) for n in range(1, orders + 1)]
    np.testing.assert_allclose(found, expected, rtol=1e-12)
    assert ngram_losses(train, text[:1], size) == pytest.approx([np.log(size)] * orders)
