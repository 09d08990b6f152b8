import gzip
import hashlib
import math
import random
import shutil
import signal
import unicodedata
from dataclasses import replace
from html import unescape
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml

from data.config import DataConfig
from data.text import SEEN, Text, open_text
from gpt import model_file
from gpt.checkpoint import load_checkpoint
from reports.card import card
from tests.conftest import Call, one_line, summary
from tests.faults import faults
from tests.faults.processes import run
from tests.faults.test_resume import assert_as_if_never_touched
from tests.model_files import about, filled, write_model_file
from tests.reference.models import tiny

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


def trained_on(text: Text, *before: dict[str, Any]) -> dict[str, Any]:
    own = {"sha256": text.hashes, "share": text.share, "split": text.split_hash, "before": list(before)}
    return about(tiny(), trained_on=own)


def test_a_model_has_read_what_was_not_held_out_in_its_own_run(workplace: Path, prose: str) -> None:
    lines = "".join(f"{random.Random(i).getrandbits(60):x}\n" for i in range(400))
    for name, content in {"a": prose, "b": prose[:-1], "c": prose[:3000], "lines": lines}.items():
        Path(f"{name}.txt").write_text(content, "utf-8")
    for number in range(45):
        Path("many").mkdir(exist_ok=True)
        Path(f"many/{number}.txt").write_text(f"{number} {prose[number:2000]}", "utf-8")

    def opened(path: str, *split: float, extra: str = "", **others: Any) -> Text:
        return open_text(DataConfig(path=path, **({"split": list(split)} if split else {}), **others), 16, extra)

    plain, divided = opened("a.txt"), opened("lines.txt", documents="line")
    plain_meta, divided_meta = trained_on(plain), trained_on(divided)
    cases = [
        (plain, plain_meta, False),
        (opened("a.txt", extra="é"), plain_meta, False),
        (opened("a.txt", 0.95, 0.05, 0.0), plain_meta, False),
        (opened("a.txt", 0.8, 0.1, 0.1), plain_meta, True),
        (opened("[a.txt,b.txt]", 0.8, 0.2, 0.0), plain_meta, True),
        (opened("b.txt", 0.8, 0.1, 0.1), plain_meta, False),
        (opened("c.txt", validation="a.txt"), plain_meta, True),
        (opened("a.txt", validation="c.txt"), plain_meta, False),
        (opened("a.txt", overfit=100), plain_meta, False),
        (plain, trained_on(opened("a.txt", overfit=100)), True),
        (divided, divided_meta, False),
        (opened("lines.txt", 0.8, 0.1, 0.1, documents="line"), divided_meta, True),
        (opened("lines.txt"), divided_meta, True),
        (opened("many"), trained_on(opened("many")), False),
        (opened("many", 0.8, 0.1, 0.1), trained_on(opened("many")), True),
        (opened("many", documents="file"), trained_on(opened("many")), True),
        (opened("a.txt", 0.8, 0.1, 0.1), trained_on(opened("c.txt"), *model_file.texts_read(plain_meta)), True),
    ]  # fmt: skip
    for number, (text, meta, seen) in enumerate(cases):
        assert (text.read_before(model_file.texts_read(meta)).notes != text.notes) is seen, number
    twice = trained_on(plain, *model_file.texts_read(plain_meta))
    assert len(model_file.texts_read(twice)) == 1, "the same text again is one text"


def test_a_copy_with_other_bytes_is_the_same_text(workplace: Path, prose: str) -> None:
    text = "Überall é und 한국어\n" + prose
    Path("a.txt").write_text(text, "utf-8", newline="\n")
    copies = {
        "crlf.txt": text.replace("\n", "\r\n").encode(), "mark.txt": b"\xef\xbb\xbf" + text.encode(),
        "nfd.txt": unicodedata.normalize("NFD", text).encode(), "zipped.txt.gz": gzip.compress(text.encode()),
        "old.txt": text.replace("\n", "\r").encode("utf-16"), "other.txt": text[1:].encode(),
    }  # fmt: skip
    for name, content in copies.items():
        Path(name).write_bytes(content)
    for kind in ("char", "byte"):
        first = open_text(DataConfig(path="a.txt", tokenizer=kind), 16)
        raw = [hashlib.sha256(Path("a.txt").read_bytes()).hexdigest()]  # what older model files have
        for name in ["a.txt", *copies]:
            encoding = "utf-16" if name == "old.txt" and kind == "char" else "utf-8"
            for split in ([0.8, 0.1, 0.1], [0.9, 0.05, 0.05]):
                again = open_text(DataConfig(path=name, tokenizer=kind, encoding=encoding, split=split), 16)
                wanted = split[0] == 0.8 and name != "other.txt" and (kind, name) != ("byte", "old.txt")
                for hashes in (first.hashes, raw):
                    read = model_file.texts_read(trained_on(replace(first, hashes=hashes)))
                    assert (SEEN in again.read_before(read).notes) is wanted, (kind, name, split)
                assert again.sha256 == hashlib.sha256(gunzipped(name)).hexdigest()


def gunzipped(name: str) -> bytes:
    content = Path(name).read_bytes()
    return gzip.decompress(content) if name.endswith(".gz") else content


