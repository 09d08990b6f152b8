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
    text = prose[-6000:] + "ß" * 500  # which is in the test split alone
    Path("new.txt").write_text(text, encoding="utf-8")
    given = "init_from=runs/first data.path=new.txt data.split=[0.7,0.1,0.2] trainer.max_steps=1"
    ended = base("name=fine", *given.split())
    expected = naive_loss("".join(sorted({*prose, "ß"})), text[4550:5200], 32)
    assert ended.status == 0 and f"step 0/1  validation loss {expected:.4f}" in ended.out, ended


@pytest.fixture
def two_texts(workplace, prose):
    Path("a.txt").write_text(prose)
    Path("c.txt").write_text(prose[:3000])
    Path("crlf.txt").write_bytes(prose.replace("\n", "\r\n").encode())


def opened(path="a.txt", extra="", **options):
    return open_text(DataConfig(path=path, **options), 16, extra)


SPLIT = {"split": (0.8, 0.1, 0.1)}


# What a model was trained on, the text that begins from it, and whether that one holds out what was read.
@pytest.mark.parametrize(("earlier", "text", "seen"), [
    ({}, {"extra": "é"}, False), ({}, SPLIT, True), ({}, {"documents": "line"}, True),
    ({}, {"path": "c.txt", **SPLIT}, False), ({}, {"overfit": 100}, False), ({"overfit": 100}, {}, True),
    ({"path": "[a.txt,c.txt]"}, {}, True), ({}, {"path": "crlf.txt"}, True),
    ({}, {"path": "c.txt", "validation": "a.txt"}, True), ({}, {"validation": "c.txt"}, False),
])  # fmt: skip
def test_a_model_that_was_trained_on_what_is_held_out_is_named(two_texts, earlier, text, seen):
    before = opened(**earlier).texts
    assert (SEEN in opened(**text).read_before(before).notes) is seen


def test_a_text_that_was_read_before_the_last_one_counts_once(two_texts):
    plain = opened()
    through = opened("c.txt").read_before(plain.texts)
    assert len(through.texts) == len(plain.read_before(through.texts).texts) == 2
    assert SEEN in opened(**SPLIT).read_before(through.texts).notes
    assert SEEN not in plain.read_before(through.texts).notes


def test_what_a_run_started_from_is_said(base):
    ended = base("name=fine", "init_from=runs/first", "data.path=[new.txt,book.txt]")
    assert ended.status == 0 and ended.err == ""
    assert SEEN in ended.out and SEEN in summary("fine")["notes"]
    assert f"from       {BASE}, step 30, 5 new characters '\\t~áö語'\n" in ended.out
    assert summary("fine")["init_from"] == "runs/first"
    new, old = (load_checkpoint(run)[1]["vocabulary"]["characters"] for run in ("fine", BASE))
    assert new == "".join(sorted({*old, *"\t~áö語"}))
    for name, model in (("fine", "runs/first"), ("first", "none")):
        ended = base(f"resume={name}", "init_from=other", "trainer.max_steps=90", defaults=False)
        one_line(ended, 2, f"init_from=other (the run has {model})", "allow= cannot permit")


@pytest.mark.slow
def test_killed_and_resumed(base):
    given = ["init_from=first", "data.path=new.txt", "model.dropout=0.1", "data.micro_batch=2"]
    assert run("name=whole", *given).status == 0
    for fault in ((faults.at_step, 7), (faults.at_step, 16)):
        killed = run("name=cut", "resume=auto", *given, fault=fault)
        assert killed.status == -signal.SIGKILL, killed
    shutil.rmtree("runs/first")
    ended = run("resume=runs/cut", defaults=False)
    assert ended.status == 0 and ended.err == "", ended
    assert_as_if_never_touched(Path("runs/whole"), Path("runs/cut"))
