import json
import os
import re
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import numpy as np
import pytest

from base.files import write_text
from base.jobs import run_lock
from conf.compose import read_config
from data.config import DataConfig
from data.text import open_text
from tests.conftest import TINY, one_line, summary
from training import profiler

SMALL = [each for each in TINY if each.startswith(("model.", "trainer.acc"))]
SMALL.append("data.path=book.txt")
FAST = ["debug=fast", *SMALL]
RUN = Path("runs/debug-fast")


@pytest.mark.slow
def test_fast_goes_through_every_part_and_leaves_one_directory(run_before, train, sample):
    (run_before / "left").write_text("of the run before")
    ended = train(*FAST, defaults=False)
    assert (ended.status, ended.err) == (0, "")
    assert f"replaces the earlier run in {RUN}\n" in ended.out
    assert re.findall(r"^step (\d)/4  validation loss", ended.out, re.MULTILINE) == ["2", "4"]
    assert os.listdir("runs") == [RUN.name]
    assert not [*RUN.glob("left"), *RUN.glob("events.*")]
    said = summary("debug-fast")
    assert said["status"] == "finished" and said["debug"] is True
    assert read_config(RUN).trainer.detect_anomaly is True
    assert sample("debug-fast", "--num-chars", "5").status == 0


@pytest.fixture
def run_before(trained):
    """A run that `debug=fast` would replace."""
    said = summary("first")
    write_text(Path("runs/first/summary.json"), json.dumps(said | {"debug": True}))
    return Path("runs/first").rename(RUN)


def test_only_its_name_leads_to_a_debug_run_and_only_its_preset_replaces_it(
    run_before, train, sample
):
    assert "no run in runs/" in sample().err
    assert sample("debug-fast", "--num-chars", "5").status == 0
    write_text(run_before / "summary.json", '{"status": "running", "debug": true}')
    one_line(train("resume=auto"), 2, "no unfinished run")
    one_line(train(f"name={RUN.name}"), 2, f"{RUN} exists")


@pytest.mark.parametrize("given", ["name=debug-foo", "debug=fast", "debug=fast name=other"])
def test_a_run_that_the_user_has_named_is_kept(trained, train, given):
    """Nor is one replaced whose name begins as that of a preset, or is that of one."""
    name = given.partition("name=")[2] or "debug-fast"
    if name == "other":
        assert train(*FAST, "name=other", defaults=False).status == 0
    else:
        Path("runs/first").rename(Path("runs", name))
    before = sorted(Path("runs").rglob("*"))
    one_line(train(*SMALL, *given.split(), defaults=False), 2, f"runs/{name} exists")
    assert sorted(Path("runs").rglob("*")) == before
    assert not summary(name).get("debug")


def test_fast_replaces_no_run_that_another_process_is_training(run_before, train):
    before = sorted(run_before.rglob("*"))
    run_lock.lock(run_before.resolve())  # under another name: as another process would
    try:
        one_line(train(*FAST, defaults=False), 2, "another process is training there")
    finally:
        run_lock.release()
    assert sorted(run_before.rglob("*")) == before


@pytest.mark.slow
def test_overfit_learns_the_text_by_heart(train):
    assert train("debug=overfit", *SMALL, "data.overfit=500", defaults=False).status == 0
    assert summary("debug-overfit")["val_loss"] < 1


def test_what_is_learned_by_heart_is_what_is_validated(workplace):
    whole, part = (open_text(DataConfig(path="book.txt", overfit=n), 32) for n in (None, 500))
    for split in (part.validation, part.test, part.train[:500]):
        np.testing.assert_array_equal(split, whole.train[:500], strict=True)
    assert part.characters == {"train": 564, "validation": 500, "test": 500}


@pytest.mark.slow
def test_profile_records_the_last_steps_without_a_validation(train):
    given = (
        "data.batch=8 trainer.precision=32-true trainer.max_steps=2 trainer.val_check_interval=1"
    )
    ended = train("debug=profile", *SMALL, *given.split(), defaults=False)
    assert (ended.status, ended.err) == (0, "")
    trace = json.loads(Path("runs/debug-profile/trace.json").read_text("utf-8"))
    # products in a forward pass of two layers: two of attention, two of the MLP, and the head
    linear = 4 * 2 + 1
    products = [event for event in trace["traceEvents"] if event.get("name") == "aten::linear"]
    assert len(products) == linear, "of one step"
    (row,) = re.findall(r"^ +aten::mm .* (\d+) *$", ended.out, re.MULTILINE)
    assert int(row) == 3 * linear, "a product forward and two backward"


@pytest.mark.parametrize(("steps", "recorded"), [
    ({0: 20}, [10, 11, 12]), ({0: 12}, [9, 10, 11]),
    # with minutes; the first is resumed
    ({100: -1, 150: 160}, [110, 111, 112]), ({0: -1, 6: 8}, [6, 7]), ({0: -1, 6: 6}, []),
])  # fmt: skip
def test_profile_records_steps_as_fast_as_most(monkeypatch, steps, recorded):
    """`steps` is the number of steps that a run has from a step on (-1: not chosen yet)."""
    recorder, log, deadline, module = Mock(), Mock(), Mock(), Mock()
    monkeypatch.setattr(profiler, "profile", lambda **_: recorder)
    monkeypatch.setattr(profiler, "log", log)
    start = min(steps)
    trainer = SimpleNamespace(global_step=start, max_steps=steps[start])
    callback = profiler.StepProfiler(Path("trace.json"), deadline)
    callback.on_train_start(trainer, module)
    seen = []
    while trainer.global_step != trainer.max_steps:
        callback.on_train_batch_start(trainer)
        if callback.recorder:
            seen.append(trainer.global_step)
        trainer.global_step += 1
        callback.on_train_batch_end(trainer, module)
        trainer.max_steps = steps.get(trainer.global_step, trainer.max_steps)
    callback.on_train_end(trainer, module)
    assert seen == recorded
    once = recorder.start, recorder.stop, deadline.begin_timing, module.history.begin_step
    assert {each.call_count for each in once} == {bool(recorded)}
    assert ("nothing" in str(log.info.call_args)) == (not recorded)
