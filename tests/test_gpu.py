"""What must hold on a CUDA GPU: bits that repeat, losses that are those of a CPU, checkpoints that move.

One case runs on a CPU, too, with it in the GPU's place, so that what the tests share is known to
work.
"""

import itertools
import re
import signal
from pathlib import Path

import pytest
import torch

import sample as sample_script
import score as score_script
from tests.conftest import caller
from tests.faults import faults
from tests.faults.processes import Process
from tests.faults.test_resume import assert_as_if_never_touched
from tests.training.test_launch import logged

pytestmark = pytest.mark.slow
NO_GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA GPU here")
STEPS = 20
# All that a step can hold, and what makes its bits repeat.
EXACT = (
    "trainer.deterministic=true trainer.precision=bf16-mixed model.dropout=0.1 data.micro_batch=2 optim.clip=0.5 "
    f"trainer.max_steps={STEPS} trainer.log_every_n_steps=1 watch.pictures=false"
).split()
# Two devices draw other random numbers: dropout cannot be compared.
COMPARED = (
    f"trainer.max_steps={STEPS} trainer.val_check_interval=10 trainer.log_every_n_steps=1 optim.warmup=5 logger=csv"
).split()
PLAIN = ["trainer.precision=32-true", "model.attention=explicit"]
# on a GPU, Muon iterates in bf16
OPTIMIZERS = {"32-true": "optim=adamw", "bf16-mixed": "optim=muon"}
# How far the losses of the first 20 steps may be apart, relative to them. Two devices sum in
# another order, which rounds otherwise, by 2^-24 each time; AdamW makes more of it where a
# gradient is tiny, since it divides by its size. bf16 rounds by 2^-9: a logit can be off by as
# much. On a CPU two orders differ by 7e-8, bf16 and fp32 by 7e-5.
TOLERANCES = {"32-true": 2.0**-16, "bf16-mixed": 2.0**-9}
LIMIT = 300.0  # seconds for a run, in which a GPU's kernels may have to be compiled


@pytest.fixture(scope="module", autouse=True)
def place(tmp_path_factory, prose):
    """One directory with book.txt for all tests, which share their runs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("gpu"))
        patch.setenv("XDG_CACHE_HOME", str(Path("cache").absolute()))
        Path("book.txt").write_text(prose, encoding="utf-8")
        yield


def run(name, device, *arguments, fault=None):
    process = Process(f"name={name}", f"trainer.accelerator={device}", *arguments, fault=fault)
    return process.wait(LIMIT)


def compare(losses, precision):
    """With those of a CPU in single precision, with the optimizer of a precision."""
    name = f"reference-{precision}"
    if not Path("runs", name).exists():
        assert run(name, "cpu", *COMPARED, *PLAIN, OPTIMIZERS[precision]).status == 0
    expected = logged(name)
    assert len(expected) == len(losses) == STEPS and expected[0] - expected[-1] > 0.5
    assert losses == pytest.approx(expected, rel=TOLERANCES[precision])
    return expected


@NO_GPU
def test_a_run_that_is_killed_repeats_bit_for_bit():
    assert run("exact", "cuda", *EXACT).status == 0
    killed = run("killed", "cuda", *EXACT, fault=(faults.at_step, 13))
    assert killed.status == -signal.SIGKILL, killed
    assert run("killed", "cuda", *EXACT, "resume=auto").status == 0
    assert_as_if_never_touched(Path("runs/exact"), Path("runs/killed"))


CUDA = itertools.product(["cuda"], TOLERANCES, ["compile=false", "compile=true"])


@pytest.mark.parametrize(
    ("device", "precision", "compiled"),
    [
        ("cpu", "bf16-mixed", "compile=false"),
        *(pytest.param(*case, marks=NO_GPU) for case in CUDA),
    ],
)
def test_losses_are_those_of_a_cpu(device, precision, compiled):
    name = f"{device}-{precision}-{compiled[8:]}"
    options = OPTIMIZERS[precision], f"trainer.precision={precision}", compiled
    assert run(name, device, *COMPARED, *options).status == 0
    losses = logged(name)
    assert losses != compare(losses, precision), "they are two computations"


@NO_GPU
@pytest.mark.parametrize(("here", "there"), [("cuda", "cpu"), ("cpu", "cuda")])
def test_a_checkpoint_goes_on_elsewhere(here, there, capsys):
    typed = [*COMPARED, *PLAIN, OPTIMIZERS["32-true"]]
    name = f"{here}-{there}"
    assert run(name, here, *typed, fault=(faults.at_step, 12)).status == -signal.SIGKILL
    path = f"runs/{name}/checkpoints/last.ckpt"
    sample, score = caller(sample_script.cli, capsys), caller(score_script.cli, capsys)
    texts, costs = [], []
    for device in (here, there):
        options = "--prompt", "The", "--num-chars", "30", "--temperature", "0", "--device", device
        texts.append(sample(path, *options))
        scored = score(path, "book.txt", "--device", device).out
        costs.append([float(cost) for cost in re.findall(r"\d\.\d{6}", scored)])
    assert texts[0].status == 0 and texts[0].out == texts[1].out
    assert costs[0] and costs[0] == pytest.approx(costs[1], abs=1e-5)
    compiled = "true" if there == "cuda" else "false"
    go_on = f"resume=runs/{name}", f"trainer.accelerator={there}", f"compile={compiled}"
    refused = Process(*go_on, defaults=False).wait(LIMIT)
    assert refused.status == 2 and "device=" in refused.err
    ended = Process(*go_on, "allow=[device,compile]", defaults=False).wait(LIMIT)
    assert ended.status == 0 and "continues with " in ended.out, ended
    compare(logged(name), "32-true")