def test_one_file_that_two_large_sets_share_is_found(workplace: Path, prose: str) -> None:
    """The model knows which files of its text were held out; of very many it stores a sample."""
    for folder in ("first", "second", "huge"):
        Path(folder).mkdir()
        for number in range(1500 if folder == "huge" else 60):
            Path(f"{folder}/{number:04}.txt").write_text(f"{folder} {number} {prose[number : number + 200]}\n" * 2)
    first, huge = (open_text(DataConfig(path=folder), 16) for folder in ("first", "huge"))
    known = {content_of(path): path for folder in ("first", "huge") for path in Path(folder).iterdir()}
    held_out = [known[sha] for sha in first.held_out]
    trained = [known[sha] for sha in first.hashes]
    assert len(held_out) == 6 and len(trained) == 54 and first.share == 1.0
    second = open_text(DataConfig(path="second"), 16)
    place = next(name for name in Path("second").iterdir() if content_of(name) in second.held_out)
    for shared, seen in ((trained[0], True), (held_out[0], False), (trained[-1], True)):
        place.write_bytes(shared.read_bytes().replace(b"\n", b"\r\n"))
        again = open_text(DataConfig(path="second"), 16)
        assert content_of(shared) in again.held_out
        assert (SEEN in again.read_before(model_file.texts_read(trained_on(first))).notes) is seen, shared
    of_huge = sorted(sha for sha in known if known[sha].parent.name == "huge" and sha not in huge.held_out)
    assert huge.hashes == of_huge[:1000] and len(of_huge) > 1300
    texts = [{"sha256": huge.hashes, "share": 1.0, "split": str(number)} for number in range(50)]
    meta = trained_on(huge, *texts)
    write_model_file("long.safetensors", filled(), trained_on=meta["trained_on"] | {"before": texts[:32]})
    assert model_file.read("long.safetensors").meta["trained_on"]["sha256"] == huge.hashes
    assert model_file.texts_read(meta)[1:] == texts[:31]


def test_a_file_that_is_one_document_is_held_out_only_in_its_split(workplace: Path, prose: str) -> None:
    for folder in ("first", "second"):
        Path(folder).mkdir()
        for number in range(45):
            Path(f"{folder}/{number:02}.txt").write_text(f"{folder} {number} {prose[number : number + 200]}\n" * 2)
    texts = {kind: open_text(DataConfig(path="first", documents=kind), 16) for kind in ("file", "line")}
    paths = {content_of(path): path for path in Path("first").iterdir()}
    whole = texts["file"].tokenizer.decode(np.concatenate((texts["file"].validation, texts["file"].test)))
    inside = {sha for sha, path in paths.items() if path.read_text() in whole}
    assert texts["file"].held_out.keys() == inside and 2 <= len(inside) < 10
    assert set(texts["file"].hashes) == paths.keys() - inside
    assert texts["line"].held_out.keys() == paths.keys(), "a part of each file may be held out"
    for kind, text in texts.items():
        for sha, path in paths.items():
            Path("second/00.txt").write_bytes(path.read_bytes())
            read = model_file.texts_read(trained_on(open_text(DataConfig(path="second/00.txt"), 16)))
            assert (SEEN in text.read_before(read).notes) is (kind == "line" or sha in inside), (kind, path)
    for number in range(10):
        Path(f"first/blank{number}.txt").write_text(number * " " + "\n")
    assert open_text(DataConfig(path="first", documents="file"), 16).held_out.keys() == inside


def content_of(path: Path) -> str:
    return hashlib.sha256(path.read_bytes().replace(b"\r\n", b"\n")).hexdigest()[:16]


@pytest.mark.slow
def test_a_loss_on_text_that_the_model_has_read_is_said_everywhere(base: Call) -> None:
    split, names = "data.split=[0.5,0.25,0.25]", ("between", "last", "kept")
    for name, start, *others in (
        ("between", "first", "data.path=new.txt"), ("last", "between", "data.path=book.txt", split),
        ("kept", "between", "data.path=book.txt"),
    ):  # fmt: skip
        ended = base(f"name={name}", f"init_from={start}", "trainer.max_steps=12", *others)
        assert ended.status == 0 and (SEEN in ended.out) is (name == "last"), ended
    assert SEEN in base("resume=runs/last", "trainer.max_steps=14", defaults=False).out
    for name in names:
        run = Path("runs") / name
        assert (
            (SEEN in summary(name)["notes"])
            is (SEEN in unescape((run / "report.html").read_text("utf-8")))
            is (name == "last")
        )
        (model, meta), file = load_checkpoint(run), run / "checkpoints/best.safetensors"
        assert (SEEN in card(model, meta, file)) is (name == "last")
        assert len(model_file.texts_read(meta)) == {"between": 2, "last": 3, "kept": 2}[name], meta["trained_on"]


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
    for resume, init_from, had in (("fine", "other", "runs/first"), ("first", "runs/fine", "none")):
        ended = base(f"resume=runs/{resume}", f"init_from={init_from}", "trainer.max_steps=90", defaults=False)
        one_line(ended, 2, f"cannot change init_from={init_from} (the run has {had}); allow= cannot permit")
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
        "init_from=book.txt": "book.txt: is damaged or not a model file",
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
