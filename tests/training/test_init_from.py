import math
import shutil
import signal
from pathlib import Path

import pytest
import torch

from data.config import DataConfig
from data.text import SEEN, open_text
from gpt.checkpoint import load_checkpoint
from tests.conftest import one_line, summary
from tests.faults import faults
from tests.faults.processes import run
from tests.faults.test_resume import assert_as_if_never_touched

BASE = "runs/first/checkpoints/best.safetensors"
# What the next text has that the first one lacks: characters that sort before, between and after
# those.
ACCENTED = str.maketrans({"a": "á", "o": "ö", "q": "\t", "z": "語", "\n": "~"})
FINE = ["init_from=runs/first", "data.path=new.txt"]


@pytest.fixture
def base(trained, train, prose):
    """Beside the run called first, new.txt: 6,000 characters in the same words with five new characters."""
    Path("new.txt").write_text(prose[-6000:].translate(ACCENTED), encoding="utf-8")
    return train


@torch.no_grad()
def naive_loss(characters, text, context):
    """Nats per character, asked one by one in disjoint windows; characters new to the model get the mean logit."""
    model, meta = load_checkpoint(BASE)
    old = meta["vocabulary"]["characters"]
    total = math.log(len(characters))
    for place in range(1, len(text)):
        window = text[(place - 1) // context * context : place]
        logits = model(torch.tensor([[old.index(each) for each in window]]))[0, -1].double()
        widened = torch.stack(
            [logits[old.index(each)] if each in old else logits.mean() for each in characters]
        )
        total -= float(widened.log_softmax(-1)[characters.index(text[place])])
    return total / len(text)


@pytest.mark.slow
def test_it_starts_where_the_model_had_come_to(base, prose):
    # in the test split alone
    Path("new.txt").write_text(prose[-6000:] + "ß" * 500, encoding="utf-8")
    ended = base("name=fine", *FINE, "data.split=[0.7,0.1,0.2]", "trainer.max_steps=1")
    text = (prose[-6000:] + "ß" * 500)[4550:5200]
    expected = naive_loss("".join(sorted({*prose, "ß"})), text, 32)
    assert ended.status == 0 and f"step 0/1  validation loss {expected:.4f}" in ended.out, (
        expected,
        ended.out,
    )


OPENED = {  # texts; the last begins from a model of another
    "plain": lambda: opened("a.txt"),
    "with a new character": lambda: opened("a.txt", extra="é"),
    "another split": lambda: opened("a.txt", split=(0.8, 0.1, 0.1)),
    "lines": lambda: opened("a.txt", documents="line"),
    "another text": lambda: opened("c.txt", split=(0.8, 0.1, 0.1)),
    "a part": lambda: opened("a.txt", overfit=100),
    "after plain": lambda: opened("c.txt").read_before(opened("a.txt").texts),
}


def opened(path, extra="", **options):
    return open_text(DataConfig(path=path, **options), 16, extra)


@pytest.fixture
def two_texts(workplace, prose):
    Path("a.txt").write_text(prose, "utf-8")
    Path("c.txt").write_text(prose[:3000], "utf-8")


@pytest.mark.parametrize(("text", "read", "seen"), [
    ("plain", "plain", False), ("with a new character", "plain", False), ("another split", "plain", True),
    ("lines", "plain", True), ("another text", "plain", False), ("a part", "plain", False),
    ("plain", "a part", True), ("another split", "after plain", True), ("plain", "after plain", False),
])  # fmt: skip
def test_a_model_that_was_trained_on_the_text_under_another_split_is_named(
    two_texts, text, read, seen
):
    before = OPENED[read]().texts
    assert (SEEN in OPENED[text]().read_before(before).notes) is seen


def test_a_text_that_was_read_before_counts_once(two_texts):
    plain, through = OPENED["plain"](), OPENED["after plain"]()
    assert len(through.texts) == len(plain.read_before(through.texts).texts) == 2


# what a model was trained on, the text that begins from it, and whether that one holds it out
COPIES = {
    "a file of a list": ("[a.txt,c.txt]", {"path": "a.txt"}, True),
    "a file of a folder": ("folder", {"path": "a.txt"}, True),
    "other line ends": ("a.txt", {"path": "crlf.txt"}, True),
    "its validation text": ("a.txt", {"path": "c.txt", "validation": "a.txt"}, True),
    "its training text": ("a.txt", {"path": "a.txt", "validation": "c.txt"}, False),
    "another text": ("a.txt", {"path": "c.txt"}, False),
}


@pytest.mark.parametrize("kind", COPIES)
def test_a_model_that_was_trained_on_what_is_held_out_is_named(workplace, prose, kind):
    Path("folder").mkdir()
    for name in ("a.txt", "folder/x.txt"):
        Path(name).write_text(prose)
    for name in ("c.txt", "folder/y.txt"):
        Path(name).write_text(prose[:3000])
    Path("crlf.txt").write_bytes(prose.replace("\n", "\r\n").encode())
    trained_on, given, seen = COPIES[kind]
    model = open_text(DataConfig(path=trained_on), 16)
    text = open_text(DataConfig(**given), 16).read_before(model.texts)
    assert (SEEN in text.notes) is seen
    # a file of an earlier version
    old = [{key: each[key] for key in ("sha256", "split")} for each in model.texts]
    assert SEEN not in open_text(DataConfig(**given), 16).read_before(old).notes


def test_what_a_run_started_from_is_said(base):
    ended = base("name=fine", *FINE)
    assert ended.status == 0 and ended.err == ""
    assert f"from       {BASE}, step 30, 5 new characters '\\t~áö語'\n" in ended.out
    assert summary("fine")["init_from"] == "runs/first"
    meta, old = (
        load_checkpoint("runs/fine")[1],
        load_checkpoint(BASE)[1]["vocabulary"]["characters"],
    )
    assert (
        meta["vocabulary"]["characters"] == "".join(sorted({*old, *"\t~áö語"}))
        and meta["step"] > 0
    )
    ended = base("resume=runs/fine", "init_from=other", "trainer.max_steps=90", defaults=False)
    one_line(ended, 2, "init_from=other (the run has runs/first)", "allow= cannot permit")


def test_a_run_cannot_start_from_a_model_afterwards(base):
    ended = base("resume=runs/first", "init_from=other", "trainer.max_steps=90", defaults=False)
    one_line(ended, 2, "init_from=other (the run has none)", "allow= cannot permit")


def test_a_run_says_that_its_initial_model_has_read_the_text(base, prose):
    Path("copy.txt").write_bytes(prose.replace("\n", "\r\n").encode())
    ended = base("name=fine", "init_from=first", "data.path=copy.txt", "trainer.max_steps=2")
    assert SEEN in ended.out and SEEN in summary("fine")["notes"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "recipe", [["model.dropout=0.1", "data.micro_batch=2"], ["callbacks=ema", "optim=adamw"]]
)
def test_killed_and_resumed(base, recipe):
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
