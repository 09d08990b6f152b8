import re
from functools import partial
from pathlib import Path

import pytest
import torch

from tests.conftest import last, one_line
from tests.faults.processes import run
from tests.faults.test_checkpoints import contents_of


@pytest.fixture
def stopped(trained, train):
    return partial(train, "resume=runs/first", "trainer.max_steps=32", defaults=False)


def refused(ended, *listed):
    one_line(ended, 2, "resume: cannot change ")
    for each in listed:
        assert re.search(each, ended.err), (each, ended.err)


# every setting: tests/conf/test_resume_rules.py
def test_what_is_typed_otherwise(stopped):
    before = contents_of(Path("runs"))
    # Ranks are processes of their own, whose words this process does not hear.
    ended = run("resume=runs/first", "trainer.devices=2", defaults=False)
    refused(ended, r"world_size=2 \(the run has 1\)", "allow=")
    typed = ("model.dropout=0.2", "data.split=[0.8,0.1,0.1]")
    listed = r"dropout=0.2 \(the run has 0.0\), data.split=\[0.8,0.1,0.1\] \(the run has \[0.9,0.05,0.05\]\)"
    ended = stopped(*typed)
    refused(ended, listed)
    assert contents_of(Path("runs")) == before
    allowed = re.search(r"allow=\[\S+\]", ended.err)
    assert allowed
    ended = stopped(*typed, allowed[0])
    assert ended.status == 0 and "not match the original run bit for bit" in ended.out, ended


def test_what_would_be_another_model(stopped):
    before = contents_of(Path("runs"))
    for typed in ("model.dim=64", "optim.name=adamw", "optim.muon_every=1"):
        key = typed.partition("=")[0]
        ended = stopped(typed, f"allow=[{key}]")
        refused(ended, rf"{key}=[\w.]+ \(the run has \w+\)", f"allow= cannot permit .*{key}")
    assert contents_of(Path("runs")) == before


def test_another_text_or_vocabulary(stopped, prose):
    before = contents_of(Path("runs"))
    Path("book.txt").write_text(prose + "ß", encoding="utf-8")
    for ended in (stopped(), stopped("allow=[text,vocabulary]")):
        said = r"vocabulary=58 tokens \w{12} \(the run has 57 tokens \w{12}\)"
        start = r"python train.py init_from=runs/\S+ data.path=FILE$"
        refused(
            ended,
            said,
            f"the vocabulary of a run cannot change; to start a new run from this model: {start}",
        )
    Path("book.txt").write_text(prose[::-1], encoding="utf-8")
    refused(
        stopped(),
        r"text=30576 characters \w{12} \(the run has 30576 characters \w{12}\)",
        r"allow=\[text\]",
    )
    assert contents_of(Path("runs")) == before
    assert stopped("allow=[text]").status == 0


def test_another_machine(stopped, monkeypatch):
    monkeypatch.setattr(torch, "__version__", "2.99.0+other")
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "NEON")
    ended = stopped("threads=2", "allow=[torch,threads]")
    device = r"device=cpu with NEON.* \(the run has cpu with "
    refused(ended, device, r"allow=\[threads,torch,device\]")
    ended = stopped("threads=2", "allow=[threads,torch,device]")
    torch.set_num_threads(1)  # as it was
    assert (
        ended.status == 0
        and "threads=2 (the run has 1), torch=2.99.0+other (the run has 2." in ended.out
    )
    # From here on the run is that machine's.
    assert last("first")["conditions"]["torch"] == "2.99.0+other"


def test_a_configuration_that_was_edited(stopped):
    path = Path("runs/first/config.yaml")
    path.write_text(path.read_text().replace("seed: 0", "seed: 7"))
    refused(stopped(), r"seed=7 \(the run has 0\)")
