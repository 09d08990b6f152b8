"""On pretended machines: which devices a run uses, and what it says of each."""

import subprocess
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch

from base.errors import InputError
from tests.conf.test_defaults import compose
from tests.conftest import refusal
from tests.training.choosing.test_time_budget import a_text
from training import launch, machine
from training.begin import compose_resumed
from training.choosing import hardware
from training.choosing.choose import choose
from training.choosing.rules import SHORT_TEXT
from training.machine import Gpu, Machine, choose_accelerator, choose_devices
from training.resume import check_unchanged

T4 = Gpu("Tesla T4", False)
H200 = Gpu("NVIDIA H200", True)
OLD_DRIVER = RuntimeError("The NVIDIA driver is too old (found version 12040).\nUpdate it")
NO_KERNEL = RuntimeError("CUDA error: no kernel image is available\nCUDA kernel errors might")
CPU_BUILD = AssertionError("Torch not compiled with CUDA enabled")

# The GPUs that CUDA sees, the number that nvidia-smi finds, and the error of an operation; then what
# the line about the machine begins with.
MACHINES = {
    "a CPU": ([], 0, CPU_BUILD, "cpu, "),
    "one H200": ([H200], 1, None, "cuda, bf16-mixed (the GPU has bf16)"),
    "two T4s": ([T4] * 2, 2, None,
                "cuda (1 of 2 GPUs: trainer.devices), 32-true (the GPU has no bf16)"),
    "a GPU too old for PyTorch": ([T4], 1, NO_KERNEL, "cpu, "),
    "an old driver": ([], 1, OLD_DRIVER, "cpu, "),
}  # fmt: skip


@pytest.fixture
def pretend(monkeypatch):
    """Pretends a machine: the GPUs that CUDA sees, the number that nvidia-smi finds, the error of an operation."""

    def pretend(gpus, number, error=None):
        answer = SimpleNamespace(stdout="GPU 0: a name (UUID: GPU-1)\n" * number)

        def operation(*shape, device=None, **named):
            if device == "cuda" and error:
                raise error
            return ones(*shape, **named)

        monkeypatch.setattr(machine, "visible_gpus", lambda: gpus)
        monkeypatch.setattr(launch, "visible_gpus", lambda: gpus)
        monkeypatch.setattr(subprocess, "run", lambda *_, **__: answer)
        monkeypatch.setattr(torch, "ones", operation)
        monkeypatch.setattr(torch.cuda, "set_device", used.append)
        monkeypatch.setattr(hardware, "available", lambda _: 16 * 2**30)
        return used

    used, ones = [], torch.ones
    return pretend


@pytest.mark.parametrize("name", MACHINES)
def test_what_the_first_command_does_on_a_machine(name, monkeypatch, pretend):
    gpus, number, error, line = MACHINES[name]
    pretend(gpus, number, error)
    config = compose(["threads=1"])
    used = machine.find_machine(config, 1.0)
    choice = choose(config, a_text(SHORT_TEXT), used)
    assert line.startswith(used.device) and choice.machine.startswith(line)
    assert used.devices == used.local == 1
    trainer = choice.config.trainer
    assert trainer.devices == trainer.num_nodes == trainer.accelerator == "auto"
    assert ("; docs/cluster.md says" in used.note) == bool(number and error)
    if used.device == "cpu":
        said = refusal(InputError, machine.find_machine, compose(["trainer.accelerator=gpu"]), 1.0)
        assert said == f"trainer.accelerator=gpu: {used.note or 'this machine has none'}"
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
        pretend([], number, error)
        assert machine.find_machine(config, 1.0).note == "", "the GPUs are hidden"


def test_a_run_says_why_it_uses_no_gpu(pretend, train):
    pretend([], 1, OLD_DRIVER)
    ended = train("trainer.accelerator=auto", "trainer.max_steps=1", "trainer.precision=32-true")
    assert ended.status == 0, ended
    assert "\nGPU        The NVIDIA driver is too old (found version 12040).; docs/" in ended.out


def test_apple_s_gpu_is_used_only_if_asked_for(pretend, monkeypatch):
    pretend([], 0, CPU_BUILD)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    device, note = choose_accelerator("mps", 0)
    assert device == "mps" and "untried" in note
    assert choose_accelerator("auto", 0) == ("cpu", "")


