"""train.py end to end, in this process, on a small text."""

import contextlib
import csv
import dataclasses
import json
import math
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from lightning_utilities.core.imports import RequirementCache
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import train as train_script
from benchmarks import plain_loop
from conf.schema import from_yaml
from data.arrays import open_text
from data.batches import evaluation_windows, train_batch
from data.config import DataConfig
from data.passages import prompt as prompt_of
from gpt.checkpoint import load_checkpoint
from gpt.config import ModelConfig, OptimConfig
from gpt.fit.automatic import missing_to_compile
from gpt.model import GPT
from gpt.model_file import FORMAT
from gpt.optim import lr_at, parameter_groups
from tests.conftest import ROOT, TINY, Ended, missing, needs

Train = Callable[..., Ended]


def validations(ended: Ended) -> list[str]:
    return [line for line in ended.out.splitlines() if "validation loss" in line]


def events(run: str) -> EventAccumulator:
    accumulator = EventAccumulator(f"runs/{run}", size_guidance={"tensors": 0, "scalars": 0})
    accumulator.Reload()
    return accumulator


def test_a_run_leaves_what_it_promises(train: Train) -> None:
    ended = train("name=first")
    assert ended.status == 0 and ended.err == ""
    run = Path("runs/first")
    assert [path.name for path in Path("runs").iterdir()] == ["first"]
    names = {path.name for path in run.iterdir()}
    assert {"config.yaml", "checkpoints", "train.log", "summary.json"} <= names
    assert {path.name for path in (run / "checkpoints").iterdir()} == {
        "best.safetensors", "last.safetensors", "last.ckpt", "step-00000020.ckpt", "step-00000030.ckpt",
    }  # fmt: skip
    assert (run / "checkpoints/last.ckpt").samefile(run / "checkpoints/step-00000030.ckpt")

    summary = json.loads((run / "summary.json").read_text())
    keys = (
        "status val_loss val_bpc val_bpb best_step last_val_loss test_loss test_bpc evaluation steps characters "
        "seconds characters_per_second mfu init_from parameters precision device seed versions"
    )
    assert list(summary) == keys.split()
    assert summary["status"] == "finished" and summary["steps"] == 30
    assert summary["characters"] == 30 * 8 * 32
    assert summary["val_bpc"] == pytest.approx(summary["val_loss"] / math.log(2))
    assert 0 < summary["seconds"] < 60 and summary["characters_per_second"] > 0 and summary["mfu"] is None
    assert summary["evaluation"] == {
        "mode": "disjoint", "context": 32, "stride": 32, "characters": summary["evaluation"]["characters"],
    }  # fmt: skip
    config = yaml.safe_load((run / "config.yaml").read_text())
    assert config["name"] == "first" and config["model"]["dim"] == 32 and config["trainer"]["precision"] != "auto"
    assert ended.out == (run / "train.log").read_text()
    speed = f"{summary['characters_per_second']:,.0f} characters/s\n"
    for said in (f"{summary['val_loss']:.4f} nats", speed, "sample.py runs/first", "tensorboard --logdir runs"):
        assert said in ended.out


def test_threads_that_fail_are_heard_of_again_after_a_run(train: Train) -> None:
    """While it trains, what TensorBoard's writer fails at is raised by the next call, and told once."""
    seen = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("gpt.fit.module.LitGPT.on_train_end", lambda _: seen.append(threading.excepthook))
        before = threading.excepthook
        assert train("name=a", "trainer.max_steps=10").status == 0
    assert threading.excepthook is before and seen == [train_script.hide_failed_writes]


