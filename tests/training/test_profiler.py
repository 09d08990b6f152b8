import json
import re
from pathlib import Path

import pytest

from tests.conftest import Call

LAYERS = 3
SMALL = (
    f"debug=profile data.path=book.txt model.layers={LAYERS} model.heads=2 model.dim=64 model.context=64 "
    "data.batch=8 trainer.accelerator=cpu trainer.devices=1 trainer.precision=32-true"
).split()
TRACE = Path("runs/debug-profile/trace.json")
LINEAR = 4 * LAYERS + 1  # products in a forward pass: two of attention, two of the MLP, and the head


@pytest.mark.slow
def test_the_last_steps_are_recorded(train: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three, or one of a short run, without the validation at its end."""
    monkeypatch.setattr("training.results.FINAL_SAMPLE_LENGTH", 5)
    for typed, steps in (([], 3), (["trainer.max_steps=2", "trainer.val_check_interval=1"], 1)):
        ended = train(*SMALL, *typed, defaults=False)
        assert (ended.status, ended.err) == (0, "")
        events = json.loads(TRACE.read_text("utf-8"))["traceEvents"]
        assert sum(event.get("name") == "aten::linear" for event in events) == steps * LINEAR
        for said in (ended.out, Path("runs/debug-profile/train.log").read_text()):
            (row,) = re.findall(r"^ +aten::mm .* (\d+) *$", said, re.MULTILINE)
            assert int(row) == 3 * steps * LINEAR, "a product forward and two backward"
            assert f"profile    {TRACE}\n" in said
