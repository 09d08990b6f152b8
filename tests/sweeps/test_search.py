import re
import shlex
import signal
from pathlib import Path

import pytest

from tests.conftest import needs, one_line, summary, table
from tests.faults import faults
from tests.faults.processes import processes_in, run, wait_for

FIXED = "optim.muon_lr=0.01 optim.cooldown=0.5 model.dropout=0 optim=adamw".split()
COMMAND = [
    "hparams_search=default", *FIXED, "name=found", "optim.lr=tag(log,interval(1e-6,0.01))", "trainer.max_steps=20",
    "hparams_search.trials=3", "hparams_search.startup=2", "hparams_search.seed=2",
]  # fmt: skip


JOURNAL = Path("runs/found/study.journal")


@pytest.fixture(autouse=True)
def optuna():
    needs("optuna", extra="search")


def trials():
    """Read the journal as Optuna's users do."""
    import optuna
    from optuna.storages.journal import JournalFileBackend

    journal = JournalFileBackend(str(JOURNAL.absolute()))
    storage = optuna.storages.JournalStorage(journal)
    study = optuna.load_study(study_name=None, storage=storage)
    return [(each.params, each.state.name, each.value) for each in study.trials]


@pytest.mark.slow
def test_a_search_and_one_that_is_killed_in_the_middle(workplace):
    ended = run(*COMMAND)
    assert ended.status == 0 and ended.err == "", ended
    found = trials()
    told = [summary(f"found/trial-{number:03}") for number in (1, 2, 3)]
    results = [(state, loss) for _, state, loss in found]
    assert results == [("COMPLETE", each["val_bpc"]) for each in told]
    assert len({values["optim.lr"] for values, *_ in found}) == 3
    best = min(range(3), key=lambda number: told[number]["val_loss"])
    rows = table("found")
    assert [row["status"] for row in rows] == ["finished"] * 3
    assert rows[0]["directory"] == f"runs/found/trial-{best + 1:03}"
    (again,) = re.findall(r"^best trial python train.py (.*)$", ended.out, re.MULTILINE)
    assert run(*shlex.split(again), "name=again", defaults=False).status == 0
    assert summary("again")["val_loss"] == told[best]["val_loss"]
    Path("runs/found").rename("runs/whole")
    fault = (faults.in_trial, "found/trial-002", faults.signal_parent_at, 15, signal.SIGKILL)
    assert run(*COMMAND, fault=fault).status == -signal.SIGKILL
    wait_for(lambda: not processes_in(workplace))
    assert [state for _, state, _ in trials()] == ["COMPLETE", "RUNNING"]
    ended = run(*COMMAND)
    assert ended.status == 0 and ended.err == "", ended
    assert ended.out.count(": finished before") == 1
    assert trials() == found and len(table("found")) == 3
    # Other settings of the same name are refused.
    other = run(*COMMAND, "model.heads=1")
    one_line(other, 2, "name=found: is a search with other settings", "model.heads=1")
    JOURNAL.write_text("no journal\n" * 1000)
    one_line(run(*COMMAND), 2, "study.journal: cannot be read")


def test_a_search_goes_on_after_the_last_line_of_its_journal_was_cut(tmp_path):
    from optuna.distributions import FloatDistribution

    from sweeps.search import FILE, open_study

    space = {"optim.lr": FloatDistribution(0, 1)}
    open_study(tmp_path, ["seed=0"]).ask(space)
    journal = tmp_path / FILE
    journal.write_bytes(journal.read_bytes()[:-10])
    open_study(tmp_path, ["seed=0"]).ask(space)
    proposed = open_study(tmp_path, ["seed=0"]).trials
    assert [len(each.params) for each in proposed] == [0, 1]


@pytest.mark.slow
def test_two_at_a_time_and_a_bad_combination(workplace):
    command = [each for each in COMMAND if not each.startswith(("optim.lr=", "hparams_search.s"))]
    # Each choice occurs in a combination that is checked before the search; 3 heads of 32 is found
    # by a trial only.
    command += (
        "model.heads=2,3 model.dim=32,24 optim.lr=0.01 workers=2 hparams_search.trials=6".split()
    )
    ended = run(*command)
    assert ended.status == 0, ended.err
    bad = 0
    for values, state, _ in trials():
        fails = values == {"model.heads": "3", "model.dim": "32"}
        assert (state == "COMPLETE") != fails
        bad += fails
    assert bad
    assert "failed: model.heads=3: must divide model.dim=32; " in ended.out
    failed = [row for row in table("found") if row["status"] == "failed"]
    assert [(row["model.heads"], row["model.dim"]) for row in failed] == [("3", "32")] * bad
    assert run(*command).out.count(": failed before") == bad


@pytest.mark.parametrize(("typed", "kind", "arguments"), [
    ("optim.lr=tag(log, interval(0.001, 0.1))", "Float", {"low": 0.001, "high": 0.1, "log": True}),
    ("model.dim=interval(15.5,64.5)", "Int", {"low": 16, "high": 64}),
    ("model.dropout=range(0.5,1,0.25)", "Float", {"low": 0.5, "high": 0.75, "step": 0.25}),
    ("optim.betas=[0.9,0.95],[0.8,0.9]", "Categorical", {"choices": ["[0.9,0.95]", "[0.8,0.9]"]}),
])  # fmt: skip
def test_ranges_mean_what_hydra_means_by_them(typed, kind, arguments):
    from optuna import distributions

    from sweeps.search import distribution

    assert distribution(typed) == getattr(distributions, f"{kind}Distribution")(**arguments)


WRONG = {  # what is typed, and what is said of it
    "hparams_search.trials=0": "hparams_search.trials=0", "name=a/b": "name=a/b",
    "optim.lr=interval(2,1)": "optim.lr=interval(2,1)", "workers=1,2": "workers: must have one value",
    "optim.muon_lr=tag(log,interval(0,1))": "optim.muon_lr=", "seed=range(5,1)": "seed=range(5,1)",
    "model.dropout=interval(0,1.5)": "model.dropout=1.5", "model.heads=2,5": "model.heads=5",
    "seed=shuffle(1,2)": "seed=shuffle(1,2)", f"optim.lr=0.01 {' '.join(FIXED)}": "nothing is left to search",
}  # fmt: skip


@pytest.mark.parametrize("typed", WRONG)
def test_what_is_wrong_is_said_before_anything_exists(train, typed):
    ended = train("hparams_search=default", *shlex.split(typed))
    one_line(ended, 2, WRONG[typed])
    assert not Path("runs").exists()


def test_a_search_needs_a_directory_of_its_own(train):
    Path("runs/found").mkdir(parents=True)
    Path("runs/found/sweep.csv").touch()
    one_line(train(*COMMAND), 2, "name=found: runs/found is a sweep, not a search")
