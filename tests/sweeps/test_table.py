import itertools
import json
import os
import shutil
from pathlib import Path

import pytest

from base.jobs.run_directory import Run
from conf.schema import to_yaml
from sweeps.sweep import ending
from sweeps.table import ABOUT_MEANS, compare_runs, write_csv
from tests.conf.test_defaults import compose
from tests.conftest import summary, table
from tests.faults.processes import run
from tests.folders import make
from training.begin import run_to_resume


def store(name, *settings, steps=9):
    """A finished run with these settings, in which `steps` are chosen if they are not set."""
    config = compose(["trainer.precision=32-true", *settings])
    stored = to_yaml(config).replace("max_steps: auto", f"max_steps: {steps}")
    loss = 1 + config.seed / 10
    found = {"status": "finished", "val_loss": loss, "val_bpc": loss, "seconds": 9}
    make(Path("runs", name), {"config.yaml": stored, "summary.json": json.dumps(found)})


def tables(train, pattern):
    """The words of each line of each table that `--runs PATTERN` prints, without what explains the tables."""
    ended = train("--runs", pattern, defaults=False)
    assert ended.status == 0 and ended.err == "", ended
    explained = [ABOUT_MEANS, "each run, the best first"]
    blocks = [each.splitlines() for each in ended.out.split("\n\n")]
    heads = [block.pop(0) for block in blocks if block[0] in explained]
    assert heads in ([], explained)
    return [[line.split() for line in block] for block in blocks]


CHOSEN = (
    "seed=0 threads=1 compile=false logger=none trainer.num_nodes=1",
    "seed=1 threads=2 compile=true logger=csv trainer.num_nodes=2",
)


@pytest.mark.parametrize("length", ["trainer.max_steps=9", "minutes=2"])
def test_what_was_chosen_for_the_machine_does_not_separate_settings(train, length):
    for seed, chosen in enumerate(CHOSEN):
        store(f"arr-{seed}", length, *chosen.split(), steps=900 + seed)
    averages, runs = tables(train, "arr-*")
    assert averages == [["runs", "mean", "loss", "spread"], ["2", "1.0500", "0.0707"]]
    assert runs[0] == ["run", "seed", "loss", "bpc", "parameters", "time"] and len(runs) == 3


DIFFERENT = {  # two values of each key
    "trainer.max_steps": ["10", "9"],
    "trainer.precision": ["32-true", "bf16-mixed"],
    "data.micro_batch": ["2", "4"],
    "callbacks": ["[ema,snapshots]", "ema"],
    "callbacks.early_stopping.patience": ["5", "6"],
}


@pytest.mark.parametrize("key", DIFFERENT)
def test_what_a_result_depends_on_separates_settings(train, key):
    for seed, value in itertools.product((0, 1), DIFFERENT[key]):
        store(f"{value}-{seed}", f"seed={seed}", f"{key}={value}")
    (head, *averages), _ = tables(train, "*-?")
    assert head == [key, "runs", "mean", "loss", "spread"]
    assert sorted(row[0] for row in averages) == DIFFERENT[key]


@pytest.fixture
def ablation(workplace):
    """A sweep of two rates and two seeds."""
    for rate, seed in itertools.product(("1", "2"), ("0", "1")):
        store(f"abl/lr={rate},seed={seed}", f"seed={seed}", f"optim.lr={rate}")
    return Path("runs/abl")


def rewritten(sweep):
    """The rows of sweep.csv, written anew."""
    write_csv(sweep, compare_runs(Run(sweep).trials))
    return table(sweep.name)


def test_a_sweep_s_table_has_means_over_seeds(ablation, train):
    means = rewritten(ablation)[:2]
    assert [(row["status"], row["runs"], row["seed"]) for row in means] == [("mean", "2", "")] * 2
    found = [(float(row["val_loss"]), float(row["val_loss_spread"])) for row in means]
    assert found == [pytest.approx((1.05, 0.1 / 2**0.5))] * 2
    # The terminal has the same figures.
    (head, *averages), runs = tables(train, "abl")
    assert head == ["optim.lr", "runs", "mean", "loss", "spread"]
    assert [row[1:] for row in averages] == [["2", "1.0500", "0.0707"]] * 2
    assert sorted(runs) == sorted(tables(train, "abl/*")[1]) and len(runs) == 5


def test_seeds_that_are_added_later_join_their_setting(ablation):
    rewritten(ablation)
    # another command, in which optim.lr has one value, typed otherwise
    store("abl/seed=7", "seed=7", "optim.lr=1.0")
    means = [row for row in rewritten(ablation) if row["status"] == "mean"]
    assert sorted((float(row["optim.lr"]), row["runs"]) for row in means) == [
        (1.0, "3"),
        (2.0, "2"),
    ]


