import pytest

from tests.conftest import Call, last
from training import assemble


def test_callbacks_stand_in_the_order_that_their_work_needs(train: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    build = assemble.build_trainer

    def watch(plan: object, callbacks: assemble.Callbacks) -> object:
        seen.extend(type(callback).__name__ for callback in callbacks.in_order())
        return build(plan, callbacks)

    monkeypatch.setattr(assemble, "build_trainer", watch)
    assert train("name=a", "trainer.profiler=pytorch", "callbacks=[ema]").status == 0
    expected = "Waiting SameStart Metrics StepProfiler EMAWeightAveraging Pictures Samples Checkpoints StopSignals"
    assert seen == expected.split()
    assert {"Watch", "Samples", "Checkpoints"} <= last("a")["callbacks"].keys(), "names that older checkpoints have"
