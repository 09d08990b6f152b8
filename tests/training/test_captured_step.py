import pytest
import torch

from tests.reference.capture import record


def test_looking_is_refused() -> None:
    looks = lambda x: x.sum().item(), lambda x: float(x[0]), lambda x: x[x > 0], torch.nonzero, lambda x: bool(x.all())
    for look in looks:
        with pytest.raises(AssertionError, match="while work is recorded|depends on them"):
            record(lambda look=look: look(torch.ones(3)))
