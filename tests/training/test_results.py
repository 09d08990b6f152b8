import itertools
import statistics
import subprocess
from pathlib import Path

from data.config import DataConfig
from data.passages import prompts
from data.text import open_text
from gpt.checkpoint import load_checkpoint
from gpt.inference.generate import generate
from reports.card import card
from tests.conftest import ROOT, last, summary
from tests.reference.ngrams import longest_copy
from training import results

STEPS = ("trainer.max_steps=12", "trainer.val_check_interval=6", "compile=false")
BEST = Path("runs/a/checkpoints/best.safetensors")


def test_what_samples_copy(train):
    train("name=a", "watch.sample_length=40", *STEPS)
    text, record = open_text(DataConfig(path="book.txt"), 32), summary("a")["copies"]
    model, meta = load_checkpoint("a")
    given, trained = prompts(text), text.train.tolist()

    def copied(begun):
        rows = generate(model, begun, 40, temperature=0.9, seed=0)[:, given.shape[1] :].tolist()
        return [longest_copy(row, trained) for row in rows]

    lengths = copied(given[:1].expand(20, -1))
    measured = {"median": statistics.median(lengths), "longest": max(lengths)}
    assert record == measured | {"samples": 20, "length": 40, "temperature": 0.9}
    words = f"median {record['median']:g}, maximum {max(lengths)} of 40 characters (20 samples, temperature 0.9)"
    assert words in Path("runs/a/report.html").read_text("utf-8")
    assert words in card(model, meta, BEST)


def test_what_a_run_writes_of_documents(train):
    names = map("".join, itertools.permutations("ab\ncdef", 3))
    Path("names.txt").write_text("%".join(names))
    ended = train(
        "name=a", "data.path=names.txt", "data.documents=%", "watch.sample_length=60", *STEPS
    )
    model, meta = load_checkpoint("a")

    def written(length, seed):
        tokens = generate(model, [0], length, temperature=0.9, seed=seed)[1:]
        text = "".join(meta["vocabulary"]["characters"][token] for token in tokens)
        return text[: text.rindex("\x03")].replace("\x03", "\n\n")

    shown = "\n\n".join(written(60, seed).strip("\n") for seed in (0, 1))
    first, second, *_ = filter(str.strip, shown.splitlines())
    assert f"\n\nsample     {first}\n           {second}\n\nvalidation loss" in ended.out
    step, texts = last("a")["history"]["samples"]["entries"][-1]
    assert step == summary("a")["best_step"] == 12
    assert texts == [[0.9, "", written(60, seed)] for seed in (0, 1)]
    report = Path("runs/a/report.html").read_text("utf-8")
    assert "names.txt: 210 parts, 30 of them repeated; " in report
    assert f"```text\n{written(400, 0).strip(chr(10))}\n```" in card(model, meta, BEST)


def test_the_commit_of_the_code_is_known_where_there_is_one():
    head = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True
    ).stdout.strip()
    assert (results.commit() or "").removesuffix("-dirty") == head