def test_a_sweep_that_was_renamed_or_copied_lists_its_own_trials(ablation, train):
    before = rewritten(ablation)
    shutil.copytree(ablation, "runs/copy")
    ablation.rename("runs/new")
    for name in ("copy", "new"):
        listed = {row["directory"] for row in rewritten(Path("runs", name))} - {""}
        assert listed == {row["directory"].replace("abl", name) for row in before} - {""}
        Path("runs", name, "sweep.csv").write_text("nobody reads this")
        assert f"{name}/lr=1,seed=0" in train("--runs", name, defaults=False).out


def test_a_run_that_cannot_be_described_is_a_row_with_the_reason(ablation, train):
    make(ablation / "lr=2,seed=1", {"config.yaml": "optim: 7"})
    make(ablation / "early", {"summary.json": json.dumps({"status": "failed"})})
    config = (ablation / "lr=1,seed=0/config.yaml").read_text()
    mine = config.replace("callbacks:\n", "callbacks:\n  mine:\n    words: 1\n")
    assert mine != config
    make(ablation / "lr=1,seed=0", {"config.yaml": mine})  # from another --config-dir
    problems = {row["run"]: row["problem"] for row in rewritten(ablation) if row["run"]}
    assert [name for name in problems if problems[name]] == ["abl/lr=2,seed=1", "abl/early"]
    assert "config.yaml" in problems["abl/lr=2,seed=1"]
    shown = train("--runs", "abl", defaults=False)
    assert shown.status == 0 and all(problem in shown.out for problem in problems.values())


def test_a_trial_that_has_failed_stays_so_in_each_table(train):
    store("abl/seed=0", "seed=0")
    make(Path("runs/abl/killed"), {"summary.json": json.dumps({"status": "running"})})
    for name in ("killed", "early"):
        trial = Run(make(Path("runs/abl", name), {"console.log": "train.py: no space left\n"}))
        outcome, line = ending(trial, 1, stopped=False)
        assert outcome == trial.summary.status == "failed"
        assert line.startswith("failed: no space left (")
    statuses = {row["run"]: row["status"] for row in rewritten(Path("runs/abl"))}
    assert statuses == {"abl/seed=0": "finished", "abl/early": "failed", "abl/killed": "failed"}
    # The same command tries again what has failed before it was a run.
    assert not run_to_resume("auto", "abl/early").has_begun


@pytest.mark.slow
def test_a_split_of_the_runs_of_a_pattern(workplace, score):
    short = ["trainer.max_steps=2", "logger=none", "callbacks=[]"]
    assert run("-m", "optim.lr=1e-3,1e-4", "name=abl", *short).status == 0
    # One model of a sweep is its best trial, and is named.
    page = score("abl", "--split", "test", "--html", "page.html")
    assert "abl: its best trial is abl/optim.lr=0.001\n" in page.err, page
    assert "test split of abl/optim.lr=0.001: " in page.out
    assert summary("abl/optim.lr=0.001")["test_loss"]
    assert summary("abl/optim.lr=0.0001")["test_loss"] is None
    ended = score("abl/*", "--split", "test", "--stride", "8")
    assert ended.status == 0 and "strided windows of 32, stride 8" in ended.out, ended
    losses = [summary(f"abl/optim.lr={rate}")["test_loss"] for rate in ("0.001", "0.0001")]
    means = ended.out.split("\n\n")[-1]
    assert all(f"{loss:.4f}" in means for loss in losses), ended


def test_runs_are_listed_with_the_newest_last(workplace, train):
    assert train("--runs", defaults=False).out == "no run in runs/ yet\n"
    runs = {
        "second": '{"status": "finished", "steps": 1200, "val_loss": 0.92734, "text": "book.txt",'
        ' "evaluation": {"mode": "documents"}}',
        "sweep/a\x1b": '{"status": "diverged", "steps": 10, "val_loss": null, "text": null,'
        ' "validations": {"5": 3.5, "9": 4.5, "10": null}}',
        "first": '{"status": "running"}',
    }
    for age, (name, content) in enumerate(runs.items()):
        file = make(Path("runs", name), {"summary.json": content}) / "summary.json"
        os.utime(file, (10 - age, 10 - age))
    assert [line.split() for line in train("--runs", defaults=False).out.splitlines()] == [
        ["name", "status", "steps", "loss", "mode", "text"], ["first", "killed"],
        ["sweep/a\ufffd", "diverged", "10", "3.5000"],
        ["second", "finished", "1200", "0.9273", "documents", "book.txt"],
    ]  # fmt: skip
