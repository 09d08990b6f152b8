import csv
import re
from pathlib import Path

import numpy as np
import pytest
import torch

from conf.compose import read_config
from conf.schema import PRECISIONS
from data.text import open_text
from gpt.checkpoint import load_checkpoint
from tests.conftest import last, summary
from tests.faults import faults
from tests.reference import losses
from tests.test_score import figures, lines_of
from training.module import LitGPT

STEPS = (
    "trainer.max_steps=12",
    "trainer.val_check_interval=6",
    "trainer.log_every_n_steps=4",
    "compile=false",
)


@pytest.mark.slow
def test_nothing_is_read_between_logs_and_a_loss_that_is_no_number_is_found_at_the_next(
    train, monkeypatch
):
    fetch_losses = LitGPT.fetch_losses
    reads = list[list[int]]()

    def fetching(module):
        steps = [step for step, _ in module.pending_losses]
        fetch_losses(module)
        if steps:
            reads.append(steps)

    monkeypatch.setattr(LitGPT, "fetch_losses", fetching)
    monkeypatch.setattr(LitGPT, "asynchronous", True)  # as on a GPU
    monkeypatch.setattr("training.module.StepGraph", lambda update, _: update)
    monkeypatch.setattr("training.callbacks.display.LINE_SECONDS", 0.0)
    assert train("name=a", *STEPS).status == 0
    assert reads == [[0], [1, 2, 3], [4, 5], [6, 7], [8, 9, 10, 11]], (
        "the first step is slow and timed alone"
    )
    reads.clear()
    # put back afterwards
    monkeypatch.setattr(faults.training.module, "F", faults.training.module.F)
    faults.spoil_loss(9)
    ended = train("name=b", *STEPS)
    assert ended.status == 1 and reads == [[0], [1, 2, 3], [4, 5], [6, 7]]
    assert re.fullmatch(
        r"train.py: step 10: the loss is nan \(batch 9 of seed 0\).*last.ckpt.*\n", ended.err
    )
    assert last("b")["global_step"] == 6


@pytest.mark.parametrize("precision", [each for each in PRECISIONS if each != "auto"])
def test_the_last_validation_says_what_score_says(precision, train, score):
    steps = (
        "trainer.max_steps=12",
        "trainer.val_check_interval=12",
        "optim.lr=0.05",
        "compile=false",
    )
    assert train("name=a", f"trainer.precision={precision}", *steps).status == 0
    characters = lines_of(
        score("a", "--split", "validation", "--window", "disjoint", "--per-char").out
    )
    expected = pytest.approx(np.mean([each["nats"] for each in characters]), abs=1e-6)
    ((step, loss, _),) = last("a")["history"]["validations"]["entries"]
    assert (step, loss) == (12, expected) and summary("a")["last_val_loss"] == expected


@pytest.mark.parametrize("kind, tokenizer", [("line", "char"), ("paragraph", "byte")])
def test_a_list_is_evaluated_document_by_document(kind, tokenizer, train, score):
    """Validation, the end of a run and score.py say what one forward for each token says."""
    letters = "".join(np.random.default_rng(0).choice(list("abcé "), 4000))
    words = [
        letters[begin : begin + size] + "."
        for begin, size in enumerate([1, 7, 30, 31, 32, 33, 320] * 20)
    ]
    Path("list.txt").write_text(("\n" if kind == "line" else "\n\n").join(words))
    given = (
        "data.path=list.txt",
        f"data.documents={kind}",
        f"data.tokenizer={tokenizer}",
        "data.split=[0.6,0.2,0.2]",
    )
    ended = train(
        "name=a", *given, "trainer.max_steps=6", "trainer.val_check_interval=6", "compile=false"
    )
    model, _ = load_checkpoint(last_model := "runs/a/checkpoints/last.safetensors")
    text = open_text(read_config(Path("runs/a")).data, 32)
    documents, end = [()], tuple(text.end.tolist())
    for token in text.validation.tolist():
        documents[-1] += (token,)
        documents += [()] * (documents[-1][-len(end) :] == end)
    for stride in (32, 16):
        nats = list[float]()
        for before, token in losses.read_by_document(documents[:-1], end, 32, stride):
            with torch.no_grad():
                nats.append(losses.surprisal(model(torch.tensor([before]))[0, -1].tolist(), token))
        assert len(nats) == len(text.validation)
        found = np.sum(nats) / text.characters["validation"]
        name = "windows of 32 at documents" + ", stride 16" * (stride < 32)
        for option in (
            ["--stride", "16"],
            ["--window", "documents" if stride == 32 else "strided", "--per-char"],
        ):
            said = score(last_model, "--split", "validation", *option)
            assert figures(said.out + said.err)[name][0] == pytest.approx(found, abs=2e-6)
        if stride == 32:
            assert summary("a")["last_val_loss"] == pytest.approx(np.mean(nats), abs=1e-6)
            assert summary("a")["evaluation"]["mode"] == "documents" and name in ended.out
    said = score("a", "--split", "validation", "--per-document", "--csv", "all.csv")
    written = list(csv.DictReader(Path("all.csv").read_text("utf-8").splitlines()))
    count, size = len(documents) - 1, text.characters["validation"]
    assert f"validation split of a: {count} documents, {size:,} characters" in said.out
    assert len(written) == count and sum(int(each["characters"]) for each in written) == size
