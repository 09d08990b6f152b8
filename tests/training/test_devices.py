"""Several devices fit what one would: the same losses, the same evaluation, the same checkpoints.

The processes are real and talk over gloo; they are forked from one that has loaded torch.
"""

import csv
import re
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from conf.schema import Config, from_yaml
from data import passages
from data.batches import train_batch
from data.open_text import open_text
from data.text import Text
from gpt.checkpoint import load_checkpoint
from gpt.inference.generate import generate
from gpt.model import GPT
from gpt.optim import lr_at, make_optimizer
from tests.conftest import Call, last, missing, summary
from tests.faults import faults
from tests.faults.processes import run, run_ranks
from tests.model_files import nats_of
from training.machine import missing_to_compile

pytestmark = pytest.mark.slow
EXACT = (
    "trainer.precision=32-true trainer.max_steps=20 trainer.val_check_interval=20 trainer.log_every_n_steps=1".split()
)


@pytest.fixture
def letters(workplace: Path, prose: str) -> None:
    """A book of six characters: losses below 2, which fp32 resolves to 1.2e-7, and too few rows for four devices."""
    Path("book.txt").write_text("".join(letter for letter in prose if letter in "abcde "))


def logged(name: str) -> list[float]:
    losses = {}
    for file in Path("runs", name).rglob("metrics.csv"):
        for row in csv.DictReader(file.read_text().splitlines()):
            if row.get("train/loss"):
                losses[int(row["step"])] = float(row["train/loss"])
    assert sorted(losses) == list(range(1, len(losses) + 1))
    return [losses[step] for step in sorted(losses)]


def of_run(name: str) -> tuple[Config, Text]:
    config = from_yaml(Path("runs", name, "config.yaml").read_text())
    return config, open_text(config.data, config.model.context)


def mean_of_halves(config: Config, text: Text) -> list[float]:
    """The losses of training in one process, whose gradients are the means of those of the halves of each batch."""
    torch.manual_seed(config.seed)
    model = GPT(config.model, text.tokenizer.size)
    weights, losses = list(model.parameters()), []
    optimizer = make_optimizer(model, config.optim)
    for step in range(config.trainer.max_steps):
        rate = lr_at(step, config.optim, config.trainer.max_steps)
        for group in optimizer.param_groups:
            group["lr"] = rate * config.optim.muon_lr / config.optim.lr if group.get("muon") else rate
        parts = []
        for half in train_batch(text.train, config.seed, step, config.data.batch, config.model.context).chunk(2):
            loss = F.cross_entropy(model(half[:, :-1]).flatten(0, 1), half[:, 1:].flatten())
            parts.append((loss.item(), torch.autograd.grad(loss, weights)))
        losses.append(sum(loss for loss, _ in parts) / 2)
        means = [sum(each) / 2 for each in zip(*(gradients for _, gradients in parts), strict=True)]
        norm = sum(float(mean.double().square().sum()) for mean in means) ** 0.5
        for weight, mean in zip(weights, means, strict=True):
            weight.grad = mean * min(1.0, config.optim.clip / norm)
        optimizer.step()
    return losses


@pytest.mark.parametrize("kind", ["adamw", "muon"])
def test_losses_are_those_of_one_device(kind: str, letters: None) -> None:
    recipe = [*EXACT, f"optim={kind}", "logger=csv"]
    assert run("name=one", *recipe).status == 0
    assert run_ranks(2, "name=ddp", "trainer=ddp", *recipe).status == 0
    assert run_ranks(2, "name=fsdp", "trainer=fsdp", "data.micro_batch=2", *recipe).status == 0
    expected = mean_of_halves(*of_run("fsdp"))
    losses = {run.name: logged(run.name) for run in Path("runs").iterdir()}
    assert len(expected) == 20 and expected[0] - expected[-1] > 0.1
    for name, given in losses.items():
        assert given == pytest.approx(expected, abs=1e-6), name
        assert given == pytest.approx(losses["fsdp"], abs=1e-6), name


def test_a_matrix_that_is_orthogonalised_in_parts_is_another(letters: None) -> None:
    recipe = [*EXACT, "optim=muon", "logger=csv"]
    assert run_ranks(2, "name=fsdp", "trainer=fsdp", *recipe, fault=(faults.orthogonalise_shards,)).status == 0
    losses = mean_of_halves(*of_run("fsdp"))
    assert max(abs(a - b) for a, b in zip(losses, logged("fsdp"), strict=True)) > 5e-3


