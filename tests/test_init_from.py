"""Fine-tuning: `train.py init_from=...`, end to end, on a small text."""

import json
import math
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import yaml

from data.tokenizer import CharTokenizer
from gpt.checkpoint import load_checkpoint
from tests.conftest import ROOT, TINY, Ended
from tests.faults import faults
from tests.faults.processes import events, run
from tests.faults.test_resume import assert_as_if_never_touched

Train = Callable[..., Ended]
# What the next text has that the first one lacks: characters that sort before, between and after those.
ACCENTED = str.maketrans({"a": "á", "o": "ö", "q": "\t", "z": "語", "\n": "~"})
FINE = ["init_from=runs/base", "data.path=new.txt"]


@pytest.fixture
def base(train: Train, prose: str) -> Train:
    """A run called base, and new.txt beside it: 6,000 characters in the same words with five new characters."""
    assert train("name=base").status == 0
    Path("new.txt").write_text(prose[-6000:].translate(ACCENTED), encoding="utf-8")
    return train


@torch.no_grad()
def naive_loss(path: str, characters: str, text: str, context: int) -> float:
    """Nats per character of `text`, the first of which costs ln V, by a model that is asked character by character.

    Args:
        path: the model's checkpoint.
        characters: the vocabulary that the text is to be scored in; what the model does not know gets the mean logit.
        text: the text.
        context: windows are this long, and disjoint.
    """
    model, meta = load_checkpoint(path)
    old = meta["vocabulary"]["characters"]
    total = math.log(len(characters))
    for place in range(1, len(text)):
        window = text[(place - 1) // context * context : place]
        logits = model(torch.tensor([[old.index(each) for each in window]]))[0, -1].double()
        widened = torch.stack([logits[old.index(each)] if each in old else logits.mean() for each in characters])
        total -= float(widened.log_softmax(-1)[characters.index(text[place])])
    return total / len(text)


def test_it_starts_where_the_model_had_come_to(base: Train, prose: str) -> None:
    """The loss before the first step is that of the old model on the new text, by a naive loop."""
    Path("new.txt").write_text(prose[-6000:] + "ß" * 500, encoding="utf-8")  # in the test split alone
    ended = base("name=fine", *FINE, "data.split=[0.7,0.1,0.2]")
    text = (prose[-6000:] + "ß" * 500)[4550:5200]
    expected = naive_loss("runs/base/checkpoints/best.safetensors", "".join(sorted({*prose, "ß"})), text, 32)
    assert ended.status == 0 and f"step 0/30  validation loss {expected:.4f}" in ended.out, (expected, ended.out)


def test_what_a_run_started_from_is_said(base: Train) -> None:
    before = {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in Path("runs/base").rglob("*.*")}
    ended = base("name=fine", *FINE)
    assert ended.status == 0 and ended.err == ""
    said = "from       runs/base/checkpoints/best.safetensors, step 30, 5 new characters '\\t~áö語'\n"
    assert said in ended.out and said in Path("runs/fine/train.log").read_text()
    assert json.loads(Path("runs/fine/summary.json").read_text())["init_from"] == "runs/base"
    assert yaml.safe_load(Path("runs/fine/config.yaml").read_text())["init_from"] == "runs/base"
    assert {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in before} == before
    model, meta = load_checkpoint("runs/fine/checkpoints/best.safetensors")
    old = load_checkpoint("runs/base/checkpoints/best.safetensors")[1]["vocabulary"]["characters"]
    assert meta["vocabulary"]["characters"] == "".join(sorted({*old, *"\t~áö語"})) and meta["step"] > 0
    assert sorted(path.name for path in Path("runs/fine/checkpoints").iterdir())[-1] == "step-00000030.ckpt"
    again = base("name=same", "init_from=base")
    assert "step 30, the same vocabulary\n" in again.out, again.err
    assert "step 0/" not in base("name=plain").out


def test_a_new_vocabulary_means_the_same(base: Train) -> None:
    """After a step of next to nothing, old characters are what they were, wherever they have gone."""
    assert base("name=fine", *FINE, "trainer.max_steps=1", "optim.lr=1e-30", "optim.muon_lr=1e-30").status == 0
    (old, old_meta), (new, new_meta) = (
        load_checkpoint(f"runs/{name}/checkpoints/best.safetensors") for name in ("base", "fine")
    )
    before, after = (CharTokenizer(meta["vocabulary"]["characters"]) for meta in (old_meta, new_meta))
    text = "The very words of old, and no others."
    known = "".join(each for each in text if each in before.characters)
    logits = new(torch.from_numpy(after.encode(known))[None, :32])[..., after.encode(before.characters)]
    torch.testing.assert_close(logits, old(torch.from_numpy(before.encode(known))[None, :32]), rtol=0, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("characters", [0, 5])
def test_it_beats_a_model_from_scratch(train: Train, prose: str, characters: int) -> None:
    """At equal steps on the same text, by far."""
    small = prose[-4000:].translate(ACCENTED) if characters else prose[-4000:]
    Path("book.txt").write_text(prose[:-4000], encoding="utf-8")
    Path("new.txt").write_text(small, encoding="utf-8")
    assert train("name=base", "trainer.max_steps=250", "trainer.val_check_interval=250").status == 0
    given = ["data.path=new.txt", "trainer.max_steps=40"]
    train("name=fine", "init_from=base", *given)
    train("name=scratch", *given)
    fine, scratch = (
        json.loads(Path(f"runs/{name}/summary.json").read_text())["val_loss"] for name in ("fine", "scratch")
    )
    assert fine < scratch - 0.3, (fine, scratch)


def test_bytes_stay_bytes(train: Train, prose: str) -> None:
    train("name=base", "data.tokenizer=byte")
    Path("new.txt").write_text(prose[:6000].translate(ACCENTED), encoding="utf-8")
    ended = train("name=fine", *FINE)
    assert ended.status == 0 and "256 distinct" in ended.out and "step 30, the same vocabulary" in ended.out
    assert yaml.safe_load(Path("runs/fine/config.yaml").read_text())["data"]["tokenizer"] == "byte"


@pytest.mark.slow
def test_the_shape_is_that_of_the_model(base: Train, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where `minutes` would choose another."""
    monkeypatch.setattr("gpt.fit.dial.MEASURED", 0.1)
    given = ["trainer.accelerator=cpu", "compile=false", "logger=none"]
    for name, arguments in (
        ("a", ["trainer.max_steps=2"]),
        ("b", ["minutes=0.2"]),
        ("c", ["minutes=0.2", "model.dropout=0.1"]),
    ):
        assert base(f"name={name}", *FINE, *given, *arguments, defaults=False).status == 0
        model = yaml.safe_load(Path(f"runs/{name}/config.yaml").read_text())["model"]
        assert (model["layers"], model["heads"], model["dim"], model["context"]) == (2, 2, 32, 32)
        assert model["dropout"] == (0.1 if name == "c" else 0.0)


def test_names_are_taken_literally(base: Train) -> None:
    shutil.copytree("runs/base", "runs/ba se")
    names = [
        "my model, 2=3.safetensors",
        "[x].safetensors",
        'it\'s "one".safetensors',
        "модель.safetensors",
        "ünï/b c.safetensors",
        "runs/ba se",
        "ba se",
    ]
    for number, name in enumerate(names):
        Path(name).parent.mkdir(exist_ok=True)
        if name.endswith(".safetensors"):
            shutil.copy("runs/base/checkpoints/best.safetensors", name)
        ended = base(
            f"name=fine{number}", "data.path=new.txt", f"init_from={name}", "trainer.max_steps=1", "logger=none"
        )
        assert ended.status == 0, ended.err
        assert yaml.safe_load(Path(f"runs/fine{number}/config.yaml").read_text("utf-8"))["init_from"] == name


def test_a_wrong_word_is_answered_in_one_line(base: Train) -> None:
    Path("broken.safetensors").write_bytes(Path("runs/base/checkpoints/best.safetensors").read_bytes()[:-100])
    Path("empty").mkdir()
    for arguments, said in [
        (["init_from=runs/bas"], "init_from: runs/bas: no such model or run; the newest are runs/base"),
        (["init_from=book.txt"], "book.txt: is damaged or no model file"),
        (["init_from=broken.safetensors"], "broken.safetensors: is damaged or no model file"),
        (["init_from=empty"], "empty: has no model file (empty/best.safetensors or empty/last.safetensors)"),
        (["init_from="], "has no model file"),
        (["init_from=x" * 300], "File name too long"),
        (["init_from=base", "model.layers=8"], "init_from=base: cannot change model.layers=8 (the model has 2)"),
        (["init_from=base", "model=small"], "cannot change model.layers=4 (the model has 2), model.heads="),
        (["init_from=base", "data.tokenizer=byte"], "cannot change data.tokenizer=byte (the model has char)"),
        (["init_from=base", "data.path=nowhere.txt"], "data.path=nowhere.txt: no such file"),
        (["init_from=base", "model.context=5000"], "model.context=5000"),
    ]:
        typed = {argument.partition("=")[0] for argument in arguments}
        given = [] if "data.path" in typed else ["data.path=new.txt"]
        ended = base("name=fine", *given, *arguments, defaults=False)
        assert ended.status == 2 and ended.err.startswith("train.py: ") and ended.err.count("\n") == 1, ended.err
        assert said in ended.err and ended.out == "", ended.err
    assert [path.name for path in Path("runs").iterdir()] == ["base"]


def test_going_on_and_starting_from_a_model(base: Train) -> None:
    """`name=... init_from=... resume=auto`, as a requeued job types it: the run goes on, from nothing else."""
    job = ["name=fine", "resume=auto", *FINE]
    assert "nothing to go on from, starting afresh" in base(*job, "trainer.max_steps=10").out
    ended = base(*job, "trainer.max_steps=20")
    assert ended.status == 0 and "going on in runs/fine" in ended.out and "step 0/" not in ended.out
    assert "bit for bit" not in ended.out and "from       " not in ended.out
    for resume, init_from, had in (("fine", "other", "runs/base"), ("base", "runs/fine", "null")):
        ended = base(f"resume=runs/{resume}", f"init_from={init_from}", "trainer.max_steps=90", defaults=False)
        assert ended.status == 2 and ended.err.count("\n") == 1
        assert f"cannot change init_from={init_from} (the run has {had}); no allow= helps" in ended.err


@pytest.mark.slow
@pytest.mark.parametrize("recipe", [["model.dropout=0.1", "data.micro_batch=2"], ["callbacks=ema", "optim=adamw"]])
def test_killed_and_resumed(base: Train, recipe: list[str]) -> None:
    """Bit for bit: before there was a checkpoint, and then without the model it started from."""
    given = ["data.path=new.txt", *recipe]
    assert run("name=whole", "init_from=base", *given).status == 0
    for fault in ((faults.at_step, 7), (faults.at_step, 16)):
        killed = run("name=cut", "init_from=base", "resume=auto", *given, fault=fault)
        assert killed.status == -signal.SIGKILL, killed
    shutil.rmtree("runs/base")
    encoded = sorted(Path("cache/chargpt/encoded").iterdir())
    ended = run("resume=runs/cut", defaults=False)
    assert ended.status == 0 and ended.err == "", ended
    assert sorted(Path("cache/chargpt/encoded").iterdir()) == encoded, "the text is encoded once"
    assert_as_if_never_touched(Path("runs/whole"), Path("runs/cut"))


@pytest.mark.slow
def test_stopped_before_the_first_step(base: Train) -> None:
    """In the validation that shows the loss before: there is nothing to save, and the same command starts afresh."""
    given = [*FINE, "name=fine", "resume=auto"]
    ended = run(*given, fault=(faults.signal_in_validation, 1, "middle", signal.SIGTERM))
    assert ended.status == 128 + signal.SIGTERM and ended.err == "", ended
    assert "stopped by SIGTERM after step 0; there is no checkpoint yet" in ended.out
    assert "starting afresh" in base(*given).out
    assert [step for step, _ in events(Path("runs/fine"))["val/loss"]] == [0, 10, 20, 30]


def test_known_characters_that_were_tampered_with(base: Train) -> None:
    """What a checkpoint says of its vocabulary is not believed."""
    base("name=fine", *FINE)
    for known in (5, ["a"], "\ud800", "xyz", None):
        for path in Path("runs/fine/checkpoints").glob("*.ckpt"):
            contents = torch.load(path)
            contents["data"]["known"] = known
            path.unlink()
            torch.save(contents, path)
        ended = base("resume=runs/fine", "trainer.max_steps=40", defaults=False)
        assert ended.status == 2 and ended.err.startswith("train.py: ") and ended.err.count("\n") == 1, ended


@pytest.mark.slow
def test_two_processes_start_from_the_same_model(base: Train) -> None:
    assert base("name=one", *FINE, "trainer.precision=32-true").status == 0
    arguments = [argument for argument in TINY if "devices" not in argument] + ["trainer.precision=32-true"]
    command = [sys.executable, ROOT / "train.py", *arguments, *FINE, "trainer=ddp", "trainer.devices=2", "name=two"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert ended.returncode == 0, ended.stderr[-2000:]
    losses = [json.loads(Path(f"runs/{name}/summary.json").read_text())["val_loss"] for name in ("one", "two")]
    assert losses[0] == pytest.approx(losses[1], abs=2e-5)
    first = [line for line in ended.stdout.splitlines() if line.startswith("step 0/")]
    assert first and first == [
        line for line in Path("runs/one/train.log").read_text().splitlines() if "step 0/" in line
    ]