def test_a_run_uses_the_devices_that_are_set():
    assert choose_devices(2, "cuda", 4) == 2
    assert choose_devices([1, 3], "cuda", 4) == [1, 3]


def start_ranks(monkeypatch, **numbers):
    """Pretend that torchrun has started this process."""
    for name, value in {"RANK": 0, "LOCAL_RANK": 0, **numbers}.items():
        monkeypatch.setenv(name, str(value))


def test_each_rank_uses_its_own_gpu(pretend, monkeypatch):
    used = pretend([H200] * 4, 4)
    start_ranks(monkeypatch, RANK=6, LOCAL_RANK=2, WORLD_SIZE=8, LOCAL_WORLD_SIZE=4)
    each = machine.find_machine(compose([]), 1.0)
    assert (each.devices, each.local, each.nodes, used) == (8, 4, 2, [2])
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "8")
    said = refusal(InputError, machine.find_machine, compose([]), 1.0)
    assert said == "torchrun or srun started 8 ranks here: this machine has 4 GPUs"


def test_bf16_that_is_set_needs_a_gpu_that_has_it():
    said = refusal(InputError, hardware.choose_precision, "bf16-mixed", Machine("cuda", gpu=T4))
    assert "Tesla T4 has no bf16" in said and "'allow=[trainer.precision]'" in said


# a slower card saves more
@pytest.mark.parametrize(("gpu", "arguments", "expected"), [
    (H200, ["trainer.max_steps=1500"], "false"), (H200, ["model=base", "trainer.max_steps=100000"], "true"),
    # an unknown one is like a T4
    (Gpu("A new one", True), ["model=small", "trainer.max_steps=20000"], "true"),
])  # fmt: skip
def test_a_gpu_compiles_if_that_saves_more_than_it_costs(gpu, arguments, expected, monkeypatch):
    monkeypatch.setattr(hardware, "available", lambda device: 1e15)
    monkeypatch.setattr(hardware.sys, "platform", "linux")
    config = compose(["threads=1", *arguments])
    choice = choose(config, a_text(10**9), Machine("cuda", gpu=gpu, gpus=1))
    assert choice.config.compile == expected


@pytest.mark.parametrize(("now", "exact", "refused"), [
    ("cuda Tesla T4", "warn", False), ("cuda Tesla T4", "true", True), ("cpu with AVX512", "warn", True),
])  # fmt: skip
def test_another_gpu_of_a_resumed_run_is_another_only_to_the_bit(now, exact, refused):
    conditions = {"device": now, "trainer.deterministic": exact}
    point = SimpleNamespace(conditions=conditions | {"device": "cuda NVIDIA H200"})
    with pytest.raises(InputError, match="cannot change device=") if refused else nullcontext():
        check_unchanged("runs/a", conditions, point, [])


@pytest.mark.parametrize(("devices", "refused"), [
    (("cuda NVIDIA H200", "cuda Tesla T4"), True), (("cpu with AVX2", "cpu with AVX512"), False),
])  # fmt: skip
def test_ranks_must_have_equal_gpus(monkeypatch, devices, refused):
    def gather(everyone, own):
        everyone[:] = [("a", {"device": device}) for device in devices]

    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 2)
    monkeypatch.setattr(torch.distributed, "all_gather_object", gather)
    with pytest.raises(InputError, match="device: rank 1 on a has") if refused else nullcontext():
        launch.check_same_start({})


def test_a_run_of_two_devices_can_be_resumed_by_any_number_of_ranks(monkeypatch):
    start_ranks(monkeypatch, WORLD_SIZE=4, LOCAL_WORLD_SIZE=4)
    assert compose_resumed([], compose(["trainer.devices=2"])).trainer.devices == "auto"


@pytest.mark.parametrize(("arguments", "said"), [
    ("trainer.devices=4", "trainer.devices=4: this machine has 2 GPUs"),
    ("trainer.devices=[0,2]", "trainer.devices=[0,2]: this machine has 2 GPUs, from 0 on"),
    ("trainer.devices=2 minutes=1", "minutes=1: needs one device"),
])  # fmt: skip
def test_devices_that_cannot_be_are_said_before_any_process_starts(pretend, arguments, said):
    pretend([T4] * 2, 2)
    assert refusal(InputError, launch.check_launch, compose(arguments.split())).startswith(said)
