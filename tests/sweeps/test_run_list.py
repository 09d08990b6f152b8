import json
import os
from pathlib import Path

from sweeps.table import run_list
from tests.conftest import Call


def test_runs_are_listed_with_the_newest_last(workplace: Path, train: Call) -> None:
    assert train("--runs", defaults=False).out == "no run in runs/ yet\n"
    runs = {
        "second": {"status": "finished", "steps": 1200, "val_loss": 0.92734, "text": "book.txt"},
        "sweep/a\x1b": {"status": "diverged", "steps": 10, "val_loss": None, "text": None},
        "first": {"status": "running"},
    }
    for age, (name, summary) in enumerate(runs.items()):
        file = Path("runs", name, "summary.json")
        file.parent.mkdir(parents=True)
        file.write_text(json.dumps(summary))
        os.utime(file, (10 - age, 10 - age))
    assert run_list().splitlines() == [
        "name      status    steps  loss    text",
        "first     killed",
        "sweep/a\ufffd  diverged  10",
        "second    finished  1200   0.9273  book.txt",
    ]
    assert train("name=new", "trainer.max_steps=1").status == 0
    newest = train("--runs", defaults=False).out.splitlines()[-1]
    assert newest.split()[:3] == ["new", "finished", "1"] and newest.endswith("book.txt")
