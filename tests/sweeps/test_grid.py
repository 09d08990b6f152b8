import itertools
import os
import re
import signal
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from conf.compose import combinations
from conf.merge import changed
from conf.overrides import split_literals
from sweeps.submit import launch_trials
from sweeps.trial import MAX_NAME, make_trial, sweep_name, trial_name, varied_keys
from tests.conf.test_defaults import compose
from tests.conftest import Call, Ended, assert_same_weights, last, needs, one_line, summary, table
from tests.faults import faults
from tests.faults.processes import LIMIT, Process, children_of, processes_in, run, start, tiny, wait_for


def test_what_a_trial_is_called() -> None:
    for varied, name in (
        ({"model.heads": "2", "optim.lr": "0.001"}, "model.heads=2,optim.lr=0.001"),
        ({"+callbacks.x.y": "-1"}, r"\+callbacks.x.y=-1"),
        ({"optim.betas": "[0.9,0.95]"}, r"optim.betas=0.9-0.95_[0-9a-f]{6}"),
        ({"a": "$HOME/../x y"}, r"a=-HOME-..-x-y_[0-9a-f]{6}"),
        ({"data": "é" * 300}, r"data=_[0-9a-f]{6}"),
        ({f"key{number}": "x" * 20 for number in range(20)}, rf"key0=x.{{{MAX_NAME - 6}}}_[0-9a-f]{{6}}"),
    ):
        assert re.fullmatch(name, trial_name(varied)), varied
    typed = ["optim.lr=0.001", "optim.warmup=1"]
    one, other = (make_trial("s", [each.split("=")[0] for each in order], order) for order in (typed, typed[::-1]))
    assert one.name == other.name == "optim.lr=0.001,optim.warmup=1"
    # A sweep is known by its settings in any order.
    sweep = sweep_name(["seed=1,2", "model.heads=2", "workers=2", "allow=[seed]"])
    assert sweep == sweep_name(["model.heads=2", "seed=1,2"]) != sweep_name(["model.heads=2", "seed=1,3"])


@pytest.mark.slow
def test_values_survive_the_trial_s_command_line() -> None:
    rates, betas, path = [1e-12, 0.25], [(0.1, 0.9), (1e-7, 0.5)], 'it\'s my [book], a=b (1)* {x}: "日本".txt'
    names = ["a b,c=d", "it's {x: [1]}", ' "q" #~&é😀', "", "null"]
    quoted = ["'" + name.replace("'", "\\'") + "'" for name in names]
    typed = [
        f"optim.min_lr=choice({','.join(map(repr, rates))})", "callbacks=early_stopping", "optim.lr=1",
        f"optim.betas={','.join(f'[{one!r},{two!r}]' for one, two in betas)}", f"data.path={path}",
        "logger=wandb", f"logger.wandb.project={','.join(quoted)}",
    ]  # fmt: skip
    rest, _ = split_literals(typed)
    trials = [make_trial("s", varied_keys(rest), [*each, f"data.path={path}"]) for each in combinations(rest)]
    made = []
    for trial in trials:
        config = compose(trial.command[2:])
        assert (config.name, config.resume, config.data.path) == (f"s/{trial.name}", "auto", path)
        made.append((config.optim.min_lr, tuple(config.optim.betas), config.logger["wandb"]["project"]))
    assert made == list(itertools.product(rates, betas, names))


