import csv
import dataclasses
import math
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from lightning_utilities.core.imports import RequirementCache
from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData

from benchmarks import plain_loop
from conf.schema import from_yaml
from data.batches import train_batch
from data.config import DataConfig
from data.open_text import open_text
from data.passages import prompt as prompt_of
from gpt.checkpoint import load_checkpoint
from gpt.config import ModelConfig, OptimConfig
from gpt.model import GPT
from gpt.model_file import FORMAT
from gpt.optim import lr_at, parameter_groups
from tests.conf.test_defaults import compose
from tests.conftest import ROOT, TINY, Call, Ended, assert_same_weights, board, last, missing, needs, one_line, summary
from tests.faults import faults, processes
from tests.model_files import nats_of
from tests.reference.models import fill
from training import exit_status
from training.machine import missing_to_compile


def environment() -> dict[str, str]:
    """This process' variables as they are now, and where our modules are."""
    return os.environ | {"PYTHONPATH": str(ROOT)}


def assert_refused(ended: Ended, said: str) -> None:
    one_line(ended, 2, said)
    assert not Path("runs").exists()


def test_a_run_leaves_what_it_promises(train: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    returned, main = [], exit_status.main
    monkeypatch.setattr(exit_status, "main", lambda *given: returned.append(main(*given)))
    ended = train("name=first")
    assert ended.status == 0 and ended.err == ""
    assert os.listdir("runs") == ["first"]
    run = Path("runs/first")
    assert {"config.yaml", "checkpoints", "train.log", "summary.json"} <= set(os.listdir(run))
    names = ["best.safetensors", "last.ckpt", "last.safetensors", "step-00000020.ckpt", "step-00000030.ckpt"]
    assert sorted(os.listdir(run / "checkpoints")) == names
    assert (run / "checkpoints/last.ckpt").samefile(run / "checkpoints/step-00000030.ckpt")
    found = summary("first")
    keys = (
        "status text val_loss val_bpc val_bpb best_step last_val_loss test_loss test_bpc evaluation steps characters "
        "seconds characters_per_second mfu init_from parameters precision device seed versions"
    )
    assert list(found) == keys.split()
    assert found["status"] == "finished" and found["steps"] == 30 and found["characters"] == 30 * 8 * 32
    assert found["val_bpc"] == pytest.approx(found["val_loss"] / math.log(2))
    assert 0 < found["seconds"] < 600 and found["characters_per_second"] > 0 and found["mfu"] is None
    assert returned == [found["val_loss"]]
    config = yaml.safe_load((run / "config.yaml").read_text())
    assert config["name"] == "first" and config["model"]["dim"] == 32 and config["trainer"]["precision"] != "auto"
    assert ended.out == (run / "train.log").read_text()
    speed = f"{found['characters_per_second']:,.0f} characters/s\n"
    for said in (f"{found['val_loss']:.4f} nats", speed, "sample.py runs/first", "tensorboard --logdir runs"):
        assert said in ended.out


def test_what_a_finished_run_reports(trained: Path, train: Call) -> None:
    model, meta = load_checkpoint(trained)
    text = open_text(DataConfig(path="book.txt"), 32)
    found = summary("first")
    assert found["val_loss"] == pytest.approx(np.mean(nats_of(model, text.validation)), abs=1e-6)
    measured = {"mode": "disjoint", "context": 32, "stride": 32, "characters": len(text.validation)}
    assert found["evaluation"] == measured | {"split_characters": len(text.validation)}
    assert (meta["step"], meta["val_loss"]) == (found["best_step"], found["val_loss"])
    assert meta["evaluation"] == measured and meta["text"] == "book.txt"
    names = {f"net.{name}" for name in model.state_dict()}  # and training checkpoints hold plain data
    for path in trained.parent.glob("*.ckpt"):
        assert torch.serialization.get_unsafe_globals_in_checkpoint(path) == []
        contents = torch.load(path)
        assert set(contents["state_dict"]) == names
        assert {"Watch", "Samples", "Checkpoints"} <= contents["callbacks"].keys(), "as in older checkpoints"
        assert contents["format"] == FORMAT and contents["data"]["path"] == "book.txt"
    accumulator, tags = board("first"), {
        "train": "loss bpc", "val": "loss bpc bpb", "optim": "lr grad_norm clip_share",
        "perf": "chars_per_s memory_gib", "best": "val_loss val_bpc",
        "update": "embedding attention mlp norm head",
    }  # fmt: skip
    expected = {f"{group}/{name}" for group, names in tags.items() for name in names.split()}
    assert set(accumulator.Tags()["scalars"]) == expected
    assert [point.step for point in accumulator.Scalars("train/loss")] == [5, 10, 15, 20, 25, 30]
    assert [point.step for point in accumulator.Scalars("val/loss")] == [10, 20, 30]
    assert accumulator.Scalars("val/loss")[-1].value == pytest.approx(summary("first")["last_val_loss"], rel=1e-6)
    for point in accumulator.Scalars("optim/lr"):
        assert point.value == pytest.approx(lr_at(point.step - 1, OptimConfig(), 30), rel=1e-6)
    losses = [point.value for point in accumulator.Scalars("train/loss")]
    guess = math.log(len(set(Path("book.txt").read_text())))
    assert losses[0] == pytest.approx(guess, abs=0.5) and losses[-1] < losses[0]
    assert train("resume=runs/first", "trainer.max_steps=40", defaults=False).status == 0
    assert train("name=failed", "optim.lr=1e30", "optim.muon_lr=1e30").status == 1
    assert not [tag for tag in board("failed").summary_metadata if "hparams" in tag or "best" in tag]
    shown = board("first")
    begun = HParamsPluginData.FromString(shown.PluginTagToContent("hparams")["_hparams_/session_start_info"])
    settings = begun.session_start_info.hparams
    numbers = [settings[key].number_value for key in ("trainer.max_steps", "model.tied", "optim.lr")]
    assert numbers == [40, 0, OptimConfig().lr] and settings["data.path"].string_value == "book.txt"
    assert settings["optim.betas"].string_value.startswith("[0.9,")
    for key in ("val_loss", "val_bpc"):
        points = [(point.step, point.value) for point in shown.Scalars(f"best/{key}")]
        assert points == [(40, pytest.approx(summary("first")[key], rel=1e-6))], "the row of the 30 steps is gone"


def test_a_short_run_evaluates_a_part_of_its_split_and_names_the_command_for_the_rest(
    train: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("data.batches.VALIDATION_CHARACTERS", 64)
    split = len(open_text(DataConfig(path="book.txt"), 32).validation)
    enough = -(-split // (8 * 32))
    for name, steps in (("short", enough - 1), ("long", enough)):
        out = train(f"name={name}", f"trainer.max_steps={steps}", "trainer.val_check_interval=1").out
        counted = summary(name)["evaluation"]
        (line,) = re.findall("validation loss .*best checkpoint.*", out)
        assert counted["split_characters"] == split and f"{counted['characters']:,}" in line
        assert (counted["characters"] == split) == ("all" in line) == (name == "long")
        assert (f"score.py runs/{name} --split validation" in out) == (name == "short")
        entries = last(name)["callbacks"]["Watch"]["history"]["validations"]["entries"]
        assert entries[-1][1] == summary(name)["last_val_loss"], "the last validation is the final one"
    model, _ = load_checkpoint("runs/long/checkpoints/last.safetensors")
    text = open_text(DataConfig(path="book.txt"), 32)
    assert summary("long")["last_val_loss"] == pytest.approx(np.mean(nats_of(model, text.validation)), abs=1e-6)


def test_what_is_said_while_it_trains(trained: Path, train: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("training.callbacks.metrics.LINE_SECONDS", 0.0)
    out = train("name=a").out
    lines = [line for line in out.splitlines() if re.match("step .*characters/s", line)]
    assert len(lines) == 6
    assert re.fullmatch(r"step 5/30  loss \d\.\d{4} nats \(\d\.\d+ bits\)  [\d,]+ characters/s  \d:\d\d left", lines[0])


def test_other_loggers(train: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("lightning.pytorch.loggers.wandb._WANDB_AVAILABLE", RequirementCache("wandb>=1000"))
        assert_refused(train("logger=wandb"), "pip install -c constraints.txt -e '.[wandb]'")
    for logger in ("csv", "none"):
        assert train(f"logger={logger}", f"name={logger}", "trainer.max_steps=20").status == 0
        assert not list(Path("runs", logger).rglob("events*"))
    assert not list(Path("runs/none").rglob("metrics.csv"))
    (file,) = Path("runs/csv").rglob("metrics.csv")
    rows = list(csv.DictReader(file.read_text().splitlines()))
    assert [row["step"] for row in rows if row["val/loss"]] == ["10", "20"]
    assert "optim.lr: 0.006" in (file.parent / "hparams.yaml").read_text()


def test_training_is_what_a_plain_loop_does(train: Call) -> None:
    """The weights after 30 steps, against a loop that shares only the model, the batches and the schedule."""
    train("name=first", "seed=1", "trainer.precision=32-true", "data.micro_batch=4", "optim.clip=0.5", "optim=adamw")
    config, optim = ModelConfig(layers=2, heads=2, dim=32, context=32), OptimConfig("adamw", lr=3e-3, clip=0.5)
    text = open_text(DataConfig(path="book.txt"), 32)
    torch.manual_seed(1)
    model = GPT(config, text.tokenizer.size)
    optimizer = torch.optim.AdamW(parameter_groups(model, optim.weight_decay), betas=(0.9, 0.99))
    for step in range(30):
        batch = train_batch(text.train, 1, step, 8, 32)
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


def test_nanogpt_s_settings_make_nanogpt_s_model(train: Call) -> None:
    given = ["experiment=nanogpt_cpu", "data.path=book.txt", "trainer.max_steps=1", "name=a", "watch.pictures=false"]
    assert train(*given, defaults=False).status == 0
    model = fill(load_checkpoint("runs/a/checkpoints/last.ckpt")[0])
    plain = plain_loop.Model(model.vocabulary, plain_loop.CPU)
    names = {"position_embedding": "places", "attention.qkv": "qkv", "attention.proj": "proj", "mlp.": ""}
    state = model.state_dict()
    for ours, theirs in names.items():
        state = {key.replace(ours, theirs): value for key, value in state.items()}
    plain.load_state_dict(state)
    tokens = np.random.default_rng(0).integers(model.vocabulary, size=300)
    x, y = plain_loop.random_batch(tokens, plain_loop.CPU, "cpu")
    assert torch.equal(x[:, 1:], y[:, :-1]) and torch.allclose(model(x), plain(x), atol=1e-5)
    expected = torch.nn.functional.cross_entropy(model(x).flatten(0, 1), y.flatten())
    torch.testing.assert_close(plain_loop.loss_of(plain, x, y), expected)
    cpu, gpu = (yaml.safe_load((ROOT / f"conf/experiment/nanogpt_{name}.yaml").read_text()) for name in ("cpu", "gpu"))
    assert cpu["defaults"] == gpu["defaults"] == [{"override /model": "nanogpt"}, {"override /optim": "nanogpt"}]
    assert set(cpu["model"]) == {"layers", "heads", "dim", "context", "dropout"} and not {"model", "optim"} & set(gpu)


def test_other_scripts_in_a_file_of_any_name(train: Call) -> None:
    name = "it's my [book], a=b (1) Ἰλιάς.txt"
    Path(name).write_text("μῆνιν ἄειδε θεὰ Πηληϊάδεω Ἀχιλῆος\n" * 200, encoding="utf-8")
    for tokenizer, unit in (("char", "character"), ("byte", "byte")):
        given = [f"name={tokenizer}", f"data.tokenizer={tokenizer}", "trainer.max_steps=1"]
        ended = train(f"data.path={name}", *given)
        assert ended.status == 0 and f" bits) per {unit}" in ended.out
        assert from_yaml(Path(f"runs/{tokenizer}/config.yaml").read_text("utf-8")).data.path == name
    char, byte = summary("char"), summary("byte")
    assert char["val_bpc"] == pytest.approx(char["val_loss"] / math.log(2)) and char["val_bpb"] < char["val_bpc"]
    assert byte["val_bpb"] == pytest.approx(byte["val_loss"] / math.log(2)) and byte["val_bpb"] < byte["val_bpc"]


def test_samples_go_on_from_lines_of_the_validation_text(workplace: Path) -> None:
    Path("text.txt").write_text("the one two three four\nno break ü\n" * 100, encoding="utf-8")
    for tokenizer in ("char", "byte"):
        text = open_text(DataConfig(path="text.txt", tokenizer=tokenizer), 8)
        for second_half, prompt in (
            ("ne\ntwo three\n\nfour", "two three\n\n"), ("no break e", "no break e"), ("one\nbreak", "one\nbreak"),
            ("\nü\n" + "ü" * 300, "ü\n"), ("\n" * 300, "\n" * 199),
        ):  # fmt: skip
            tokens = text.tokenizer.encode(second_half)
            held_out = np.concatenate((np.zeros_like(tokens), tokens)).astype(text.validation.dtype)
            start = prompt_of(dataclasses.replace(text, validation=held_out))
            assert start.dtype == torch.int64 and text.tokenizer.decode(start.numpy()) == prompt, (tokenizer, prompt)


@pytest.mark.slow
def test_minutes_become_steps_once(train: Call, long_steps: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("training.budget.DOUBLED_FROM", 1)
    ended = train("name=dial", "minutes=2.5", "trainer.val_check_interval=400", "compile=false")
    assert ended.status == 0 and "minutes=2.5: timing" in ended.out
    config = from_yaml(Path("runs/dial/config.yaml").read_text())
    steps = config.trainer.max_steps
    assert config.minutes == 2.5 and 0 < summary("dial")["steps"] == steps < 25
    assert (config.trainer.val_check_interval, config.data.batch) == (400, 8), "what was typed stays"
    train("name=plain", f"trainer.max_steps={steps}", "trainer.val_check_interval=400", "compile=false")
    assert_same_weights("dial", "plain")
    again = train("name=dial", "resume=auto", "minutes=2.5", defaults=False)
    assert again.status == 0 and f"finished: step {steps} of {steps}" in again.out and "timing" not in again.out
    other = train("name=dial", "resume=auto", "minutes=2", defaults=False)
    assert other.status == 2 and "cannot change minutes=2" in other.err and "the run has 2.5" in other.err


@pytest.mark.slow
def test_minutes_doubles_long_batches(train: Call, long_steps: None, monkeypatch: pytest.MonkeyPatch) -> None:
    given = "data.path=book.txt minutes=2 compile=false logger=none trainer.accelerator=cpu".split()
    given += ["model.layers=1", "model.dim=32", "model.context=32"]
    for steps, batch in ((1, 16), (10**9, 8)):
        monkeypatch.setattr("training.budget.DOUBLED_FROM", steps)
        assert train(*given, f"name=run{batch}", defaults=False).status == 0
        config = from_yaml(Path(f"runs/run{batch}/config.yaml").read_text())
        assert config.data.batch == batch
        assert summary(f"run{batch}")["characters"] == config.trainer.max_steps * batch * 32


def test_what_does_not_go_together(train: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("training.budget.TIMED_SECONDS", 0.1)
    monkeypatch.setattr("training.budget.NUM_EVALUATED", 16)  # less than a window
    fsdp = ["trainer=fsdp", "trainer.devices=2"]
    for arguments, line in (
        (["minutes=1", "++trainer.max_steps=5"], "minutes: chooses trainer.max_steps; give one of the two"),
        (["minutes=1", "trainer.max_steps=5"], "minutes: chooses trainer.max_steps; give one of the two"),
        (["-m", "experiment=nanogpt_cpu,stdlib_gpu", "trainer.max_steps=5"], "which chooses it; add minutes=null"),
        (["minutes=1", "trainer.devices=2"], "minutes=1: needs one device; use trainer.devices=1 or trainer.max_steps"),
        ([*fsdp, "callbacks=ema"], "averages whole models; trainer.strategy=fsdp shards the model"),
        ([*fsdp, "trainer.precision=64-true"], "with trainer.strategy=fsdp must be auto, 32-true, bf16-mixed"),
    ):
        assert_refused(train(*arguments), line)


def test_rates_that_ruin_the_model(train: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("training.budget.TIMED_SECONDS", 0.1)
    for given in (["minutes=1"], ["name=a", "logger=none"]):
        ended = train("optim.lr=1e30", "optim.muon_lr=1e30", *given)
        assert ended.status == 1 and ended.err.count("\n") == 1, ended.err
        assert "step 2: the loss is nan (batch 1 of seed 0): training has diverged; lower optim.lr=1e+30" in ended.err
        assert not list(Path("runs").glob("*/checkpoints/*"))
        assert Path("runs").exists() == ("name=a" in given)


def test_stopped_while_the_dial_measures(train: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    handlers = [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)]
    for number in (signal.SIGINT, signal.SIGTERM):
        stop = lambda *_, number=number: os.kill(os.getpid(), number)  # noqa: E731
        monkeypatch.setattr("training.budget._Clock.on_train_batch_end", stop)
        ended = train("name=a", "minutes=1")
        assert ended.status == 128 + number and f"stopped by {number.name}" in ended.out
        assert not Path("runs").exists()
    assert [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)] == handlers


@pytest.mark.slow
def test_a_second_ctrl_c_leaves_at_once(workplace: Path) -> None:
    process = processes.Process("name=a", fault=(faults.wait_for_file, 5, "never"))
    processes.wait_for(Path("waiting").exists)
    process.signal(signal.SIGINT)
    time.sleep(1)
    assert process.process.is_alive()
    process.signal(signal.SIGINT)
    assert process.wait(timeout=40).status == 130


def test_wrong_words_are_answered_before_anything_heavy_is_loaded(workplace: Path) -> None:
    code = "import sys, train; sys.argv[1:] = ['model.heads=7']; status = train.cli(); "
    code += "print(status, sorted({'torch', 'lightning', 'numpy'} & set(sys.modules)))"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment())
    assert ended.stdout.strip() == "2 []" and "Traceback" not in ended.stderr


@pytest.mark.slow
def test_out_of_memory_names_the_key_to_lower(workplace: Path) -> None:
    needs("resource", extra="")
    import resource

    large = ["model.context=1024", "model.dim=8", "model.heads=1", "data.batch=2048", "model.attention=explicit"]
    ended = processes.run("name=a", *large, fault=(resource.setrlimit, resource.RLIMIT_AS, (6 << 30, 6 << 30)))
    assert ended.status == 2, ended
    assert "out of memory: 2048 windows of 1024 need about" in ended.err and "data.micro_batch=1024" in ended.err
    assert "Traceback" not in ended.err
    named = shlex.split(ended.err.strip().partition(" train.py ")[2])
    assert set(large) < set(named) and named[-1] == "data.micro_batch=1024"
    config = compose(named)
    assert config.data.micro_batch == 1024 and config.name is None, "a new run, whose command is taken"


@pytest.fixture
def compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    """What compiles, with nothing compiled yet, in this process either."""
    if missing_to_compile():
        missing(f"{missing_to_compile()}, to compile")
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR", raising=False)  # which train.py sets
    torch._dynamo.reset()


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["32-true", pytest.param("bf16-mixed", marks=pytest.mark.nightly)])
def test_compiled_steps_are_the_steps_and_a_second_process_compiles_nothing(
    precision: str, train: Call, compiler: None
) -> None:
    """Not even the passes before code is made: what torch cannot keep, it would do anew at every start.

    With dropout they are the same only if both draw the same masks in the same order.
    """
    program = "import sys, train; status = train.cli(); from torch._dynamo.utils import counters; "
    program += "print(dict(counters['aot_autograd'])); sys.exit(status)"
    # All that attention can be given beyond the default: dropout, a bias, blocks of a window.
    given = [f"trainer.precision={precision}", "model.layers=1", "model.dropout=0.5", "model.positions=alibi"]
    given += ["model.window=5", "model.context=40"]
    tiny = [each for each in TINY if not each.startswith(("model.layers", "model.context"))]
    for cache in ("miss", "hit"):
        ended = subprocess.run(
            [sys.executable, "-c", program, *tiny, "data.path=book.txt", "compile=true", *given, f"name={cache}"],
            env=environment(), capture_output=True, text=True,
        )  # fmt: skip
        assert ended.returncode == 0, ended.stderr[-2000:]
        assert f"'autograd_cache_{cache}': 1" in ended.stdout and "bypass" not in ended.stdout, ended.stdout[-500:]
    train("name=eager", "compile=false", *given)
    assert list(last("miss")["state_dict"]) == list(last("eager")["state_dict"])
    if precision == "32-true":
        for name in ("miss", "hit"):
            assert summary(name)["val_loss"] == pytest.approx(summary("eager")["val_loss"], abs=1e-3)


@pytest.mark.slow
def test_a_run_is_not_compiled_where_compiling_fails(
    train: Call, compiler: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch._inductor.config

    monkeypatch.setattr(torch._inductor.config.cpp, "cxx", ("/nonexistent",))
    monkeypatch.setattr("training.machine.COMPILE_FROM", 0.0)
    same = ["model.dropout=0.1", "model.layers=1"]
    ended = train("name=typed", "compile=true", *same)
    assert ended.status == 2 and not Path("runs/typed").exists()
    assert re.fullmatch(r"train.py: compile=true: failed \(\w+: .*compiler.*\); use compile=false\n", ended.err)
    ended = train("name=fallen", *same)
    (line,) = [line for line in ended.out.splitlines() if "compile=" in line]
    assert line.endswith("; the run is not compiled")
    assert train("name=plain", "compile=false", *same).status == 0
    assert last("fallen")["conditions"] == last("plain")["conditions"]
    assert_same_weights("fallen", "plain")
