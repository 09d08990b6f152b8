"""Several devices fit what one would: the same losses, the same evaluation, the same checkpoints.

The processes are real and talk over gloo; they are forked from one that has loaded torch.
"""

import csv
import signal
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from conf.compose import read_config
from data.batches import TrainingWindows, train_batch
from data.text import open_text
from gpt.checkpoint import load_checkpoint
from gpt.model import GPT
from gpt.optim import make_optimizer, set_rates
from tests.conftest import last, summary
from tests.faults import faults
from tests.faults.processes import run, run_ranks
from tests.model_files import nats_of

pytestmark = pytest.mark.slow
EXACT = (
    "trainer.precision=32-true trainer.max_steps=20 trainer.val_check_interval=20 "
    "trainer.log_every_n_steps=1"
).split()


@pytest.fixture
def letters(workplace, prose):
    """A book of six characters: losses below 2, which fp32 resolves to 1.2e-7."""
    Path("book.txt").write_text("".join(letter for letter in prose if letter in "abcde "))


def logged(name):
    losses = {}
    for file in Path("runs", name).rglob("metrics.csv"):
        for row in csv.DictReader(file.read_text().splitlines()):
            if row.get("train/loss"):
                losses[int(row["step"])] = float(row["train/loss"])
    assert sorted(losses) == list(range(1, len(losses) + 1))
    return [losses[step] for step in sorted(losses)]


def of_run(name):
    config = read_config(Path("runs", name))
    return config, open_text(config.data, config.model.context)


def mean_of_halves(config, text):
    """The losses of training in one process, whose gradients are the means of those of the halves of each batch."""
    torch.manual_seed(config.seed)
    model = GPT(config.model, text.tokenizer.size)
    weights, losses = list(model.parameters()), []
    optimizer = make_optimizer(model, config.optim)
    for step in range(config.trainer.max_steps):
        set_rates(optimizer.param_groups, step, config.optim, config.trainer.max_steps)
        parts = []
        windows = TrainingWindows(text.train, config.seed, config.data.batch, config.model.context)
        for half in train_batch(windows, step).chunk(2):
            loss = F.cross_entropy(model(half[:, :-1]).flatten(0, 1), half[:, 1:].flatten())
            parts.append((loss.item(), torch.autograd.grad(loss, weights)))
        losses.append(sum(loss for loss, _ in parts) / 2)
        means = [
            sum(each) / 2 for each in zip(*(gradients for _, gradients in parts), strict=True)
        ]
        norm = sum(float(mean.double().square().sum()) for mean in means) ** 0.5
        for weight, mean in zip(weights, means, strict=True):
            weight.grad = mean * min(1.0, config.optim.clip / norm)
        optimizer.step()
    return losses


@pytest.mark.promise
def test_losses_are_those_of_one_device(letters):
    recipe = [*EXACT, "optim=muon", "logger=csv"]
    assert run("name=one", *recipe).status == 0
    assert run_ranks(2, "name=two", "data.micro_batch=2", *recipe).status == 0
    expected = mean_of_halves(*of_run("two"))
    assert len(expected) == 20 and expected[0] - expected[-1] > 0.1
    for name in ("one", "two"):
        assert logged(name) == pytest.approx(expected, abs=1e-6), name


def test_evaluation_is_exact_on_any_number_of_devices(workplace):
    split = ["data.split=[0.6,0.3,0.1]", "trainer.precision=32-true"]
    assert run("name=trained", *split).status == 0
    same = "init_from=trained trainer.max_steps=1 optim.lr=1e-12 optim.muon_lr=1e-12".split()
    model, _ = load_checkpoint("runs/trained/checkpoints/last.ckpt")
    nats = nats_of(model, of_run("trained")[1].validation)
    assert len(nats) > 256 * 32
    for devices in (2, 4):
        ended = run_ranks(devices, f"name=of{devices}", *split, *same)
        assert ended.status == 0, ended
        training = last(f"of{devices}")["history"]["best_loss"]
        evaluated = summary(f"of{devices}")["val_loss"]
        assert (training, evaluated) == pytest.approx([np.mean(nats)] * 2, abs=1e-6), devices


def test_a_run_goes_on_with_any_devices(letters):
    recipe = [*EXACT, "optim=adamw", "logger=csv"]
    recipe += ["trainer.max_steps=24", "trainer.val_check_interval=24"]
    assert run("name=whole", *recipe).status == 0
    expected = logged("whole")
    for leg, devices in enumerate((1, 2, 4, 1), start=1):
        given = ["name=cut", "resume=auto", *recipe, *["allow=[world_size]"] * (leg > 1)]
        stop = (faults.at_step, 4 * leg - 1, signal.SIGTERM)
        ended = run_ranks(devices, *given, fault=(faults.in_rank, devices - 1, *stop))
        assert ended.status == 143, ended
        contents = last("cut")
        assert contents["global_step"] == 4 * leg
        assert contents["conditions"].pop("world_size") == devices
        load_checkpoint("runs/cut/checkpoints/last.ckpt")
    end = ("resume=runs/cut", "allow=[world_size]", "trainer.devices=2")
    assert run(*end, defaults=False).status == 0
    assert logged("cut") == pytest.approx(expected, abs=1e-6)


def test_each_file_is_written_once(workplace):
    assert run_ranks(2, "name=a", "trainer.max_steps=10").status == 0
    files = sorted(path.name.partition(".")[0] for path in Path("runs/a").iterdir())
    once = " checkpoints config events events hparams overrides report summary train validation"
    assert files == once.split(" "), "one of each, the lock, and events of the page HPARAMS"
    assert Path("runs/a/train.log").read_text().count("step 10/10  validation loss") == 1
