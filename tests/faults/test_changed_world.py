import re
import shutil
from pathlib import Path

import pytest
import torch
import yaml

from gpt.checkpoint import read
from gpt.model_file import FORMAT
from tests.conftest import Call, Ended, one_line
from tests.faults.test_checkpoints import contents_of


@pytest.fixture
def stopped(trained: Path, train: Call) -> Call:
    def go_on(*arguments: str) -> Ended:
        longer = [] if "minutes=1" in arguments else ["trainer.max_steps=32"]
        return train("resume=runs/first", *longer, *arguments, defaults=False)

    return go_on


def refused(ended: Ended, *listed: str) -> None:
    one_line(ended, 2, "resume: cannot change ")
    for each in listed:
        assert re.search(each, ended.err), (each, ended.err)


TYPED = {  # every setting: tests/conf/test_merge.py
    "seed=1": r"seed=1 \(the run has 0\)", "model.dropout=0.2": r"model.dropout=0.2 \(the run has 0.0\)",
    "data.split=[0.8,0.1,0.1]": r"data.split=\[0.8,0.1,0.1\] \(the run has \[0.9,0.05,0.05\]\)",
    "data.micro_batch=2": r"data.micro_batch=2 \(the run has null\)",
    "trainer.precision=64-true": r"trainer.precision=64-true \(the run has (bf16-mixed|32-true)\)",
    "callbacks=ema": r"callbacks=.*ema.* \(the run has {}\)", "trainer.devices=2": r"world_size=2 \(the run has 1\)",
}  # fmt: skip


def test_what_is_typed_otherwise(trained_once: Path, stopped: Call) -> None:
    before = contents_of(Path("runs"))
    for typed, said in TYPED.items():
        ended = stopped(typed)
        refused(ended, said, "allow=")
        assert contents_of(Path("runs")) == before, typed
        # An average cannot be made up in the middle of a run, and two processes have their own tests.
        if typed not in ("callbacks=ema", "trainer.devices=2"):
            allowed = re.search(r"allow=\[\S+\]", ended.err)
            assert allowed
            ended = stopped(typed, allowed[0])
            assert ended.status == 0 and "no longer bit for bit" in ended.out, ended
            shutil.rmtree("runs")
            shutil.copytree(trained_once / "runs", "runs", symlinks=True)


def test_what_would_be_another_model(stopped: Call) -> None:
    before = contents_of(Path("runs"))
    for typed in ("model.dim=64", "optim=adamw", "minutes=1"):
        key = "optim.name" if typed == "optim=adamw" else typed.partition("=")[0]
        for ended in (stopped(typed), stopped(typed, f"allow=[{key}]")):
            refused(ended, rf"{key}=[\w.]+ \(the run has \w+\)", f"no allow= helps with .*{key}")
    assert contents_of(Path("runs")) == before


def test_another_text_or_vocabulary(stopped: Call, prose: str) -> None:
    before = contents_of(Path("runs"))
    Path("book.txt").write_text(prose + "ß", encoding="utf-8")
    for ended in (stopped(), stopped("allow=[text,vocabulary]")):
        said = r"vocabulary=58 tokens \w{12} \(the run has 57 tokens \w{12}\)"
        refused(ended, said, "no allow= helps with vocabulary")
    Path("book.txt").write_text(prose[::-1], encoding="utf-8")
    refused(stopped(), r"text=30576 characters \w{12} \(the run has 30576 characters \w{12}\)", r"allow=\[text\]")
    assert contents_of(Path("runs")) == before
    assert stopped("allow=[text]").status == 0


def test_another_machine(stopped: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "__version__", "2.99.0+other")
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "NEON")
    threads = torch.get_num_threads()
    torch.set_num_threads(threads + 1)
    try:
        ended = stopped()
        refused(
            ended, r"torch=2.99.0\+other \(the run has 2\.\d+\.\d+", r"device=cpu with NEON.* \(the run has cpu with ",
            rf"threads={threads + 1} \(the run has {threads}\)", r"allow=\[torch,device,threads\]",
        )  # fmt: skip
        refused(stopped("allow=[torch,threads]"), "device=", r"allow=\[torch,device,threads\]")
        ended = stopped("allow=[torch,device,threads]")
        assert ended.status == 0 and "continues with torch=2.99.0+other (the run has" in ended.out
    finally:
        torch.set_num_threads(threads)
    # From here on the run is that machine's.
    assert read("runs/first/checkpoints/last.ckpt")["conditions"]["torch"] == "2.99.0+other"


def test_a_configuration_that_was_edited(stopped: Call) -> None:
    path = Path("runs/first/config.yaml")
    config = yaml.safe_load(path.read_text())
    config["seed"], config["data"]["batch"], config["trainer"]["log_every_n_steps"] = 7, 16, 1
    path.write_text(yaml.safe_dump(config))
    refused(stopped(), r"seed=7 \(the run has 0\), data.batch=16 \(the run has 8\)")
    path.write_text(yaml.safe_dump({**config, "seed": 0, "data": {**config["data"], "batch": 8}}))
    assert stopped().status == 0


def test_another_format(stopped: Call) -> None:
    contents = torch.load("runs/first/checkpoints/last.ckpt")
    for version in (FORMAT - 1, FORMAT + 1):
        for path in Path("runs/first/checkpoints").glob("*.ckpt"):
            path.unlink()
            torch.save({**contents, "format": version}, path)
        one_line(stopped(), 2, f"has format {version}, this version reads format {FORMAT}")


def test_what_is_free_to_change(stopped: Call) -> None:
    ended = stopped("allow=[sed]")
    assert ended.status == 2 and "allow=[sed]: no such field; nearest: seed" in ended.err
    Path("book.txt").rename("moved.txt")
    free = "trainer.val_check_interval=5 trainer.log_every_n_steps=1 logger=csv data.cache_dir=other"
    ended = stopped("data.path=moved.txt", *free.split())
    assert ended.status == 0 and "bit for bit" not in ended.out
