import math
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from data.tokenizer import CharTokenizer
from gpt.checkpoint import load_checkpoint
from tests.conftest import Call, one_line, summary
from tests.faults import faults
from tests.faults.processes import events, run
from tests.faults.test_resume import assert_as_if_never_touched

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
    assert sorted(path.name for path in Path("runs/fine/checkpoints").iterdir())[-1] == "step-00000030.ckpt"
    name = 'it\'s [my] "модель", 2=3.safetensors'
    shutil.copy(BASE, name)
    for number, taken in enumerate(("first", name)):
        again = base(f"name=same{number}", f"init_from={taken}", "trainer.max_steps=1")
        assert "step 30, the same vocabulary\n" in again.out, again.err
        assert config(f"same{number}")["init_from"] == taken
    assert "step 0/" not in Path("runs/first/train.log").read_text()
    base("name=bytes", "data.tokenizer=byte", "trainer.max_steps=1")
    ended = base("name=more", "init_from=bytes", "data.path=new.txt", "trainer.max_steps=1")
    assert ended.status == 0 and " test bytes, 256 distinct" in ended.out and "step 1, the same vocabulary" in ended.out
    assert config("more")["data"]["tokenizer"] == "byte"


def test_a_new_vocabulary_means_the_same(base: Call) -> None:
    assert base("name=fine", *FINE, "trainer.max_steps=1", "optim.lr=1e-30", "optim.muon_lr=1e-30").status == 0
    (old, old_meta), (new, new_meta) = (load_checkpoint(f"runs/{name}") for name in ("first", "fine"))
    before, after = (CharTokenizer(meta["vocabulary"]["characters"]) for meta in (old_meta, new_meta))
    text = "The very words of old, and no others."
    known = "".join(each for each in text if each in before.characters)
    logits = new(torch.from_numpy(after.encode(known))[None, :32])[..., after.encode(before.characters)]
    torch.testing.assert_close(logits, old(torch.from_numpy(before.encode(known))[None, :32]), rtol=0, atol=1e-5)


def test_a_wrong_word_is_answered_in_one_line(base: Call) -> None:
    Path("broken.safetensors").write_bytes(Path(BASE).read_bytes()[:-100])
    Path("empty").mkdir()
    for arguments, said in {
        "init_from=runs/firs": "init_from: runs/firs: no such model or run; the newest are runs/first",
        "init_from=broken.safetensors": "broken.safetensors: is damaged or no model file",
        "init_from=empty": "empty: has no model file (empty/best.safetensors or empty/last.safetensors)",
        "init_from=": "has no model file", "init_from=x" * 300: "File name too long",
        "init_from=first model=small": "first: cannot change model.layers=4 (the model has 2), model.heads=",
        "init_from=first data.tokenizer=byte": "cannot change data.tokenizer=byte (the model has char)",
        "init_from=first model.context=5000": "model.context=5000",
    }.items():  # fmt: skip
        ended = base("name=fine", "data.path=new.txt", *arguments.split(), defaults=False)
        one_line(ended, 2, said)
        assert ended.out == "", arguments
    assert [path.name for path in Path("runs").iterdir()] == ["first"]


@pytest.mark.slow
def test_going_on_and_starting_from_a_model(base: Call) -> None:
    job = ["name=fine", "resume=auto", *FINE]
    assert "there is no run runs/fine yet, starting it" in base(*job, "trainer.max_steps=10").out
    ended = base(*job, "trainer.max_steps=20")
    assert ended.status == 0 and "continuing runs/fine" in ended.out and "step 0/" not in ended.out
    assert "bit for bit" not in ended.out and "from       " not in ended.out
    for resume, init_from, had in (("fine", "other", "runs/first"), ("first", "runs/fine", "null")):
        ended = base(f"resume=runs/{resume}", f"init_from={init_from}", "trainer.max_steps=90", defaults=False)
        one_line(ended, 2, f"cannot change init_from={init_from} (the run has {had}); no allow= helps")


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


@pytest.mark.slow
def test_stopped_before_the_first_step(base: Call) -> None:
    given = [*FINE, "name=fine", "resume=auto"]
    ended = run(*given, fault=(faults.signal_in_validation, 1, "middle", signal.SIGTERM))
    assert ended.status == 128 + signal.SIGTERM and ended.err == "", ended
    assert "stopped by SIGTERM after step 0; there is no checkpoint yet, it starts again at step 0: " in ended.out
    assert "runs/fine has no checkpoint yet, starting at step 0" in base(*given).out
    assert [step for step, _ in events(Path("runs/fine"))["val/loss"]] == [0, 10, 20, 30]