@pytest.mark.slow
def test_what_is_another_run() -> None:
    for typed, said in (
        ([], []),
        (["seed=5"], ["seed=5 (the run has 0)"]),
        (["seed=5", "allow=[seed]"], []),
        (["trainer.max_steps=2000"], []),
        (["trainer.max_steps=1000"], ["trainer.max_steps=1000 (the run has 1400)"]),
        (["data.path=other.txt"], ["data.path=other.txt (the run has null)"]),
        (["trainer.devices=2", "logger=none", "trainer.log_every_n_steps=1"], []),
    ):
        keys = [argument.partition("=")[0] for argument in typed]
        old, new = compose([]), compose(typed)
        trainer = replace(old.trainer, precision="bf16-mixed")
        old = replace(old, trainer=trainer, compile="false")  # chosen automatically
        assert changed(old, new, keys) == said, typed
    # Neither is what `minutes` and a trained model have chosen.
    old = compose(["minutes=5", "model=small", "data.batch=16"])
    old = replace(old, trainer=replace(old.trainer, max_steps=77))
    assert changed(old, compose(["minutes=5"]), ["minutes"]) == []
    assert changed(old, compose(["minutes=6"]), ["minutes"]) == ["minutes=6.0 (the run has 5.0)"]
    assert len(changed(old, compose(["minutes=5", "model.layers=1"]), ["minutes", "model.layers"])) == 1
    old = compose(["init_from=runs/a", "model=small"])
    assert changed(old, compose(["init_from=runs/a"]), ["init_from"]) == []


@pytest.mark.slow
def test_trials_that_fail_hurt_no_other(train: Call, sample: Call, workplace: Path) -> None:
    (workplace / "book.txt").rename("a, b [c]=1.txt")
    fixed = ["data.path=a, b [c]=1.txt", "logger=none", "model.dropout=0.1"]
    given = ["-m", *fixed, "optim.lr=1e30,3e-3,2e-3", "name=s"]
    ended = Process(*given, fault=(faults.in_trial, "s/optim.lr=0.003", faults.at_step, 15)).ends()
    assert ended.status == 1, ended
    assert re.search(r"trial 1/3  failed: step \d+: .* diverged; lower optim.lr=1e\+30", ended.out), ended.out
    assert "trial 2/3  failed: killed by SIGKILL (runs/s/optim.lr=0.003/console.log)" in ended.out
    assert ended.err == "train.py: 2 of 3 trials failed: optim.lr=1e+30; optim.lr=0.003\n"
    assert {row["optim.lr"]: row["status"] for row in table("s")} == {
        "0.002": "finished", "1e+30": "failed", "0.003": "failed",
    }  # fmt: skip
    assert re.search(r"^1e\+30 +failed", ended.out, re.MULTILINE), ended.out  # in the leaderboard
    again = run(*given)
    assert again.status == 1 and again.err.startswith("train.py: 1 of 3 trials failed: "), again
    assert again.out.count(": finished before") == 1
    assert train(*fixed, "optim.lr=3e-3", "name=alone").status == 0
    assert_same_weights("s/optim.lr=0.003", "alone")
    *finished, failed = table("s")
    assert failed["status"] == "failed" and failed["val_loss"] == ""
    losses = [float(row["val_loss"]) for row in finished]
    assert len(losses) == 2 and losses == sorted(losses)
    for row in finished:
        whole = summary(Path(row["directory"]).absolute())
        assert row["directory"] == f"runs/s/optim.lr={row['optim.lr']}" and row["status"] == "finished"
        assert (row["steps"], row["parameters"]) == ("30", str(whole["parameters"]))
        for key in ("val_loss", "val_bpc", "seconds"):
            assert float(row[key]) == whole[key]
    shown = [line.split()[0] for line in again.out.split("\n\n")[1].splitlines()[1:]]
    assert shown == [row["optim.lr"] for row in (*finished, failed)]
    assert f"{finished[0]['directory']}/checkpoints/best.safetensors" in sample("s").err
    assert "runs/alone/" in sample().err, "the newest"
    # A trial is a run like any other.
    assert train(f"resume={finished[1]['directory']}", "trainer.max_steps=31", defaults=False).status == 0
    assert f"name: s/optim.lr={finished[1]['optim.lr']}\n" in Path(finished[1]["directory"], "config.yaml").read_text()
    assert f"{finished[1]['directory']}/checkpoints/best.safetensors" in sample().err


