import hashlib
import json
import math
import os
import re
import shlex
import signal
import time
from pathlib import Path
from shutil import copytree, rmtree

import numpy as np
import pytest
import torch
from lightning_utilities.core.imports import RequirementCache

from benchmarks import plain_loop
from conf.compose import read_config
from data.batches import EVALUATED_SHARE
from data.config import DataConfig
from data.text import open_text
from gpt.checkpoint import load_checkpoint
from gpt.evaluation import evaluate, window_batches
from tests.conftest import board, from_here, last, needs, needs_compiler, one_line, summary
from tests.faults import faults, processes
from tests.model_files import nats_of
from tests.reference.models import fill


def test_a_run_leaves_what_it_promises(train, monkeypatch):
    monkeypatch.setattr("training.callbacks.display.LINE_SECONDS", 0.0)
    ended = train("name=first")
    run = Path("runs/first")
    assert (ended.status, ended.err) == (0, "")
    assert ended.out == from_here((run / "train.log").read_text())
    assert os.listdir("runs") == ["first"]
    names = {"best.safetensors", "last.ckpt", "last.safetensors", "previous.ckpt"}
    assert set(os.listdir(run / "checkpoints")) == names
    logdir = shlex.quote(str(Path("runs").resolve()))
    loss = f"{summary('first')['val_loss']:.4f} nats"
    for words in (loss, "sample.py runs/first", f"--logdir {logdir}\n"):
        assert words in ended.out
    step = r"^step \d+/30  loss .* characters/s  \d:\d\d left$"
    assert len(re.findall(step, ended.out, re.MULTILINE)) == 6


def test_what_a_summary_and_a_configuration_say(trained):
    run = summary("first")
    expected = {
        "status": "finished",
        "steps": 30,
        "characters": 30 * 8 * 32,
        "text_sha256": hashlib.sha256(Path("book.txt").read_bytes()).hexdigest(),
        "mfu": None,
    }
    assert {key: run[key] for key in expected} == expected
    assert 0 < run["seconds"] < 600
    assert read_config(Path("runs/first")).trainer.precision != "auto"


def test_the_loss_of_a_run_is_exact(trained):
    model, meta = load_checkpoint(trained)
    text = open_text(DataConfig(path="book.txt"), 32)
    run = summary("first")
    assert run["val_loss"] == pytest.approx(np.mean(nats_of(model, text.validation)), abs=1e-6)
    size = len(text.validation)
    measured = {"mode": "disjoint", "context": 32, "stride": 32, "characters": size}
    assert run["evaluation"] == measured | {"split_characters": size}
    assert (meta["step"], meta["val_loss"]) == (run["best_step"], run["val_loss"])
    assert (meta["evaluation"], meta["text"]) == (measured, "book.txt")


def test_curves_are_losses_by_step(trained):
    def curve(run, tag):
        return {point.step: point.value for point in board(run).Scalars(tag)}

    losses = curve("first", "train/loss")
    validation = curve("first/validation", "val/loss")
    said = summary("first")
    assert said["validations"] == pytest.approx({str(s): v for s, v in validation.items()})
    assert said["last_val_loss"] == said["validations"]["30"]
    assert said["val_loss"] == min(said["validations"].values())
    guess = math.log(len(set(Path("book.txt").read_text())))
    assert losses[5] == pytest.approx(guess, abs=0.5)
    assert losses[30] < losses[5]


