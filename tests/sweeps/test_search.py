import re
import shlex
import signal
import statistics
import time
from contextlib import chdir
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from conf.overrides import check_overrides
from conf.schema import SearchConfig
from sweeps.search_space import Range, plan_search
from tests.conftest import Call, needs, one_line, summary, table
from tests.faults import faults
from tests.faults.processes import Process, processes_in, run, wait_for
from training.study import open_study

FIXED = "optim.muon_lr=0.01 optim.cooldown=0.5 model.dropout=0 optim=adamw".split()
# Of three learning rates one is hopeless; after two trials the median decides. With this seed it is the fourth's.
COMMAND = [
    "hparams_search=default", *FIXED, "name=found", "optim.lr=0.01,0.003,1e-7",
    "hparams_search.trials=4", "hparams_search.startup=2", "hparams_search.seed=2",
]  # fmt: skip


@pytest.fixture(autouse=True)
def optuna() -> None:
    needs("optuna", extra="search")


def trials(directory: Path) -> list[tuple[dict[str, Any], str, Any, dict[int, float]]]:
    study = open_study(directory / "runs/found")
    return [(each.params, each.state.name, each.value, each.intermediate_values) for each in study.trials]


@pytest.mark.slow
def test_a_search_and_one_that_is_killed_in_the_middle(workplace: Path, prose: str) -> None:
    directory, killed = workplace, workplace / "killed"
    ended = run(*COMMAND)
    assert ended.status == 0 and ended.err == "", ended
    found, told = trials(directory), [summary(f"found/trial-{number:03}") for number in range(4)]
    pruned = [number for number, (_, state, _, _) in enumerate(found) if state == "PRUNED"]
    finished = [number for number, (_, state, _, _) in enumerate(found) if state == "COMPLETE"]
    assert pruned and sorted(pruned + finished) == list(range(4))
    for number, (_, _, loss, on_the_way) in enumerate(found):
        assert (told[number]["status"] == "pruned") == (number in pruned)
        # Pruned is what lies above the median of those that had finished before it, at the same step, and nothing else.
        before = [found[other][3] for other in finished if other < number]
        for step, bpc in on_the_way.items():
            best = min(value for at, value in on_the_way.items() if at <= step)
            worse = len(before) >= 2 and best > statistics.median(each[step] for each in before if step in each)
            assert worse == (number in pruned and step == max(on_the_way)), (number, step, bpc)
        if number in finished:
            assert loss == told[number]["val_bpc"] and list(on_the_way) == [10, 20]
        else:
            assert told[number]["steps"] == max(on_the_way) < 30
    assert [float(found[number][0]["optim.lr"]) for number in pruned] == [1e-7]
    best = min(finished, key=lambda number: told[number]["val_loss"])
    assert open_study(directory / "runs/found").best_trial.number == best
    rows = table("found")
    assert len(rows) == 4 and rows[0]["directory"] == f"runs/found/trial-{best:03}"
    assert rows[0]["optim.lr"] == found[best][0]["optim.lr"]
    again = re.search(r"^best again (.*)$", ended.out, re.MULTILINE)
    assert again
    _, script, *arguments = shlex.split(again[1])
    assert script == "train.py" and run(*arguments, "name=again", defaults=False).status == 0
    assert summary("again")["val_loss"] == told[best]["val_loss"]
    killed.mkdir()
    (killed / "book.txt").write_text(prose)
    with chdir(killed):
        fault = (faults.in_trial, "found/trial-002", faults.signal_parent_at, 15, signal.SIGKILL)
        assert run(*COMMAND, fault=fault).status == -signal.SIGKILL
        wait_for(lambda: not processes_in(killed))
        states = [state for _, state, _, _ in trials(killed)]
        assert len(states) == 3 and states[2] == "RUNNING"
        ended = run(*COMMAND)
        assert ended.status == 0 and ended.err == "", ended
        assert re.search(r"trial-002 of 4 .*: resumed", ended.out)
        assert "trial-001" not in ended.out.partition("\n\n")[0]  # which had finished
        assert trials(killed) == trials(directory) and len(table("found")) == 4
        # Once it is whole, nothing is left to do.
        assert run(*COMMAND).status == 0
        assert trials(killed) == trials(directory)


@pytest.mark.slow
def test_two_at_a_time_a_bad_combination_and_a_stop(workplace: Path) -> None:
    command = [each for each in COMMAND if not each.startswith("optim.lr=")]
    command += ["model.heads=2,3", "model.dim=32,24", "optim.lr=0.01", "workers=2", "hparams_search.pruner=none"]
    command += ["hparams_search.seed=23", "hparams_search.startup=9"]  # the fourth is 3 heads of 32
    process = Process(*command, fault=(faults.wait_for_file, 15, "go"))
    wait_for(Path("waiting").exists, process)
    one_line(run(*command), 2, "runs/found: another process is training there; wait for it or stop it first")
    process.signal(signal.SIGINT)
    time.sleep(2)  # until the trials are told
    Path("go").touch()
    assert process.ends().status == 130 and processes_in(workplace) == []
    assert "RUNNING" in [state for _, state, _, _ in trials(workplace)]
    ended = run(*command)
    assert ended.status == 0, ended.err
    found = trials(workplace)
    assert len(found) == 4
    bad = [number for number, (values, *_) in enumerate(found) if list(values.values()) == ["3", "32"]]
    assert bad and [found[number][1] for number in bad] == ["PRUNED"] * len(bad)
    assert all(found[number][1] == "COMPLETE" for number in range(4) if number not in bad)
    text = (workplace / "runs/found/sweep.csv").read_text()
    assert len(re.findall(r"^3,32,failed,", text, re.MULTILINE)) == len(bad)
    study = open_study(workplace / "runs/found")
    assert "model.heads=3: must divide model.dim=32" in study.user_attrs[f"trial-{bad[0]:03} failed"]
    spans = sorted((each.datetime_start, each.datetime_complete) for each in study.trials)
    assert any(later[0] < earlier[1] for earlier, later in pairwise(spans))


