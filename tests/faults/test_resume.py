import json
import random
import signal
import time
from pathlib import Path

import pytest
import torch

from tests.conftest import needs_compiler, one_line
from tests.faults import faults
from tests.faults.processes import MUON, TWO, Process, events, run, run_ranks, start, wait_for

ADAMW = "optim=adamw model.dropout=0.2 data.micro_batch=2 model.positions=learned trainer.precision=32-true".split()
EMA = "callbacks=ema data.micro_batch=4 model.dropout=0.1 optim.clip=0 trainer.precision=bf16-mixed".split()
CUT = Path("runs/cut")
# what a checkpoint or a summary says of wall-clock time
BY_CLOCK = "begun seconds step_seconds timed_steps characters_per_second mfu".split()


def assert_same(ours, theirs, where):
    """Bit for bit, through nested dicts and lists."""
    assert type(ours) is type(theirs), where
    if isinstance(ours, dict):
        assert ours.keys() == theirs.keys(), where
        for key in ours:
            if key not in BY_CLOCK:
                assert_same(ours[key], theirs[key], f"{where}.{key}")
    elif isinstance(ours, list | tuple):
        for index, (one, other) in enumerate(zip(ours, theirs, strict=True)):
            assert_same(one, other, f"{where}[{index}]")
    else:
        assert torch.equal(ours, theirs) if isinstance(ours, torch.Tensor) else ours == theirs, (
            where
        )


def learned(run):
    """What a run has learned, and whether it has left anything unfinished beside that."""
    folder = run / "checkpoints"
    models = {path.name: path.read_bytes() for path in folder.iterdir() if path.suffix != ".ckpt"}
    return models | {"last.ckpt": torch.load(folder / "last.ckpt"), "events": events(run)}


def assert_same_checkpoints(whole, cut=CUT):
    assert_same(learned(whole), learned(cut), "")


def assert_as_if_never_touched(whole, cut=CUT):
    assert_same_checkpoints(whole, cut)
    ours, theirs = (json.loads((run / "summary.json").read_text()) for run in (whole, cut))
    assert_same(ours, theirs, "summary")
    assert theirs["seconds"] and theirs["characters_per_second"]


def killed_run(*arguments, fault):
    """Run `train.py` until the fault kills it."""
    assert run(*arguments, fault=fault).status == -signal.SIGKILL


POINTS = {
    "in a validation": (MUON, faults.signal_in_validation, 2),
    "with the first best model not yet named": (MUON, faults.before_rename, 1, "best.safetensors"),
    "with half of a save written, but its best model whole": (MUON, faults.in_write, 2, 100_000),
    "with all of a save written, nothing renamed": (
        MUON,
        faults.before_rename,
        1,
        "previous.ckpt",
    ),
    "with the older checkpoint renamed, the newer not": (
        MUON,
        faults.before_rename,
        2,
        "last.ckpt",
    ),
    "before the evaluation": (MUON, faults.before_results),
    "with the last model not yet named": (MUON, faults.before_rename, 1, "last.safetensors"),
    "with AdamW": (ADAMW, faults.at_step, 13),
    "with averages": (EMA, faults.in_write, 2, 9999),
}
# in `make test`, too
ONCE = pytest.param((MUON, faults.after_update, 25), marks=pytest.mark.promise)


@pytest.mark.parametrize("point", [ONCE, *POINTS.values()], ids=["after an update", *POINTS])
def test_killed_once(point, whole, workplace):
    recipe, *fault = point
    killed_run("name=cut", *recipe, fault=fault)
    ended = run("name=cut", "resume=auto", *recipe)
    assert ended.status == 0 and ended.err == "", ended.err
    assert_as_if_never_touched(whole(recipe))


@pytest.mark.slow
def test_a_compiled_run_is_killed_once(workplace):
    needs_compiler()
    compiled = ["compile=true", "model.layers=1"]
    assert run("name=whole", *compiled).status == 0
    killed_run("name=cut", *compiled, fault=(faults.at_step, 16))
    assert run("resume=runs/cut", defaults=False).status == 0
    assert_as_if_never_touched(Path("runs/whole"))