@pytest.mark.slow
def test_a_sweep_that_is_stopped_and_killed_goes_on_bit_for_bit(train: Call, workplace: Path) -> None:
    given, name = ["-m", "model.dropout=0.1,0.2"], sweep_name([*tiny(("model.dropout=0.1,0.2",))])

    def signalled(number: int, trial: str) -> Ended:
        signalling = (faults.signal_parent_at, 15, number)
        return Process(*given, fault=(faults.in_trial, f"{name}/{trial}", *signalling)).ends()

    ended = signalled(signal.SIGINT, "model.dropout=0.1")
    assert ended.status == 130 and ended.err == "" and not processes_in(workplace), ended
    assert {row["model.dropout"]: row["status"] for row in table(name)} == {"0.1": "interrupted", "0.2": "waiting"}
    assert last(f"{name}/model.dropout=0.1")["global_step"] == 16
    assert "stopped by SIGINT after step 16;" in Path("runs", name, "model.dropout=0.1/train.log").read_text()
    assert signalled(signal.SIGKILL, "model.dropout=0.2").status == -signal.SIGKILL
    wait_for(lambda: not processes_in(workplace))  # no trial goes on without its sweep
    assert summary(f"{name}/model.dropout=0.2")["status"] == "running"
    ended = run(*given)
    assert ended.status == 0 and ended.err == "" and ended.out.count(": finished before") == 1, ended
    assert [path.name for path in Path("runs").iterdir()] == [name]
    for dropout in (0.1, 0.2):
        assert train(f"model.dropout={dropout}", f"name=alone{dropout}").status == 0
        assert_same_weights(f"{name}/model.dropout={dropout}", f"alone{dropout}")
    # A larger grid of the same name runs what is missing; other settings of what is there are refused.
    before = sorted(path for path in Path("runs").rglob("*") if "cache" not in path.parts)
    one_line(train(*given, f"name={name}", "seed=1"), 2, "seed=1 (the run has 0)")
    for taken, said in ((name, "is a sweep"), ("alone0.1/x", "is a run"), ("alone0.1", "exists")):
        one_line(train(f"name={taken}"), 2, said)
    assert "is not a sweep" in train("-m", "seed=1,2", "name=alone0.1").err
    assert sorted(path for path in Path("runs").rglob("*") if "cache" not in path.parts) == before
    larger = run("-m", "model.dropout=0.1,0.2,0.3", f"name={name}")
    assert larger.status == 0 and larger.out.count(": finished before") == 2, larger
    assert {row["model.dropout"] for row in table(name)} == {"0.1", "0.2", "0.3"}


