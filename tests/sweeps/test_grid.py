import itertools
import os
import re
import signal
from pathlib import Path
from unittest.mock import Mock

import pytest

from base.jobs import run_lock
from base.jobs.run_directory import Run
from base.processes import cores
from conf.overrides import read_command
from sweeps.sweep import make_trial, run_sweep, sweep_name, trial_name, varied_keys
from sweeps.table import caution, spelled
from tests.conf.test_defaults import compose, composed
from tests.conftest import assert_same_weights, last, one_line, summary, table
from tests.faults import faults
from tests.faults.processes import Process, processes_in, run, tiny, wait_for


@pytest.mark.parametrize(("varied", "name"), [
    ({"model.heads": "2", "optim.lr": "0.001"}, "model.heads=2,optim.lr=0.001"),
    ({"+callbacks.x.y": "-1"}, r"\+callbacks.x.y=-1"),
    ({"a": "$HOME/../x y"}, r"a=-HOME-..-x-y_[0-9a-f]{6}"),
    ({f"key{number}": "é" * 20 for number in range(20)}, r"key0=.{,200}_[0-9a-f]{6}"),
])  # fmt: skip
def test_what_a_trial_is_called(varied, name):
    assert re.fullmatch(name, trial_name(varied))


def test_sweeps_and_trials_are_known_by_their_settings_in_any_order():
    for typed in itertools.permutations(["optim.lr=0.001", "optim.warmup=1"]):
        trial = make_trial("s", [each.split("=")[0] for each in typed], typed)
        assert trial.run.name == "s/optim.lr=0.001,optim.warmup=1"
    sweep = sweep_name(["seed=1,2", "model.heads=2", "workers=2", "allow=[seed]"])
    assert sweep == sweep_name(["model.heads=2", "seed=1,2"])
    assert sweep != sweep_name(["model.heads=2", "seed=1,3"])


@pytest.mark.slow
def test_values_survive_the_trial_s_command_line():
    rates, path = [1e-12, 0.25], 'it\'s my [book], a=b (1)* {x}: "日本".txt'
    names = ["a b,c=d", "it's {x: [1]}", ' "q" #~&é😀', "", "null"]
    quoted = ["'" + name.replace("'", "\\'") + "'" for name in names]
    typed = (
        "optim.min_lr=choice(1e-12,0.25) optim.betas=[1e-7,0.5] optim.lr=1 logger=wandb".split()
    )
    typed += [f"data.path='{path}'", f"logger.wandb.project={','.join(quoted)}"]
    command = read_command(["-m", *typed])
    varied = []
    for settings in command.runs():
        trial = make_trial("s", varied_keys(command), settings)
        config = compose(trial.command[2:])
        varied.append((config.optim.min_lr, config.logger["wandb"]["project"]))
        assert (config.name, config.resume, config.data.path) == (trial.run.name, "auto", path)
        assert config.optim.betas == [1e-7, 0.5]
    assert varied == [*itertools.product(rates, names)]


@pytest.mark.promise
@pytest.mark.slow
def test_trials_that_fail_hurt_no_other_and_fail_a_repeated_sweep_too(train, sample, workplace):
    (workplace / "book.txt").rename("a, b [c]=1.txt")
    fixed = ["data.path=a, b [c]=1.txt", "logger=none", "model.dropout=0.1"]
    given = ["-m", *fixed, "optim.lr=1e30,400,3e-3,2e-3", "name=s"]  # 400 ends worse than guessing
    ended = Process(*given, fault=(faults.in_trial, "s/optim.lr=0.003", faults.at_step, 15)).ends()
    failed = "train.py: 3 of 4 trials failed: optim.lr=1e+30; optim.lr=400; optim.lr=0.003\n"
    assert (ended.status, ended.err) == (1, failed), ended
    statuses = {row["optim.lr"]: row["status"] for row in table("s")}
    diverged = {"1e+30": "diverged", "400": "diverged"}
    assert statuses == diverged | {"0.002": "finished", "0.003": "failed"}
    again = run(*given)
    failed = "train.py: 2 of 4 trials failed: optim.lr=1e+30; optim.lr=400\n"
    assert (again.status, again.err) == (1, failed), again
    assert again.out.count(": finished before") == 1
    assert train(*fixed, "optim.lr=3e-3", "name=alone").status == 0
    assert_same_weights("s/optim.lr=0.003", "alone")
    rows = table("s")
    assert {row["optim.lr"]: row["status"] for row in rows[2:]} == diverged
    finished = rows[:2]
    assert [row["val_loss"] for row in finished] == sorted(row["val_loss"] for row in finished)
    for row in finished:
        whole = summary(f"s/optim.lr={row['optim.lr']}")
        assert all(float(row[key]) == whole[key] for key in ("val_loss", "val_bpc", "seconds"))
    assert f"{finished[0]['directory']}/checkpoints/best.safetensors" in sample("s").err


