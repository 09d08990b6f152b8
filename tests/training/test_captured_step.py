from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

from tests.reference.capture import record
from training import captured_step
from training.captured_step import WARMUP_STEPS, CapturedWork

GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA GPU here")


@pytest.mark.parametrize(
    ("recorder", "device"), [(record, "cpu"), pytest.param(captured_step.capture, "cuda", marks=GPU)]
)
def test_repeated_work_is_the_work(recorder: Callable, device: str) -> None:

    def make() -> tuple:
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
        work = CapturedWork(work, recorder) if repeated else work
        losses = []
        for step in range(WARMUP_STEPS + 5):
            x.copy_(torch.randn(4, 8, generator=torch.Generator().manual_seed(step)))
            rate.fill_(1 / (1 + step))
            torch.manual_seed(100 + step)
            work()
            losses.append(loss.item())
        results.append((losses, layer.weight.detach().clone()))
    (losses, weights), (losses_repeated, weights_repeated) = results
    assert len(set(losses)) == WARMUP_STEPS + 5 and losses == losses_repeated and torch.equal(weights, weights_repeated)


def test_looking_is_refused() -> None:
    looks = lambda x: x.sum().item(), lambda x: float(x[0]), lambda x: x[x > 0], torch.nonzero, lambda x: bool(x.all())
    for look in looks:
        with pytest.raises(AssertionError, match="while work is recorded|depends on them"):
            record(lambda look=look: look(torch.ones(3)))