@pytest.mark.slow
def test_workers_share_the_processor_and_a_second_command_is_refused(
    workplace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS")
    given = ["-m", "seed=0,1,2", "name=s", "trainer.max_steps=10"]
    first = start(*given, "workers=2")
    try:
        wait_for(lambda: len(children_of(first.pid)) == 2, first)
        for trial in children_of(first.pid):
            share = f"OMP_NUM_THREADS={max(1, len(os.sched_getaffinity(0)) // 2)}".encode()
            variables = Path(f"/proc/{trial}/environ")  # its own once it has begun
            wait_for(lambda: share in variables.read_bytes().split(b"\0"), first)  # noqa: B023
        one_line(run(*given), 2, "runs/s: another process is training there; wait for it or stop it first")
        _, err = first.communicate(timeout=LIMIT)
    finally:
        first.kill()
    assert first.returncode == 0 and not processes_in(workplace), err
    assert len(table("s")) == 3


@pytest.mark.slow
def test_trials_of_several_devices_of_a_given_time_and_from_a_trained_model(trained: Path) -> None:
    ended = run("-m", "init_from=first", "seed=range(1,2)", "trainer.devices=2", "trainer.max_steps=10", "name=s")
    assert ended.status == 0, (ended, Path("runs/s/seed=1/console.log").read_text())
    assert {path.name for path in Path("runs").iterdir()} == {"first", "s"}
    assert {path.name for path in Path("runs/s").iterdir()} == {"seed=1", "sweep.csv", ".lock"}
    conditions = last("s/seed=1")["conditions"]
    assert conditions["world_size"] == 2 and conditions["init_from"] == "first"
    ended = run("-m", "minutes=1e-4", "seed=range(1,2)", "name=t")
    assert ended.status == 0 and "trial 1/1  finished" in ended.out, ended


@pytest.mark.slow
def test_trials_as_jobs_of_submitit_s(train: Call, workplace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    needs("submitit", extra="launcher")
    import submitit

    monkeypatch.setenv("PYTHONPATH", "")  # which is set for jobs
    settings = [*tiny(("trainer.max_steps=100",)), "model.dropout=0.1", "seed=1"]
    executor = submitit.AutoExecutor("jobs", "local", local_max_num_timeout=10)  # processes of this machine
    executor.update_parameters(timeout_min=60)
    told: list[str] = []

    def command_of(pid: int) -> str:
        return Path(f"/proc/{pid}/cmdline").read_text()

    def tell() -> None:
        wait_for(Path("runs/s/seed=1/checkpoints/last.ckpt").exists)
        (trial,) = (each for each in processes_in(workplace) if "name=s/seed=1" in command_of(each))
        (job,) = (each for each in processes_in(workplace) if trial in children_of(each))
        told.append(command_of(job))
        os.kill(job, signal.SIGUSR2)

    time_is_up = threading.Thread(target=tell)
    time_is_up.start()
    outcomes: dict[str, str] = {}
    trials = [make_trial("s", ["seed"], settings)]
    assert launch_trials(trials, executor, lambda trial, each: outcomes.update({trial.name: each.status})) is None
    time_is_up.join()
    assert "submitit.core._submit" in told[0] and outcomes == {"seed=1": "finished"}
    log = Path("runs/s/seed=1/train.log").read_text()
    assert log.count("stopped by SIGTERM after step") == 1 and log.count("100 steps of 8 windows") == 2
    assert train("seed=1", "model.dropout=0.1", "trainer.max_steps=100", "name=alone").status == 0
    assert_same_weights("s/seed=1", "alone")


@pytest.mark.slow
def test_launchers_and_shapes_that_cannot_be(
    train: Call, trained: Path, workplace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    needs("submitit", extra="launcher")
    (workplace / "bin").mkdir()
    refuses = "echo sbatch: error: invalid partition specified: gpux >&2; exit 1"
    for name in ("srun", "sbatch"):
        (workplace / "bin" / name).write_text(f'#!/bin/sh\nfor last; do :; done; cat "$last" > script; {refuses}\n')
        (workplace / "bin" / name).chmod(0o755)
    here, slurm = "", f"{workplace / 'bin'}{os.pathsep}{os.environ['PATH']}"
    for path, arguments, said in (
        (here, "launcher=slurm", "launcher=slurm: "),  # which is not here
        (here, "init_from=first model.dim=32,64", "cannot change model.dim=64 (the model has 32)"),
        (here, "launcher=slrum", "launcher=slrum: must be one of slurm; nearest: slurm"),
        (here, "launcher=slurm,slurm", "launcher: must have one value for all trials"),
        (here, "+launcher.timeout_min=5", "+launcher.timeout_min=5: needs launcher=slurm"),
        (here, "debug=fast", "debug: is for one run, not for -m"),
        (slurm, "launcher=slurm +launcher.partitions=x", "launcher=slurm: "),
        (slurm, "launcher=slurm +launcher.nodes=2", "launcher.nodes: a trial is one task"),
        (slurm, "launcher=slurm launcher.timeout_min=soon", "launcher=slurm: "),
        (slurm, "launcher=slurm launcher.timeout_mins=5", "launcher.timeout_mins"),
        (slurm, "launcher=slurm launcher.partition=gpux", "launcher: no job was taken: sbatch: error: invalid"),
    ):  # fmt: skip
        monkeypatch.setenv("PATH", path)
        one_line(train("-m", "seed=1,2", *arguments.split(), "name=s"), 2, said)
        assert not Path("runs/s").exists(), arguments
    script = Path("script").read_text()
    assert "#SBATCH --partition=gpux" in script and "#SBATCH --array=0-1" in script
    one_line(train("launcher=slurm"), 2, "launcher: goes with -m")