def planned(*arguments: str) -> dict[str, Range]:
    config = SearchConfig(space={"optim.lr": "tag(log, interval(0.001, 0.1))"})
    check_overrides(list(arguments), search=True)
    return dict(plan_search(config, list(arguments), {}).space)


def test_ranges_mean_what_hydra_means_by_them() -> None:
    space = planned("model.heads=2,4", "model.layers=range(1,8,2)", "model.dim=interval(15.5,64.5)")
    assert list(space) == ["optim.lr", "model.heads", "model.layers", "model.dim"]
    assert space["optim.lr"].arguments == {"low": 0.001, "high": 0.1, "log": True}
    assert space["model.heads"].arguments == {"choices": ["2", "4"]}
    assert space["model.layers"].arguments == {"low": 1, "high": 7, "step": 2}
    assert (space["model.dim"].kind, space["model.dim"].values) == ("IntDistribution", ("16", "64"))
    assert list(planned("optim.lr=0.01", "seed=1,2")) == ["seed"]  # what is typed is fixed, or the range


WRONG = {  # what is typed, and what is said of it
    "hparams_search=defalt": "hparams_search=defalt.* nearest: default",
    "hparams_search.prunner=none": "hparams_search.prunner.* nearest: hparams_search.pruner",
    "hparams_search.pruner=medium": "hparams_search.pruner=medium.* nearest: median",
    "optim.lrr=interval(1,2)": "optim.lrr.* nearest: optim.lr", "model=glob(*)": r"model=glob\(\*\).* list the values",
    "optim.lr=interval(2,1)": r"optim.lr=interval\(2,1\).* has no values",
    "seed=range(5,1)": r"seed=range\(5,1\).* has no values", "model.heads=0,2": "model.heads=0.* 1 to 4096",
    "optim.muon_lr=tag(log,interval(0,1))": "optim.muon_lr=.* above 0", "model.heads=2,3,4": "model.heads=3.* divide",
    "optim.min_lr=tag(log,interval(0,0.001))": r"tag\(log.* above 0",
    "model.dropout=interval(0,1.5)": "model.dropout=1.5.* below 1", "workers=0": "workers=0.* at least 1",
    "model.norm=interval(0,1)": "(?=.*model.norm)(?=.*layernorm, rmsnorm).*choice",
    "model.heads=2,5": "model.heads=5.* must divide model.dim=32",
    "workers=1,2": "workers: must have one value for all trials of a search",
    "seed=shuffle(1,2)": r"seed=shuffle\(1,2\).*a search takes interval\(a,b\)",
    "data.path=none.txt": "none.txt.* no such file",
    "data.batch=3,5 trainer.devices=2": "data.batch=3.* multiple of 2 devices", "name=a/b": "name=a/b.* slash",
    "resume=runs/first": "resume=runs/first.* without resume", "--cfg=job": "--cfg=job: shows the settings of one run",
    "optim.lr=tag(log,choice(0.001,0.01))": r"goes around interval\(a,b\)",
    "model.dropout=tag(log,interval(0,0.1))": "needs a lower bound above 0",
    "optim.lr=interval(0.1,0.1)": "the lower bound must be below the upper",
    "model.heads=range(4,4)": "has no values",
    "data.tokenizer=interval(0,1)": "data.tokenizer takes one of char, byte; list the values",
    "launcher=slurm": "whose trials are processes of this machine",
    f"optim.lr=0.01 {' '.join(FIXED)}": "nothing is left to search: the command fixes every key",
}  # fmt: skip


def test_what_is_wrong_is_said_before_anything_exists(train: Call) -> None:
    for typed, said in WRONG.items():
        ended = train("hparams_search=default", *shlex.split(typed))
        one_line(ended, 2)
        assert re.search(said, ended.err) and not Path("runs").exists(), (typed, ended)
    one_line(train("hparams_search.trials=5"), 2, "hparams_search.trials: goes with hparams_search=default")


def test_another_search_of_the_same_name_is_refused(workplace: Path, train: Call) -> None:
    directory = Path("runs/found")
    directory.mkdir(parents=True)
    study = open_study(directory)
    typed = ["hparams_search=default", "name=found", "optim.lr=0.001,0.1"]
    study.set_user_attr("search", {"seed": 7, "startup": 5, "pruner": "median", "space": [], "fixed": [], "text": ""})
    assert "was begun with seed=7, not 0" in train(*typed).err
    Path("runs/swept").mkdir()
    Path("runs/swept/sweep.csv").touch()
    assert "and not a search" in train("hparams_search=default", "name=swept").err
    (directory / "study.db").write_bytes(b"no database" * 1000)
    one_line(train(*typed), 2, "study.db: cannot be read")
