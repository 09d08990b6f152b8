import math
import os
import shutil
import signal
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch
import yaml

from gpt import model_file
from gpt.checkpoint import load_checkpoint
from tests.conftest import Call, one_line, summary
from tests.faults import faults
from tests.faults.processes import run
from tests.faults.test_resume import assert_as_if_never_touched
from training.init_from import DEMO, model_to_start_from

BASE = "runs/first/checkpoints/best.safetensors"
# What the next text has that the first one lacks: characters that sort before, between and after those.
ACCENTED = str.maketrans({"a": "á", "o": "ö", "q": "\t", "z": "語", "\n": "~"})
FINE = ["init_from=runs/first", "data.path=new.txt"]


@pytest.fixture
def base(trained: Path, train: Call, prose: str) -> Call:
    """Beside the run called first, new.txt: 6,000 characters in the same words with five new characters."""
    Path("new.txt").write_text(prose[-6000:].translate(ACCENTED), encoding="utf-8")
    return train


def config(run: str) -> dict[str, Any]:
    return yaml.safe_load(Path(f"runs/{run}/config.yaml").read_text("utf-8"))


@torch.no_grad()
def naive_loss(characters: str, text: str, context: int) -> float:
    """Nats per character, asked one by one in disjoint windows; characters new to the model get the mean logit."""
    model, meta = load_checkpoint(BASE)
    old = meta["vocabulary"]["characters"]
    total = math.log(len(characters))
    for place in range(1, len(text)):
        window = text[(place - 1) // context * context : place]
        logits = model(torch.tensor([[old.index(each) for each in window]]))[0, -1].double()
        widened = torch.stack([logits[old.index(each)] if each in old else logits.mean() for each in characters])
        total -= float(widened.log_softmax(-1)[characters.index(text[place])])
    return total / len(text)


@pytest.mark.slow
def test_it_starts_where_the_model_had_come_to(base: Call, prose: str) -> None:
    Path("new.txt").write_text(prose[-6000:] + "ß" * 500, encoding="utf-8")  # in the test split alone
    ended = base("name=fine", *FINE, "data.split=[0.7,0.1,0.2]", "trainer.max_steps=1")
    text = (prose[-6000:] + "ß" * 500)[4550:5200]
    expected = naive_loss("".join(sorted({*prose, "ß"})), text, 32)
    assert ended.status == 0 and f"step 0/1  validation loss {expected:.4f}" in ended.out, (expected, ended.out)


def test_the_model_of_the_project_is_named_for_a_text_that_it_can_begin_with(monkeypatch: pytest.MonkeyPatch) -> None:
    meta = model_file.read_meta(DEMO)
    assert model_file.read(DEMO).meta.items() <= meta.items()
    own = meta | {"trained_on": {"sha256": ["own"], "share": 0.9}}
    monkeypatch.setattr(model_file, "read_meta", lambda path: own)
    for characters, hashes, fits in (
        ("abcd", [], True), ("abяж", [], True), ("aбяж", [], False), ("", [], False), ("abcd", ["other"], True),
        ("abcd", ["other", "own"], False),
    ):  # fmt: skip
        text = Mock(hashes=hashes, tokenizer=Mock(vocabulary={"characters": characters} if characters else {}))
        assert model_to_start_from(text) == (Path(os.path.relpath(DEMO)) if fits else None), (characters, hashes)


@pytest.mark.slow
def test_what_a_run_started_from_is_said(base: Call) -> None:
    before = {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in Path("runs/first").rglob("*.*")}
    ended = base("name=fine", *FINE)
    assert ended.status == 0 and ended.err == ""
    said = "from       runs/first/checkpoints/best.safetensors, step 30, 5 new characters '\\t~áö語'\n"
    assert said in ended.out and said in Path("runs/fine/train.log").read_text()
    assert summary("fine")["init_from"] == config("fine")["init_from"] == "runs/first"
    assert {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in before} == before
    meta, old = load_checkpoint("runs/fine")[1], load_checkpoint(BASE)[1]["vocabulary"]["characters"]
    assert meta["vocabulary"]["characters"] == "".join(sorted({*old, *"\t~áö語"})) and meta["step"] > 0
    for resume, init_from, had in (("fine", "other", "runs/first"), ("first", "runs/fine", "null")):
        ended = base(f"resume=runs/{resume}", f"init_from={init_from}", "trainer.max_steps=90", defaults=False)
        one_line(ended, 2, f"cannot change init_from={init_from} (the run has {had}); no allow= helps")
    name = 'it\'s [my] "модель", 2=3.safetensors'
    shutil.copy(BASE, name)
    for number, taken in enumerate(("first", name)):
        again = base(f"name=same{number}", f"init_from={taken}", "trainer.max_steps=1")
        assert "step 30, the same vocabulary\n" in again.out, again.err
        assert config(f"same{number}")["init_from"] == taken
    assert "step 0/" not in Path("runs/first/train.log").read_text()


def test_a_wrong_word_is_answered_in_one_line(base: Call) -> None:
    Path("empty").mkdir()
    for arguments, said in {
        "init_from=runs/firs": "init_from: runs/firs: no such model, nor a run in runs/",
        "init_from=book.txt": "book.txt: is damaged or no model file",
        "init_from=empty": "empty: has no model file (empty/best.safetensors or empty/last.safetensors)",
        "init_from=first model=small": "first: cannot change model.layers=4 (the model has 2), model.heads=",
        "init_from=first model.context=5000": "model.context=5000",
    }.items():  # fmt: skip
        ended = base("name=fine", "data.path=new.txt", *arguments.split(), defaults=False)
        one_line(ended, 2, said)
        assert ended.out == "", arguments
    assert [path.name for path in Path("runs").iterdir()] == ["first"]


@pytest.mark.slow
@pytest.mark.parametrize("recipe", [["model.dropout=0.1", "data.micro_batch=2"], ["callbacks=ema", "optim=adamw"]])
def test_killed_and_resumed(base: Call, recipe: list[str]) -> None:
    given = ["data.path=new.txt", *recipe]
    assert run("name=whole", "init_from=first", *given).status == 0
    for fault in ((faults.at_step, 7), (faults.at_step, 16)):
        killed = run("name=cut", "init_from=first", "resume=auto", *given, fault=fault)
        assert killed.status == -signal.SIGKILL, killed
    shutil.rmtree("runs/first")
    encoded = sorted(Path("cache/chargpt/encoded").iterdir())
    ended = run("resume=runs/cut", defaults=False)
    assert ended.status == 0 and ended.err == "", ended
    assert sorted(Path("cache/chargpt/encoded").iterdir()) == encoded, "the text is encoded once"
    assert_as_if_never_touched(Path("runs/whole"), Path("runs/cut"))