@pytest.mark.parametrize("whole", [False, True])
def test_validations_are_of_the_same_windows_and_the_results_of_more(train, monkeypatch, whole):
    monkeypatch.setattr("data.batches.VALIDATION_TOKENS", 64)
    text = open_text(DataConfig(path="book.txt"), 32).evaluated
    split = len(text.tokens)
    steps = math.ceil(split / (EVALUATED_SHARE * 8 * 32)) - (not whole)
    given = ("trainer.val_check_interval=1", "callbacks=snapshots", "trainer.precision=32-true")
    out = train("name=a", f"trainer.max_steps={steps}", *given).out
    run = summary("a")
    characters = run["evaluation"]["characters"]
    (line,) = re.findall("validation loss .*best checkpoint.*", out)
    assert run["evaluation"]["split_characters"] == split
    assert f"{characters:,}" in line
    assert (characters == split) == ("all" in line) == whole
    assert ("score.py runs/a --split validation" in out) != whole

    def loss_of(model, most):
        return evaluate(model, text, window_batches(text, text.windows(32, most=most))).loss

    validated = {}
    for step in range(1, steps + 1):
        model, _ = load_checkpoint(f"runs/a/checkpoints/step-{step}.safetensors")
        validated[str(step)] = loss_of(model, 64)
    assert run["validations"] == pytest.approx(validated, rel=1e-6)
    final = loss_of(model, min(split, int(EVALUATED_SHARE * steps * 8 * 32)))
    assert run["last_val_loss"] == pytest.approx(final, rel=1e-6)


def test_a_run_continues_with_a_text_that_has_moved(trained, train):
    Path("book.txt").rename("moved.txt")
    given = ["data.path=moved.txt", "data.cache_dir=other", "logger=csv", "trainer.max_steps=40"]
    ended = train("resume=first", *given, defaults=False)
    assert ended.status == 0 and "bit for bit" not in ended.out and summary("first")["steps"] == 40


def test_the_page_hparams_has_a_row_for_a_run(trained):
    from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData

    found = board("first")
    metadata = found.SummaryMetadata("_hparams_/session_start_info")
    start = HParamsPluginData.FromString(metadata.plugin_data.content).session_start_info
    assert start.hparams["model.dim"].number_value == 32
    (loss,) = found.Scalars("val/best_loss")
    assert loss.value == pytest.approx(summary("first")["val_loss"])


def test_a_logger_that_is_not_installed_is_refused(train, monkeypatch):
    monkeypatch.setattr(
        "lightning.pytorch.loggers.wandb._WANDB_AVAILABLE", RequirementCache("wandb>=1000")
    )
    one_line(train("logger=wandb"), 2, "pip install -c constraints.txt -e '.[wandb]'")
    assert not Path("runs").exists()


def test_nanogpt_s_settings_make_nanogpt_s_model(train):
    given = "experiment=nanogpt_cpu data.path=book.txt trainer.max_steps=1 watch.pictures=false"
    assert train(*given.split(), "name=a", defaults=False).status == 0
    model = fill(load_checkpoint("runs/a/checkpoints/last.ckpt")[0])
    plain = plain_loop.Model(model.vocabulary, plain_loop.SHAPES["cpu"])
    state = {}
    for key, value in model.state_dict().items():
        key = key.replace("position_embedding", "positions").replace("mlp.", "")
        state[key.replace("attention.", "")] = value
    plain.load_state_dict(state)
    tokens = np.random.default_rng(0).integers(model.vocabulary, size=300)
    x, y = plain_loop.random_batch(tokens, plain_loop.SHAPES["cpu"], "cpu")
    assert torch.equal(x[:, 1:], y[:, :-1]) and torch.allclose(model(x), plain(x), atol=1e-5)
    expected = torch.nn.functional.cross_entropy(model(x).flatten(0, 1), y.flatten())
    torch.testing.assert_close(plain_loop.loss_of(plain, x, y), expected)