@pytest.mark.slow
def test_a_sweep_that_is_stopped_and_killed_goes_on_bit_for_bit(train, workplace):
    given = ["-m", "model.dropout=0.1,0.2"]
    name = sweep_name(tiny(given[1:]))

    def signalled(number, trial):
        fault = (faults.in_trial, f"{name}/{trial}", faults.signal_parent_at, 15, number)
        return Process(*given, fault=fault).ends()

    ended = signalled(signal.SIGINT, "model.dropout=0.1")
    assert ended.status == 130 and ended.err == "" and not processes_in(workplace), ended
    assert [row["status"] for row in table(name)] == ["interrupted", "waiting"]
    assert last(f"{name}/model.dropout=0.1")["global_step"] == 16
    assert signalled(signal.SIGKILL, "model.dropout=0.2").status == -signal.SIGKILL
    wait_for(lambda: not processes_in(workplace))  # no trial goes on without its sweep
    assert summary(f"{name}/model.dropout=0.2")["status"] == "running"
    ended = run(*given)
    assert (ended.status, ended.err, ended.out.count(": finished before")) == (0, "", 1), ended
    assert os.listdir("runs") == [name]
    for dropout in (0.1, 0.2):
        assert train(f"model.dropout={dropout}", f"name=alone{dropout}").status == 0
        assert_same_weights(f"{name}/model.dropout={dropout}", f"alone{dropout}")
    # A larger grid of the same name runs what is missing; other settings of what is there are
    # refused.
    before = set(Path("runs").glob("*/*"))
    one_line(train(*given, f"name={name}", "seed=1"), 2, "seed=1 (the run has 0)")
    one_line(train("-m", "seed=1,2", "name=alone0.1"), 2, "name=alone0.1: ", "is not a sweep")
    assert set(Path("runs").glob("*/*")) == before
    larger = run("-m", "model.dropout=0.1,0.2,0.3", f"name={name}")
    assert larger.status == 0 and larger.out.count(": finished before") == 2, larger
    rows = table(name)
    assert {row["model.dropout"] for row in rows} == {"0.1", "0.2", "0.3"}
    # So is a text that has changed since a trial was finished.
    book = workplace / "book.txt"
    book.write_text(book.read_text()[::-1])
    one_line(run(*given), 2, "dropout=0.1: its text has changed", "use another name")
    assert table(name) == rows


def test_a_second_command_on_a_running_sweep_is_refused(train):
    Path("runs/s").mkdir(parents=True)
    run_lock.lock(Path("runs/s").resolve())  # under another name: as another process would
    try:
        one_line(train("-m", "seed=0,1", "name=s"), 2, "runs/s: another process is training there")
    finally:
        run_lock.release()
    assert os.listdir("runs/s") == [".lock"]


@pytest.mark.slow
def test_trials_of_several_devices_and_from_a_trained_model(trained):
    given = "-m init_from=first seed=range(1,2) trainer.devices=2 trainer.max_steps=10 name=s"
    ended = run(*given.split())
    assert ended.status == 0, (ended, Path("runs/s/seed=1/console.log").read_text())
    assert {path.name for path in Path("runs/s").iterdir()} == {"seed=1", "sweep.csv", ".lock"}
    conditions = last("s/seed=1")["conditions"]
    assert conditions["world_size"] == 2 and conditions["init_from"] == "first"


@pytest.mark.parametrize(("typed", "differ"), [
    ("data.path=a,b", True), ("data.path=a,b data.validation=c", False), ("data.path=a data.documents=line,null", True),
    ("data.path=a init_from=h,s seed=1,2", False),
])  # fmt: skip
def test_when_losses_cannot_be_compared(typed, differ):
    configs = {
        Run(Path(f"run {n}")): config for n, config in enumerate(composed("-m", *typed.split()))
    }
    assert caution(configs).startswith("the validation texts differ") is differ


@pytest.mark.parametrize(
    ("value", "shown"),
    [("https://me:pw@a.org/b.txt", "https://***@a.org/b.txt"), ("a\x1b\n", "a\ufffd\ufffd")],
)
def test_what_is_not_to_be_seen_is_in_the_command_and_in_no_name(value, shown):
    trial = make_trial("s", ["data.path"], [f"data.path={value}"])
    assert trial.varied == {"data.path": shown}
    assert "pw" not in trial.run.name and trial.run.name.isprintable()
    assert f"data.path={value}" in trial.command
    assert spelled(compose([f"data.path={value}"]))["data.path"] == shown


GPUS = {  # number of GPUs, CUDA_VISIBLE_DEVICES and workers: the devices of each trial
    (3, "", 2): "0 1 1 1",
    (2, "5,GPU-8a", 2): "5 GPU-8a GPU-8a GPU-8a",
    (2, "5,6", 1): "5,6 5,6 5,6 5,6",
    (1, "5", 4): "5 5 5 5",
}


@pytest.mark.parametrize(("number", "visible", "workers"), GPUS)
def test_each_free_worker_has_a_gpu_and_its_share_of_the_cores(
    workplace, monkeypatch, number, visible, workers
):
    started = []

    def popen(_, **options):
        started.append(options["env"])
        waits = len(started) == 1 < workers  # until all others have begun
        return Mock(poll=lambda: None if waits and len(started) < 4 else 0, returncode=0)

    monkeypatch.delenv("OMP_NUM_THREADS")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    monkeypatch.setattr("torch.cuda.device_count", lambda: number)
    monkeypatch.setattr("sweeps.sweep.subprocess.Popen", popen)
    monkeypatch.setattr("sweeps.sweep.signal.signal", Mock())
    trials = [make_trial("s", ["seed"], [f"seed={seed}"]) for seed in range(4)]
    Path("runs/s").mkdir(parents=True)
    assert run_sweep(Path("runs/s"), trials, iter(trials), 4, workers) == 0
    gpus = [environment["CUDA_VISIBLE_DEVICES"] for environment in started]
    assert gpus == GPUS[number, visible, workers].split()
    share = None if workers == 1 else str(max(1, cores() // workers))
    assert {environment.get("OMP_NUM_THREADS") for environment in started} == {share}
