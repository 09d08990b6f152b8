"""Work that is recorded and repeated, against the same work done each time."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

from gpt import capture
from gpt.capture import REHEARSALS, Repeated
from tests.reference.capture import record

RECORDERS = [
    record,
    pytest.param(
        capture.record, marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA GPU here")
    ),
]


def device_of(recorder: Callable) -> str:
    return "cuda" if recorder is capture.record else "cpu"


@pytest.mark.parametrize("recorder", RECORDERS)
def test_repeated_work_is_the_work(recorder: Callable) -> None:

    def make() -> tuple[Callable[[], None], torch.Tensor, torch.Tensor, torch.nn.Linear, torch.Tensor]:
        device = device_of(recorder)
        torch.manual_seed(0)
        layer = torch.nn.Linear(8, 8).to(device)
        x, rate, loss = torch.zeros(4, 8, device=device), torch.zeros((), device=device), torch.zeros((), device=device)

        def work() -> None:
            with torch.autocast(device, torch.bfloat16):
                cost = F.dropout(layer(layer(x)), 0.5).float().square().mean()
            cost.backward()
            with torch.no_grad():
                for weight in layer.parameters():
                    weight.sub_(weight.grad * rate)
            layer.zero_grad()
            loss.copy_(cost.detach())

        return work, x, rate, layer, loss

    results = []
    for repeated in (False, True):
        work, x, rate, layer, loss = make()
        work = Repeated(work, recorder) if repeated else work
        losses = []
        for step in range(REHEARSALS + 5):
            x.copy_(torch.randn(4, 8, generator=torch.Generator().manual_seed(step)))
            rate.fill_(1 / (1 + step))
            torch.manual_seed(100 + step)
            work()
            losses.append(loss.item())
        results.append((losses, layer.weight.detach().clone()))
    assert len(set(results[0][0])) == REHEARSALS + 5
    assert results[0][0] == results[1][0]
    assert torch.equal(results[0][1], results[1][1])


def test_looking_is_refused() -> None:
    looks = (
        lambda x: x.sum().item(), lambda x: float(x[0]), lambda x: x[x > 0], lambda x: x.nonzero(),
        lambda x: bool((x > 0).all()),
    )  # fmt: skip
    for look in looks:
        with pytest.raises(AssertionError, match="while work is recorded|depends on them"):
            record(lambda look=look: look(torch.ones(3)))