def test_killed_before_the_first_checkpoint(whole, workplace):
    killed_run("name=cut", *MUON, fault=(faults.at_step, 7))
    one_line(
        run("resume=runs/cut", "seed=8", defaults=False), 2, "cannot change seed=8 (the run has 0)"
    )
    ended = run("resume=auto", "trainer.timeout=50", defaults=False)
    assert (
        ended.status == 0 and "runs/cut has no checkpoint yet, starting at step 0" in ended.out
    ), ended
    assert "timeout: 50" in Path(CUT, "config.yaml").read_text()
    assert_as_if_never_touched(whole(MUON))


def test_killed_before_its_configuration_is_written(whole, workplace):
    killed_run("name=cut", *MUON, fault=(faults.before_rename, 1, "config.yaml"))
    assert CUT.is_dir()
    one_line(run("resume=auto", defaults=False), 2, "no unfinished run in runs/")
    one_line(run("resume=runs/cut", defaults=False), 2, "is not a run that can continue")
    ended = run("name=cut", *MUON)
    assert ended.status == 0, ended
    assert_as_if_never_touched(whole(MUON))


def test_checkpoints_by_time_change_nothing(whole, workplace):
    often = "trainer.checkpoint_minutes=1e-6"
    killed_run("name=cut", *EMA, often, fault=(faults.at_step, 17))
    ended = run("resume=auto", defaults=False)
    assert ended.status == 0 and "last.ckpt, step 17" in ended.out, ended
    assert steps_of(CUT) == [29, 30]
    assert_same_checkpoints(whole(EMA))


def test_ranks_agree_on_checkpoints_by_time(workplace):
    """Saved by both, although the clock of one says that none is due."""
    often = "trainer.checkpoint_minutes=1e-6"
    ended = run_ranks(2, "name=cut", *TWO, often, fault=(faults.in_rank, 0, faults.never_due))
    assert ended.status == 0, ended
    assert steps_of(CUT) == [29, 30]


def steps_of(directory):
    """The steps of a run's two checkpoints."""
    return [
        torch.load(directory / f"checkpoints/{name}.ckpt")["global_step"]
        for name in ("previous", "last")
    ]


def test_killed_at_random_moments(whole, workplace):
    rng, longest, status = random.Random(5), 0.5, -signal.SIGKILL
    while status:
        process = Process("name=cut", "resume=auto", *ADAMW)
        time.sleep(rng.uniform(0.1, longest))
        process.signal(signal.SIGKILL)
        status, longest = process.wait().status, 1.3 * longest
        assert status in (0, -signal.SIGKILL), process.wait()
    assert_as_if_never_touched(whole(ADAMW))


def test_a_run_that_was_to_stop_early_does_not_go_on(workplace):
    """Killed after the save that early stopping has decided in, before it has stopped."""
    stopping = "callbacks=early_stopping callbacks.early_stopping.patience=1 optim.lr=0.3 optim.muon_lr=0.5".split()
    stopping += ["optim.warmup=1", "trainer.max_steps=100", "trainer.val_check_interval=5"]
    # Saved before the first validation, too, when the best score of early stopping is infinite,
    # which no weight is.
    assert run("name=whole", *stopping, "trainer.checkpoint_minutes=1e-6").status == 0
    saves = len(events(Path("runs/whole"))["val/loss"])
    killed_run("name=cut", *stopping, fault=(faults.after_save, saves))
    ended = run("name=cut", "resume=auto", *stopping)
    assert (
        ended.status == 0
        and "resume=runs/cut 'callbacks=[]' 'allow=[callbacks]' trainer.max_steps=100 continues it"
        in ended.out
    ), ended
    assert_as_if_never_touched(Path("runs/whole"))
    assert "is finished" in run("name=cut", "resume=auto", *stopping).out
    ended = run("resume=runs/cut", "callbacks=[]", "allow=[callbacks]", defaults=False)
    assert ended.status == 0 and "step 100/100" in ended.out, ended


def test_two_processes_killed_and_resumed(whole, workplace):
    two = ["trainer.devices=2", *ADAMW]
    rng = random.Random(6)
    for saved in ("last", "previous"):
        process = Process("name=cut", "resume=auto", *two, long=True)
        wait_for(Path(f"runs/cut/checkpoints/{saved}.ckpt").exists, process)
        time.sleep(rng.uniform(0, 0.1))
        process.signal(signal.SIGKILL)  # whose ranks end with it
        assert process.ends().status == -signal.SIGKILL
    # the ranks go on in the run that the first process has found
    resumed = start("resume=auto", *two)
    out, err = resumed.communicate(timeout=150)
    assert resumed.returncode == 0, err
    assert_as_if_never_touched(whole(two, long=True))