def test_the_reported_loss_is_that_of_the_file_by_a_naive_loop(train: Train) -> None:
    train("name=first")
    model, meta = load_checkpoint("runs/first/checkpoints/best.safetensors")
    text = open_text(DataConfig(path="book.txt"), 32)
    tokens = torch.from_numpy(text.validation.astype(np.int64))
    total = math.log(text.tokenizer.size)
    with torch.no_grad():
        for place in range(1, len(tokens)):
            window = tokens[(place - 1) // 32 * 32 : place]
            total -= float(model(window[None]).double().log_softmax(-1)[0, -1, tokens[place]])
    summary = json.loads(Path("runs/first/summary.json").read_text())
    assert summary["val_loss"] == pytest.approx(total / len(tokens), abs=1e-6)
    assert summary["evaluation"]["characters"] == len(tokens)
    assert (meta["step"], meta["val_loss"]) == (summary["best_step"], summary["val_loss"])
    assert meta["evaluation"] == summary["evaluation"] and meta["text"] == "book.txt"


def test_training_is_what_a_plain_loop_does(train: Train) -> None:
    """The weights after 30 steps, against a loop that shares only the model, the batches and the schedule."""
    train("name=first", "trainer.precision=32-true", "data.micro_batch=4", "optim.clip=0.5", "optim=adamw")
    config, optim = ModelConfig(layers=2, heads=2, dim=32, context=32), OptimConfig("adamw", lr=3e-3, clip=0.5)
    text = open_text(DataConfig(path="book.txt"), 32)
    torch.manual_seed(0)
    model = GPT(config, text.tokenizer.size)
    optimizer = torch.optim.AdamW(parameter_groups(model, optim.weight_decay), betas=(0.9, 0.99))
    for step in range(30):
        batch = train_batch(text.train, 0, step, 8, 32)
        for group in optimizer.param_groups:
            group["lr"] = lr_at(step, optim, 30)
        loss = torch.nn.functional.cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        norm = torch.stack([p.grad.square().sum() for p in model.parameters() if p.grad is not None]).sum().sqrt()
        for parameter in model.parameters():
            assert parameter.grad is not None
            parameter.grad *= min(1.0, 0.5 / float(norm))
        optimizer.step()
    trained, _ = load_checkpoint("runs/first/checkpoints/last.ckpt")
    for (name, ours), theirs in zip(trained.state_dict().items(), model.state_dict().values(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=2e-4, msg=lambda m, name=name: f"{name}: {m}")


def test_the_same_seed_gives_the_same_losses_and_another_seed_others(train: Train) -> None:
    first = train("name=a", "model.dropout=0.1")
    again = train("name=b", "model.dropout=0.1")
    other = train("name=c", "model.dropout=0.1", "seed=1")
    assert validations(first) and validations(first) == validations(again)
    assert validations(first) != validations(other)
    exact = [json.loads(Path(f"runs/{name}/summary.json").read_text())["val_loss"] for name in "abc"]
    assert exact[0] == exact[1] != exact[2]
    same, _ = load_checkpoint("runs/a/checkpoints/last.ckpt")
    for ours, theirs in zip(
        same.parameters(), load_checkpoint("runs/b/checkpoints/last.ckpt")[0].parameters(), strict=True
    ):
        assert torch.equal(ours, theirs)


def test_tensorboard_shows_the_run(train: Train) -> None:
    train("name=board")
    accumulator = events("board")
    groups = ["embedding", "attention", "mlp", "norm", "head"]
    parts = ["data", "forward", "backward", "optimizer", "other"]
    assert set(accumulator.Tags()["scalars"]) == {
        "train/loss", "train/bpc", "train/loss_spikes", "val/loss", "val/bpc", "val/bpb", "optim/lr", "optim/grad_norm",
        "optim/clip_share", "perf/chars_per_s", "perf/memory_gib", "best/val_loss", "best/val_bpc",
        "best/test_loss", *(f"update/{group}" for group in groups), *(f"time/{part}" for part in parts),
    }  # fmt: skip
    assert [point.step for point in accumulator.Scalars("train/loss")] == [5, 10, 15, 20, 25, 30]
    assert [point.step for point in accumulator.Scalars("val/loss")] == [10, 20, 30]
    summary = json.loads(Path("runs/board/summary.json").read_text())
    assert accumulator.Scalars("val/loss")[-1].value == pytest.approx(summary["last_val_loss"], rel=1e-6)
    for point in accumulator.Scalars("optim/lr"):
        assert point.value == pytest.approx(lr_at(point.step - 1, OptimConfig(), 30), rel=1e-6)
    losses = [point.value for point in accumulator.Scalars("train/loss")]
    assert (
        losses[0] == pytest.approx(math.log(len(set(Path("book.txt").read_text()))), abs=0.5) and losses[-1] < losses[0]
    )


@pytest.mark.parametrize(
    ("number", "status", "extra"),
    [
        (signal.SIGINT, 130, []),
        (signal.SIGTERM, 143, ["optim=adamw", "callbacks=ema", "model.positions=alibi", "model.window=5"]),
        (signal.SIGKILL, -9, ["model.positions=learned"]),
    ],
)
def test_resumed_runs_go_on_as_if_nothing_had_happened(
    train: Train, number: signal.Signals, status: int, extra: list[str]
) -> None:
    """The ground for exact resume: a run that was stopped ends with the weights of one that was left alone."""
    arguments = ["model.dropout=0.1", "data.micro_batch=4", *extra]
    train("name=whole", *arguments)
    command = [sys.executable, ROOT / "train.py", *TINY, "data.path=book.txt", "name=cut", *arguments]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    while not Path("runs/cut/checkpoints/last.ckpt").exists() and process.poll() is None:
        time.sleep(0.005)
    process.send_signal(number)
    out, err = (text.decode() for text in process.communicate(timeout=60))
    assert process.returncode == status, "the run ended before the signal came" if process.returncode == 0 else err
    assert err == ""
    if status > 0:
        stopped = re.search(rf"stopped by {number.name} after step (\d+)", out)
        assert stopped and 10 <= int(stopped[1]) < 30
        assert json.loads(Path("runs/cut/summary.json").read_text())["status"] == "interrupted"
    ended = train("resume=auto", defaults=False)
    assert ended.status == 0 and "going on in runs/cut" in ended.out
    whole, cut = (torch.load(f"runs/{name}/checkpoints/last.ckpt") for name in ("whole", "cut"))
    for part in ("state_dict", "optimizer_states", "current_model_state", "global_step"):
        assert_same(whole.get(part), cut.get(part), part)
    for tag in ("train/loss", "val/loss", "optim/lr"):
        points = [[(p.step, p.value) for p in events(name).Scalars(tag)] for name in ("whole", "cut")]
        assert points[0] == points[1]
    summaries = [json.loads(Path(f"runs/{name}/summary.json").read_text()) for name in ("whole", "cut")]
    assert summaries[0]["val_loss"] == summaries[1]["val_loss"]


def test_minutes_become_steps_once(train: Train, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run is the one that its config.yaml describes: measuring has left no trace in it."""
    monkeypatch.setattr("gpt.fit.callbacks.LONG", -1e9)
    monkeypatch.setattr("gpt.fit.dial.MEASURED", 0.1)
    ended = train("name=dial", "minutes=0.2", "trainer.val_check_interval=400")
    assert ended.status == 0 and "minutes=0.2: timing" in ended.out
    assert "takes about" not in ended.out, "the time was asked for"
    config = from_yaml(Path("runs/dial/config.yaml").read_text())
    summary = json.loads(Path("runs/dial/summary.json").read_text())
    steps = config.trainer.max_steps
    assert config.minutes == 0.2 and summary["steps"] == steps > 0
    assert config.trainer.val_check_interval == 400, "what was typed stays"
    train("name=plain", f"trainer.max_steps={steps}", "trainer.val_check_interval=400")
    dial, plain = (torch.load(f"runs/{name}/checkpoints/last.ckpt") for name in ("dial", "plain"))
    assert_same(dial["state_dict"], plain["state_dict"], "state_dict")
    again = train("name=dial", "resume=auto", "minutes=0.2", defaults=False)
    assert again.status == 0 and f"finished: step {steps} of {steps}" in again.out and "timing" not in again.out
    other = train("name=dial", "resume=auto", "minutes=2", defaults=False)
    assert other.status == 2 and "cannot change minutes=2" in other.err and "the run has 0.2" in other.err


def test_minutes_that_cannot_be(train: Train) -> None:
    for arguments, line in (
        (["minutes=1", "++trainer.max_steps=5"], "minutes: chooses trainer.max_steps; give one of the two"),
        (["minutes=1", "trainer.max_steps=5"], "minutes: chooses trainer.max_steps; give one of the two"),
        (
            ["experiment=stdlib_gpu", "trainer.max_steps=5"],
            "has minutes=5, which chooses it; minutes=null goes by steps",
        ),
        (["minutes=0"], "minutes=0: must be a number, above 0 and at most 525600, or null"),
        (["minutes=1e308"], "minutes=1e+308: must be a number, above 0 and at most 525600, or null"),
        (["minutes=1", "trainer.devices=[0]"], "trainer.devices=[0]: numbers are for GPUs; a CPU takes how many"),
        (["minutes=1e-4"], "minutes=0.0001: is gone before the first step, must be above "),
        (["minutes=1", "trainer.devices=2"], "minutes=1: is for one device; trainer.devices=1, or trainer.max_steps=N"),
    ):
        ended = train(*arguments)
        assert ended.status == 2 and line in ended.err and ended.err.count("\n") == 1, ended.err
    assert not Path("runs").exists()


def test_what_a_sharded_model_cannot_do(train: Train) -> None:
    for typed, line in (
        ("callbacks=ema", "callbacks=ema: averages whole models; with trainer.strategy=fsdp no device has one"),
        ("trainer.precision=64-true", "must be auto, 32-true, bf16-mixed or bf16-true with trainer.strategy=fsdp"),
        ("minutes=1", "minutes=1: is for one device; trainer.devices=1, or trainer.max_steps=N"),
    ):
        ended = train("trainer=fsdp", "trainer.devices=2", typed)
        assert ended.status == 2 and line in ended.err and ended.err.count("\n") == 1, ended.err
    assert not Path("runs").exists()


def test_minutes_doubles_the_batch_of_a_long_run(train: Train, monkeypatch: pytest.MonkeyPatch) -> None:
    """Unless it was typed; the steps are those of the larger batch."""
    monkeypatch.setattr("gpt.fit.dial.MEASURED", 0.1)
    for steps, typed, batch in ((1, [], 16), (10**9, [], 8), (1, ["data.batch=8"], 8)):
        monkeypatch.setattr("gpt.fit.dial.DOUBLED_FROM", steps)
        given = ["data.path=book.txt", "minutes=0.2", f"name=run{batch}{len(typed)}", "compile=false", "logger=none"]
        given += ["model.layers=1", "model.dim=32", "model.context=32", "trainer.accelerator=cpu", *typed]
        assert train(*given, defaults=False).status == 0
        run = Path("runs") / f"run{batch}{len(typed)}"
        config = from_yaml((run / "config.yaml").read_text())
        assert config.data.batch == batch
        summary = json.loads((run / "summary.json").read_text())
        assert summary["characters"] == config.trainer.max_steps * batch * 32


def test_minutes_null_chooses_nothing(train: Train) -> None:
    assert train("name=a", "minutes=null", "trainer.max_steps=30").status == 0
    assert json.loads(Path("runs/a/summary.json").read_text())["steps"] == 30


def test_rates_that_ruin_the_model_while_steps_are_timed(train: Train, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpt.fit.dial.MEASURED", 0.1)
    ended = train("minutes=1", "optim.lr=1e30", "optim.muon_lr=1e30")
    assert ended.status == 1 and ended.err.count("\n") == 1, ended.err
    assert "step 2: the loss is nan (batch 1 of seed 0): training has diverged; lower optim.lr=1e+30" in ended.err
    assert not Path("runs").exists()


def test_nanogpt_s_settings_make_nanogpt_s_model(train: Train) -> None:
    """The same function of the same weights as the plain loop's, which has none of this project's parts."""
    assert (
        train("experiment=nanogpt_cpu", "data.path=book.txt", "trainer.max_steps=1", "name=a", defaults=False).status
        == 0
    )
    model, _ = load_checkpoint("runs/a/checkpoints/last.ckpt")
    plain = plain_loop.Model(model.vocabulary, plain_loop.CPU)
    names = {"position_embedding": "places", "attention.qkv": "qkv", "attention.proj": "proj", "mlp.": ""}
    state = model.state_dict()
    for ours, theirs in names.items():
        state = {key.replace(ours, theirs): value for key, value in state.items()}
    plain.load_state_dict(state)
    tokens = torch.randint(model.vocabulary, (2, 64))
    assert torch.allclose(model(tokens), plain(tokens), atol=1e-5)
    cpu, gpu = (yaml.safe_load((ROOT / f"conf/experiment/nanogpt_{name}.yaml").read_text()) for name in ("cpu", "gpu"))
    assert cpu["defaults"] == gpu["defaults"] == [{"override /model": "nanogpt"}, {"override /optim": "nanogpt"}]
    assert set(cpu["model"]) == {"layers", "heads", "dim", "context", "dropout"} and not {"model", "optim"} & set(gpu)


@pytest.mark.parametrize("tokenizer", ["char", "byte"])
@pytest.mark.parametrize(
    ("second_half", "prompt"),
    [
        ("ne\ntwo three\n\nfour", "two three\n\n"),
        ("no break e", "no break e"),
        ("one\nbreak", "one\nbreak"),
        ("\nü\n" + "ü" * 300, "ü\n"),
        ("\n" * 300, "\n" * 199),
    ],
)
def test_samples_go_on_from_lines_of_the_validation_text(
    workplace: Path, tokenizer: str, second_half: str, prompt: str
) -> None:
    Path("text.txt").write_text("the one two three four\nno break ü\n" * 100, encoding="utf-8")
    text = open_text(DataConfig(path="text.txt", tokenizer=tokenizer), 8)
    tokens = text.tokenizer.encode(second_half)
    held_out = np.concatenate((np.zeros_like(tokens), tokens)).astype(text.validation.dtype)
    start = prompt_of(dataclasses.replace(text, validation=held_out))
    assert start.dtype == torch.int64 and text.tokenizer.decode(start.numpy()) == prompt


def assert_same(ours: Any, theirs: Any, where: str) -> None:
    """Bit for bit, through nested dicts and lists."""
    assert type(ours) is type(theirs), where
    if isinstance(ours, dict):
        assert ours.keys() == theirs.keys(), where
        for key in ours:
            assert_same(ours[key], theirs[key], f"{where}.{key}")
    elif isinstance(ours, list):
        for index, (one, other) in enumerate(zip(ours, theirs, strict=True)):
            assert_same(one, other, f"{where}[{index}]")
    else:
        assert torch.equal(ours, theirs) if isinstance(ours, torch.Tensor) else ours == theirs, where


@pytest.mark.slow
def test_a_second_ctrl_c_leaves_at_once(workplace: Path) -> None:
    """In a step of many seconds, which the first Ctrl-C waits for."""
    large = ["model.dim=512", "model.context=512", "model.layers=12", "data.batch=64", "name=a", "data.path=book.txt"]
    process = subprocess.Popen([sys.executable, ROOT / "train.py", *large], stdout=subprocess.DEVNULL)
    while not Path("runs/a/train.log").exists():
        time.sleep(0.01)
    time.sleep(3)
    process.send_signal(signal.SIGINT)
    time.sleep(1)
    assert process.poll() is None
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=20) == 130  # a step takes longer


def test_resume_finds_refuses_and_extends(train: Train, prose: str) -> None:
    assert "no unfinished run" in train("resume=auto").err
    assert "no such run" in train("resume=runs/nothing").err
    assert "starting afresh" in train("name=a", "resume=auto").out
    assert "runs/a exists; resume=auto" in train("name=a").err
    Path("runs/killed").mkdir()  # by a kill before the first checkpoint
    assert train("name=killed", "resume=auto").status == 0
    assert "is finished: step 30 of 30" in train("name=a", "resume=auto").out
    assert "cannot change model.dim=64 (the run has 32)" in train("name=a", "resume=auto", "model.dim=64").err
    assert train("resume=runs/a", "trainer.max_steps=40").status == 0
    assert json.loads(Path("runs/a/summary.json").read_text())["steps"] == 40
    Path("book.txt").write_text(prose[::-1], encoding="utf-8")
    ended = train("resume=runs/a", "trainer.max_steps=50")
    assert ended.status == 2 and "allow=[text]" in ended.err
    assert train("resume=runs/a", "trainer.max_steps=50", "allow=[text]").status == 0


def test_a_wrong_word_leaves_nothing_behind(train: Train, workplace: Path) -> None:
    before = sorted(workplace.rglob("*"))
    for arguments, said in [
        (["model.head=8"], "model.heads"),
        (["model.heads=7"], "must divide model.dim=32: 1, 2, 4"),
        (["data.path=boook.txt"], "book.txt"),
        (["trainer.accelerator=gpu"], "trainer.accelerator=gpu"),
        (["data.batch=6", "data.micro_batch=4"], "data.micro_batch=4"),
        (["name=a/b/c"], "name="),
        (["trainer.strategy=nonsense"], "trainer"),
        (["model.context=20000"], "model.context"),
        (["callbacks=early_stopping", "+callbacks.early_stopping.patienc=3"], "patienc"),
    ]:
        ended = train(*arguments)
        assert ended.status == 2, ended
        assert ended.err.startswith("train.py: ") and ended.err.count("\n") == 1 and said in ended.err, ended.err
        assert ended.out == ""
    assert [path for path in sorted(workplace.rglob("*")) if path not in before and "cache" not in path.parts] == []


def test_wrong_words_are_answered_before_anything_heavy_is_loaded(workplace: Path) -> None:
    code = (
        "import sys, train; sys.argv[1:] = ['model.heads=7']; status = train.cli(); "
        "print(status, sorted({'torch', 'lightning', 'numpy'} & set(sys.modules)))"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=os.environ | {"PYTHONPATH": str(ROOT)}
    )
    assert ended.stdout.strip() == "2 []" and "Traceback" not in ended.stderr


def test_file_names_of_any_kind(train: Train, prose: str) -> None:
    for number, name in enumerate(
        ["bücher.txt", "my book (1).txt", "it's.txt", "a,b.txt", "a=b.txt", "[x].txt", "книга.txt"]
    ):
        Path(name).write_text(prose, encoding="utf-8")
        ended = train(f"data.path={name}", f"name=n{number}", "trainer.max_steps=1")
        assert ended.status == 0, ended.err
        assert yaml.safe_load(Path(f"runs/n{number}/config.yaml").read_text("utf-8"))["data"]["path"] == name


def test_bytes_and_other_scripts(train: Train) -> None:
    Path("greek.txt").write_text("μῆνιν ἄειδε θεὰ Πηληϊάδεω Ἀχιλῆος\n" * 200, encoding="utf-8")
    for tokenizer in ("char", "byte"):
        assert train("data.path=greek.txt", f"name={tokenizer}", f"data.tokenizer={tokenizer}").status == 0
    char, byte = (json.loads(Path(f"runs/{name}/summary.json").read_text()) for name in ("char", "byte"))
    assert char["val_bpc"] == pytest.approx(char["val_loss"] / math.log(2)) and char["val_bpb"] < char["val_bpc"]
    assert byte["val_bpb"] == pytest.approx(byte["val_loss"] / math.log(2)) and byte["val_bpb"] < byte["val_bpc"]


@pytest.mark.parametrize("logger", ["csv", "none"])
def test_other_loggers(train: Train, logger: str) -> None:
    assert train(f"logger={logger}", "name=a").status == 0
    assert not list(Path("runs/a").rglob("events*"))
    written = list(Path("runs/a").rglob("metrics.csv"))
    assert len(written) == (logger == "csv")
    for file in written:
        rows = list(csv.DictReader(file.read_text().splitlines()))
        assert [row["step"] for row in rows if row["val/loss"]] == ["10", "20", "30"]


def test_wandb_is_named_with_the_command_that_adds_it(train: Train, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lightning.pytorch.loggers.wandb._WANDB_AVAILABLE", RequirementCache("wandb>=1000"))
    ended = train("logger=wandb")
    assert ended.status == 2 and "pip install -c constraints.txt -e '.[wandb]'" in ended.err


def test_early_stopping_and_weight_averaging_are_switches(train: Train) -> None:
    arguments = ["callbacks=[ema,early_stopping]", "callbacks.early_stopping.patience=1", "callbacks.ema.decay=0.5"]
    ended = train(*arguments, "name=a", "optim.lr=5", "optim.warmup=0", "trainer.max_steps=400")
    assert ended.status == 0
    assert json.loads(Path("runs/a/summary.json").read_text())["steps"] < 400
    contents = torch.load("runs/a/checkpoints/last.ckpt")
    averaged, current = contents["state_dict"], contents["current_model_state"]
    assert any(not torch.equal(averaged[name], current[name]) for name in averaged)


def test_checkpoints_hold_plain_data(train: Train) -> None:
    train("name=a")
    for path in Path("runs/a/checkpoints").glob("*.ckpt"):
        assert torch.serialization.get_unsafe_globals_in_checkpoint(path) == []
        contents = torch.load(path)
        assert set(contents["state_dict"]) == {
            f"net.{name}" for name in GPT(ModelConfig(layers=2, heads=2, dim=32, context=32), 30).state_dict()
        }
        assert contents["format"] == FORMAT and contents["data"]["path"] == "book.txt"


def test_a_long_run_says_so_with_the_key_that_shortens_it(train: Train, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpt.fit.callbacks.LONG", 0.0)
    ended = train("name=a")
    assert re.search(r"30 steps take about \d+:\d\d; trainer.max_steps=\d+ takes about \d+:\d\d", ended.out)
    monkeypatch.setattr("gpt.fit.callbacks.LONG", 1e9)
    assert "take about" not in train("name=b").out


def test_progress_is_shown_as_lines_without_a_terminal(train: Train, monkeypatch: pytest.MonkeyPatch) -> None:
    import gpt.fit.callbacks

    monkeypatch.setattr(gpt.fit.callbacks, "LINE_EVERY", 0.0)
    lines = [line for line in train("name=a").out.splitlines() if re.match("step .*characters/s", line)]
    assert len(lines) == 6
    assert re.fullmatch(r"step 5/30  loss \d\.\d{4}  bpc \d\.\d{4}  [\d,]+ characters/s  \d:\d\d left", lines[0])


@pytest.mark.parametrize("model", ["tiny", "small", "baby"])
def test_presets_take_eight_heads_or_say_which(train: Train, model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(train_script, "SAMPLE_LENGTH", 5)
    monkeypatch.setattr("gpt.fit.pictures.SAMPLE_LENGTH", 5)
    arguments = [
        f"model={model}",
        "model.heads=8",
        "data.path=book.txt",
        "data.batch=1",
        "trainer.max_steps=1",
        "name=a",
    ]
    assert train(*arguments, defaults=False).status == 0
    wrong = train(f"model={model}", "model.heads=5", "data.path=book.txt", "name=b", defaults=False)
    assert wrong.status == 2 and re.search(r"model\.heads=5: must divide model\.dim=\d+: 1, 2", wrong.err)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_stopped_while_the_dial_measures(train: Train, monkeypatch: pytest.MonkeyPatch, number: signal.Signals) -> None:
    monkeypatch.setattr("gpt.fit.dial._Clock.on_train_batch_end", lambda *_: os.kill(os.getpid(), number))
    handlers = [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)]
    ended = train("name=a", "minutes=1")
    assert ended.status == 128 + number and f"stopped by {number.name}" in ended.err
    assert not Path("runs").exists()
    assert [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)] == handlers


def test_a_context_longer_than_what_is_evaluated_can_be_timed(train: Train, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpt.fit.dial.EVALUATED", 16)
    assert "is gone before the first step" in train("minutes=1e-4").err


@pytest.mark.slow
def test_out_of_memory_names_the_key_to_lower(workplace: Path) -> None:
    needs("resource", extra="")
    code = (
        "import resource, sys, train, torch, lightning; "
        "resource.setrlimit(resource.RLIMIT_AS, (6 << 30, 6 << 30)); sys.exit(train.cli())"
    )
    shape = ["model.context=1024", "model.dim=8", "model.heads=1", "data.batch=2048"]
    arguments = ["data.path=book.txt", "trainer.accelerator=cpu", "compile=false", "name=a", *shape]
    ended = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )
    assert ended.returncode == 2, ended.stderr[-2000:]
    assert "out of memory: 2048 windows of 1024 need about" in ended.stderr and "data.micro_batch=1024" in ended.stderr
    assert "Traceback" not in ended.stderr


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_two_processes_train_the_same_model(strategy: str, train: Train) -> None:
    train("name=one", "trainer.precision=32-true")
    arguments = [argument for argument in TINY if "devices" not in argument]
    arguments += ["data.path=book.txt", f"trainer={strategy}", "trainer.devices=2", "trainer.precision=32-true"]
    command = [sys.executable, ROOT / "train.py", *arguments, "name=two"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120)
    said = [line for line in ended.stderr.splitlines() if not line.endswith(" so far")]  # on a busy machine
    assert (ended.returncode, said) == (0, [])
    assert sorted(path.name for path in Path("runs").iterdir()) == ["one", "two"]
    assert len(list(Path("runs/two").glob("events*"))) == 1
    losses = [json.loads(Path(f"runs/{name}/summary.json").read_text())["val_loss"] for name in ("one", "two")]
    assert losses[0] == pytest.approx(losses[1], abs=2e-5)
    assert len([line for line in ended.stdout.splitlines() if line.startswith("step ")]) == 3


# All that attention can be given beyond the default: dropout, a bias, blocks of a window.
EXTRA = ["model.dropout=0.5", "model.positions=alibi", "model.window=5", "model.context=40"]


@pytest.mark.slow
@pytest.mark.parametrize("extra", [[], EXTRA], ids=["default", "windows"])
def test_compiled_and_eager_steps_agree(train: Train, extra: list[str]) -> None:
    """With dropout, only if both draw the same masks in the same order."""
    if missing_to_compile():
        missing(f"{missing_to_compile()}, to compile")
    same = ["trainer.precision=32-true", *extra]
    assert train("name=a", "compile=true", *same).status == 0
    train("name=b", "compile=false", *same)
    losses = [json.loads(Path(f"runs/{name}/summary.json").read_text())["val_loss"] for name in "ab"]
    assert losses[0] == pytest.approx(losses[1], abs=1e-3)
    files = [torch.load(f"runs/{name}/checkpoints/last.ckpt")["state_dict"] for name in "ab"]
    assert list(files[0]) == list(files[1])


@pytest.mark.slow
def test_a_run_goes_on_where_compiling_fails(workplace: Path) -> None:
    """Without a working compiler: one line names the key, the bits are those of compile=false, and a resume has them.

    The processes are fresh ones: Inductor reads CXX when it is imported.
    """
    environment = os.environ | {"PYTHONPATH": str(ROOT), "CXX": "/nonexistent", "TORCHINDUCTOR_CACHE_DIR": "empty"}

    def process(*arguments: str) -> str:
        command = [sys.executable, "-m", "train", *arguments]
        ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
        assert ended.returncode == 0, ended.stderr[-2000:]
        return ended.stdout + ended.stderr

    same = [*TINY, "data.path=book.txt", "model.dropout=0.1", "trainer.accelerator=cpu"]
    if missing_to_compile():
        missing(f"{missing_to_compile()}, to compile")
    said = process("name=fallen", "compile=true", *same)
    (line,) = [line for line in said.splitlines() if "compile=" in line]
    assert re.fullmatch(r"compile=true: failed \(\w+: .*compiler.*\); the run goes on as with compile=false", line)
    assert "compile: 'false'" in Path("runs/fallen/config.yaml").read_text()
    process("name=plain", "compile=false", *same)
    longer = f"trainer.max_steps={2 * torch.load('runs/plain/checkpoints/last.ckpt')['global_step']}"
    for again in (False, True):
        fallen, plain = (torch.load(f"runs/{name}/checkpoints/last.ckpt") for name in ("fallen", "plain"))
        assert fallen["conditions"].pop("compile_asked") == "true"
        assert fallen["conditions"] == plain["conditions"] and fallen["conditions"]["compile"] == "false"
        for key, value in plain["state_dict"].items():
            assert torch.equal(fallen["state_dict"][key], value), key
        for name in () if again else ("fallen", "plain"):
            typed = ["name=fallen", "resume=auto", "compile=true", *same] if name == "fallen" else ["resume=runs/plain"]
            assert "compile=" not in process(*(each for each in typed if "max_steps" not in each), longer)


@pytest.mark.slow
def test_a_second_process_compiles_nothing(workplace: Path) -> None:
    """Not even the passes before code is made: what torch cannot keep, it would do anew at every start."""
    if missing_to_compile():
        missing(f"{missing_to_compile()}, to compile")
    program = (
        "import sys, train; status = train.cli(); from torch._dynamo.utils import counters; "
        "print(dict(counters['aot_autograd'])); sys.exit(status)"
    )
    arguments = [
        *TINY,
        "data.path=book.txt",
        "compile=true",
        "trainer.precision=bf16-mixed",
        *EXTRA,
    ]
    environment = {key: value for key, value in os.environ.items() if not key.startswith("TORCHINDUCTOR")}
    for cache in ("miss", "hit"):
        ended = subprocess.run(
            [sys.executable, "-c", program, *arguments, f"name={cache}"],
            env=environment | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True,
        )  # fmt: skip
        assert ended.returncode == 0, ended.stderr[-2000:]
        assert f"'autograd_cache_{cache}': 1" in ended.stdout and "bypass" not in ended.stdout, ended.stdout[-500:]


def test_main_returns_the_validation_loss(train: Train, monkeypatch: pytest.MonkeyPatch) -> None:
    returned = []
    original = train_script.main
    monkeypatch.setattr(train_script, "main", lambda *given: returned.append(original(*given)))
    train("name=a")
    assert returned == [json.loads(Path("runs/a/summary.json").read_text())["val_loss"]]


def test_evaluation_windows_cover_the_split_of_a_run(train: Train) -> None:
    train("name=a", "trainer.max_steps=1")
    text = open_text(DataConfig(path="book.txt"), 32)
    counted = sum(int(windows[2].sum()) for windows in evaluation_windows(text.validation, 32, 8))
    summary = json.loads(Path("runs/a/summary.json").read_text())
    assert counted + 1 == summary["evaluation"]["characters"]


def test_a_run_stopped_while_it_was_evaluated_gets_its_result(train: Train, monkeypatch: pytest.MonkeyPatch) -> None:
    def stopped(*_: Any) -> float:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(train_script, "finish", stopped)
        assert train("name=a").status == 130
    assert json.loads(Path("runs/a/summary.json").read_text())["status"] == "interrupted"
    assert train("resume=auto", defaults=False).status == 0
    summary = json.loads(Path("runs/a/summary.json").read_text())
    assert summary["status"] == "finished" and summary["val_loss"] > 0 and summary["steps"] == 30


def test_divergence_is_one_line_and_saves_nothing(train: Train) -> None:
    ended = train("name=a", "optim.lr=1e30", "optim.muon_lr=1e30", "logger=none")
    assert ended.status == 1 and ended.err.count("\n") == 1 and "diverged; lower optim.lr=1e+30" in ended.err
    assert not list(Path("runs/a/checkpoints").iterdir())


def hparams_of(directory: str) -> tuple[list[dict[str, Any]], dict[str, dict[str, Any]]]:
    """TensorBoard's table of hyper-parameters as its server gives it: the settings, and the rows by run."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "tensorboard.main", "--logdir", directory, "--port", str(port)]
    command += ["--host", "127.0.0.1", "--load_fast", "false"]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)

    def ask(route: str, question: dict[str, Any]) -> dict[str, Any]:
        address = f"http://127.0.0.1:{port}/data/plugin/hparams/{route}"
        data = json.dumps(question).encode()
        request = urllib.request.Request(address, data, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=5) as answer:
            return json.load(answer)

    try:
        until, found = time.monotonic() + 60, {}
        while not found.get("metricInfos"):
            assert time.monotonic() < until and server.poll() is None, found
            time.sleep(0.2)
            with contextlib.suppress(OSError):
                found = ask("experiment", {"experimentName": "", "includeMetrics": True})
        question = {
            "allowedStatuses": ["STATUS_SUCCESS"], "startIndex": 0, "sliceSize": 100,
            "colParams": [{"metric": info["name"]} for info in found["metricInfos"]],
        }  # fmt: skip
        groups = ask("session_groups", question)["sessionGroups"]
        rows = {
            group["sessions"][0]["name"]: group["hparams"]
            | {value["name"]["tag"]: value["value"] for value in group["metricValues"]}
            for group in groups
        }
        return found["hparamInfos"], rows
    finally:
        os.killpg(server.pid, signal.SIGKILL)
        server.wait()


@pytest.mark.slow
def test_tensorboard_s_table_of_settings_has_the_exact_loss(train: Train) -> None:
    """Of a run that was left alone, of one that has gone on after its end, and not of one that has failed."""
    assert train("name=a").status == 0
    assert train("name=b", "optim.lr=2e-3").status == 0
    assert train("resume=runs/b", "trainer.max_steps=40", defaults=False).status == 0
    assert train("name=c", "optim.lr=1e30", "optim.muon_lr=1e30").status == 1
    settings, rows = hparams_of("runs")
    assert [info["name"] for info in settings[:2]] == ["optim.lr", "trainer.max_steps"], "what differs comes first"
    assert set(rows) == {"a", "b"}
    for name, rate, steps in (("a", OptimConfig().lr, 30), ("b", 2e-3, 40)):
        summary = json.loads(Path(f"runs/{name}/summary.json").read_text())
        row = rows[name]
        assert row["optim.lr"] == rate and row["trainer.max_steps"] == steps and row["data.path"] == "book.txt"
        assert row["optim.betas"].startswith("[0.9,") and row["model.tied"] in (True, False)
        for tag, key in (("val_loss", "val_loss"), ("val_bpc", "val_bpc"), ("test_loss", "test_loss")):
            assert row[f"best/{tag}"] == pytest.approx(summary[key], rel=1e-6)
    scalars = events("b").Scalars("best/val_loss")
    assert [point.step for point in scalars] == [40], "the row of the 30 steps is gone"
    assert len(list(Path("runs/a").glob("events*"))) == 1