@pytest.mark.parametrize(("tokenizer", "unit"), [("char", "character"), ("byte", "byte")])
def test_other_scripts_in_a_file_of_any_name(train, tokenizer, unit):
    name = "it's my [book], a=b (1) Ἰλιάς.txt"
    Path(name).write_text("μῆνιν ἄειδε θεὰ Πηληϊάδεω Ἀχιλῆος\n" * 200, encoding="utf-8")
    given = ["name=a", f"data.tokenizer={tokenizer}", "trainer.max_steps=5"]
    ended = train(f"data.path={name}", *given)
    assert ended.status == 0
    assert f" bits) per {unit}" in ended.out
    data = read_config(Path("runs/a")).data
    assert data.path == name
    text = open_text(data, 32)
    per_character = len(text.train) / len(text.tokenizer.decode(text.train)) / math.log(2)
    (loss,), (bits,) = (board("a").Scalars(f"train/{tag}") for tag in ("loss", "bpc"))
    assert bits.value == pytest.approx(loss.value * per_character, rel=1e-4)
    run = summary("a")
    assert run[f"val_bp{unit[0]}"] == pytest.approx(run["val_loss"] / math.log(2))
    assert run["val_bpb"] < run["val_bpc"]


def test_rates_that_ruin_the_model(train):
    ended = train("optim.muon_lr=1e30", "minutes=1")
    one_line(ended, 1, "step 2: the loss is nan (batch 1 of seed 0): training has diverged")
    assert ended.err.endswith("optim.lr=0.006 optim.muon_lr=0.01\n")
    assert not Path("runs").exists(), "found while steps are timed"


def test_a_model_that_is_worse_than_guessing_has_diverged(train):
    ended = train("optim.lr=80", "name=a")
    one_line(ended, 1, "training has diverged", "optim.lr=0.006 optim.muon_lr=0.01")
    assert "resume=" not in ended.err and "What helps: lower learning rates" in ended.out
    found = summary("a")
    assert found["status"] == "diverged" and found["val_loss"] > 1.2 * found["uniform_loss"]
    assert "training has diverged" in Path("runs/a/report.html").read_text()
    again = train("optim.lr=80", "name=a", "resume=auto")
    assert (again.status, again.err) == (1, ended.err) and summary("a") == found


@pytest.mark.usefixtures("trained")
def test_resume_auto_skips_a_run_that_has_diverged(train):
    older = Path("runs/first/summary.json")
    older.write_text(older.read_text().replace('"finished"', '"interrupted"'))
    copytree("runs/first", "runs/newer")
    changes = {"status": "diverged", "begun": "2100-01-01T00:00:00"}
    Path("runs/newer/summary.json").write_text(json.dumps(summary("first") | changes))
    assert "runs/first is finished" in train("resume=auto", defaults=False).out
    rmtree("runs/first")
    one_line(train("resume=auto", defaults=False), 2, "no unfinished run", "diverged")


@pytest.mark.slow
def test_a_second_ctrl_c_leaves_at_once(workplace):
    process = processes.Process("name=a", fault=(faults.wait_at, 5))
    processes.wait_for(Path("waiting").exists)
    process.signal(signal.SIGINT)
    time.sleep(1)
    assert process.process.is_alive()
    process.signal(signal.SIGINT)
    assert process.wait(timeout=40).status == 130


@pytest.mark.slow
def test_out_of_memory_names_what_to_lower(workplace):
    needs("resource", extra="")
    large = "name=a compile=false model.context=1024 model.dim=8 model.heads=1 data.batch=2048 model.attention=explicit"
    ended = processes.run(*large.split(), fault=(faults.limit_unseen, 6 << 30))
    one_line(
        ended, 2, "out of memory: lower data.micro_batch, data.batch, model.context or model.dim"
    )


@pytest.mark.slow
def test_compiled_steps_are_the_steps(train):
    """With dropout they are the same only if both draw the same masks in the same order."""
    needs_compiler()
    # All that attention can be given beyond the default: dropout, a bias, blocks of a window.
    given = "trainer.precision=32-true model.layers=1 model.dropout=0.5 model.positions=learned "
    given += "model.window=5 model.context=40"
    assert processes.run("name=compiled", "compile=true", *given.split()).status == 0
    assert train("name=eager", "compile=false", *given.split()).status == 0
    assert list(last("compiled")["state_dict"]) == list(last("eager")["state_dict"])
    assert summary("compiled")["val_loss"] == pytest.approx(summary("eager")["val_loss"], abs=1e-3)
