import json
import re
from pathlib import Path

import numpy as np
import pytest
import yaml

from base.files import write_text
from base.jobs import run_lock
from data.config import DataConfig
from data.text import open_text
from tests.conftest import TINY, Call, one_line, summary

SMALL = [
    each
    for each in [*TINY, "data.path=book.txt"]
    if each.startswith(("model.", "data.path=", "trainer.acc"))
]


@pytest.mark.slow
def test_fast_goes_through_every_part_and_leaves_one_directory(train: Call, sample: Call) -> None:
    fast, run = ["debug=fast", *SMALL], Path("runs/debug-fast")
    for _ in range(2):
        ended = train(*fast, defaults=False)
        assert ended.status == 0 and ended.err == ""
        assert [path.name for path in Path("runs").iterdir()] == ["debug-fast"]
        assert not (run / "left").exists() and not list(run.glob("events.*"))
        (run / "left").write_text("of the run before")
    assert re.findall(r"^step (\d)/4  validation loss", ended.out, re.MULTILINE) == ["2", "4"]
    assert {"best.safetensors", "last.ckpt"} < {
        path.name for path in (run / "checkpoints").iterdir()
    }
    assert summary("debug-fast")["status"] == "finished" and summary("debug-fast")["val_loss"] > 0
    assert yaml.safe_load((run / "config.yaml").read_text())["trainer"]["detect_anomaly"] is True
    # Only its name leads there.
    assert "no run in runs/" in sample().err
    assert sample("debug-fast", "--num-chars", "5").status == 0
    write_text(run / "summary.json", '{"status": "running"}')
    one_line(train("resume=auto"), 2, "no unfinished run")
    # It replaces none that another process is training.
    before = sorted(run.rglob("*"))
    run_lock.lock(run.resolve())  # under another name: as another process would
    try:
        one_line(train(*fast, defaults=False), 2, "another process is training there")
    finally:
        run_lock.release()
    assert sorted(run.rglob("*")) == before


@pytest.mark.slow
def test_overfit_learns_the_text_by_heart(train: Call) -> None:
    assert train("debug=overfit", *SMALL, "data.overfit=500", defaults=False).status == 0
    assert summary("debug-overfit")["val_loss"] < 1


def test_what_is_learned_by_heart_is_what_is_validated(train: Call) -> None:
    whole, part = (open_text(DataConfig(path="book.txt", overfit=n), 32) for n in (None, 500))
    assert np.array_equal(part.validation, whole.train[:500]) and np.array_equal(
        part.test, whole.train[:500]
    )
    assert np.array_equal(part.train[:500], whole.train[:500]) and len(part.train) == 500 + 2 * 32
    assert part.characters == {"train": 564, "validation": 500, "test": 500}
    one_line(train("data.overfit=32"), 2, "data.overfit=32: must be above model.context=32\n")
    assert not Path("runs").exists()


@pytest.mark.slow
def test_profile_records_the_last_steps(train: Call) -> None:
    """Three, or one of a short run, without the validation at its end."""
    # products in a forward pass of two layers: two of attention, two of the MLP, and the head
    linear = 4 * 2 + 1
    for typed, steps in (([], 3), (["trainer.max_steps=2", "trainer.val_check_interval=1"], 1)):
        ended = train(
            "debug=profile",
            *SMALL,
            "data.batch=8",
            "trainer.precision=32-true",
            *typed,
            defaults=False,
        )
        assert (ended.status, ended.err) == (0, "")
        events = json.loads(Path("runs/debug-profile/trace.json").read_text("utf-8"))[
            "traceEvents"
        ]
        assert sum(event.get("name") == "aten::linear" for event in events) == steps * linear
        (row,) = re.findall(r"^ +aten::mm .* (\d+) *$", ended.out, re.MULTILINE)
        assert int(row) == 3 * steps * linear, "a product forward and two backward"