def test_evaluation_is_exact_on_any_number_of_devices(workplace: Path) -> None:
    split = ["data.split=[0.6,0.3,0.1]", "trainer.precision=32-true"]
    assert run("name=trained", *split).status == 0
    same = [*split, "init_from=trained", "trainer.max_steps=1", "optim.lr=1e-12", "optim.muon_lr=1e-12"]
    found = {"one": run("name=one", *same)}
    for devices, strategy in ((2, "ddp"), (2, "fsdp"), (4, "fsdp")):
        name = f"{strategy}{devices}"
        found[name] = run_ranks(devices, f"name={name}", f"trainer={strategy}", *same)
    model, _ = load_checkpoint("runs/trained/checkpoints/last.ckpt")
    nats = nats_of(model, of_run("one")[1].validation)
    assert len(nats) > 256 * 32
    for name, ended in found.items():
        assert ended.status == 0, ended
        training = last(name)["callbacks"]["Checkpoints"]["best_loss"]
        assert (training, summary(name)["val_loss"]) == pytest.approx([np.mean(nats)] * 2, abs=1e-6), name


def layout(part: Any) -> Any:
    if isinstance(part, dict):
        return type(part), [(key, layout(value)) for key, value in part.items()]
    if isinstance(part, list | tuple):
        return type(part), [layout(value) for value in part]
    if isinstance(part, torch.Tensor):
        return type(part), part.shape, part.stride(), part.dtype, part.untyped_storage().nbytes()
    return type(part)


def test_a_run_goes_on_with_any_devices(letters: None, sample: Call) -> None:
    recipe = [*EXACT, "optim=adamw", "logger=csv", "trainer.max_steps=24", "trainer.val_check_interval=24"]
    assert run("name=whole", *recipe).status == 0
    expected = logged("whole")
    layouts, ways = {}, [("ddp", 1), ("fsdp", 2), ("ddp", 2), ("fsdp", 4), ("ddp", 1)]
    for leg, (strategy, devices) in enumerate(ways, start=1):
        given = ["name=cut", "resume=auto", *recipe, f"trainer={strategy}", *["allow=[world_size]"] * (leg > 1)]
        stop = (faults.signal_at, 4 * leg - 1, signal.SIGTERM)
        ended = run(*given, fault=stop) if devices == 1 else run_ranks(devices, *given, fault={devices - 1: stop})
        assert ended.status == 143, ended
        contents = last("cut")
        assert contents["global_step"] == 4 * leg
        assert contents["conditions"]["world_size"] == (f"{devices} with fsdp" if strategy == "fsdp" else devices)
        del contents["conditions"]["world_size"]
        history = contents["callbacks"]["Watch"].pop("history")  # which grows
        assert [step for step, _ in history["losses"]["entries"]] == list(range(1, 4 * leg + 1))
        layouts[strategy, devices] = layout(contents)
        assert sample("runs/cut/checkpoints/last.ckpt", "--prompt", "bead", "--num-chars", "5").status == 0
        load_checkpoint("runs/cut/checkpoints/last.ckpt")
        if (strategy, devices) == ("fsdp", 4):
            refused = run("resume=runs/cut", "trainer=ddp", defaults=False)
            assert refused.status == 2 and "world_size=4 (the run has 4 with fsdp); allow=[world_size]" in refused.err
    assert run("name=cut", "resume=auto", "trainer.devices=1", "allow=[world_size]", defaults=False).status == 0
    assert logged("cut") == pytest.approx(expected, abs=1e-6)
    assert len(layouts) == 4 and all(each == layouts["ddp", 1] for each in layouts.values())


def test_texts_are_those_of_the_gathered_model(workplace: Path) -> None:
    assert run_ranks(2, "name=a", "trainer=fsdp", "model.tied=true", "trainer.precision=bf16-mixed").status == 0
    files = sorted(path.name.partition(".")[0] for path in Path("runs/a").iterdir())
    once = " checkpoints config events hparams projector projector_config report summary train"
    assert files == once.split(" "), "one of each, and the lock"
    assert Path("runs/a/train.log").read_text().count("step 30/30  validation loss") == 1
    model, meta = load_checkpoint("runs/a")
    _, text = of_run("a")
    prompts = passages.prompts(text)
    tokens = generate(model, prompts, 20, temperature=0.6, seed=0)
    written = [text.tokenizer.decode(row[prompts.shape[1] :].numpy()) for row in tokens]
    step, texts = last("a")["callbacks"]["Samples"]["history"]["entries"][-1]
    assert step == meta["step"] == 30
    assert [text for temperature, _, text in texts if temperature == 0.6] == written
    assert {temperature for temperature, _, _ in texts} == {0.6, 1.0}


@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.nightly)])
def test_sharded_blocks_are_compiled(backend: str, workplace: Path) -> None:
    if missing_to_compile():
        missing(f"{missing_to_compile()}, to compile")
    recipe = [*EXACT, "trainer=fsdp", "model.layers=1", "model.dropout=0.1", "trainer.max_steps=3", "logger=csv"]
    assert run_ranks(2, "name=eager", "compile=false", *recipe).status == 0
    ended = run_ranks(2, "name=compiled", "compile=true", *recipe, fault=(faults.count_graphs, backend))
    counted = re.findall(r"graphs: (\d), breaks: (\d)", ended.out)
    assert ended.status == 0 and counted == [("2", "0")], (counted, "one for the trial, one for sharded blocks")
    assert logged("compiled") == pytest.approx(logged("eager"), abs=1e-5)
