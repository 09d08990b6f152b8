"""Machines that people have, pretended, and what a run does on each."""

import subprocess
import time
from dataclasses import replace

import pytest
import torch

from base import processes
from base.errors import InputError, is_out_of_memory
from tests.conf.test_defaults import compose
from tests.conftest import refusal
from tests.training.choosing.test_choose import a_text
from training import launch, machine
from training.begin import compose_resumed
from training.choosing import hardware, time_budget
from training.choosing.choose import choose, with_constants
from training.choosing.time_budget import SHORT_TEXT
from training.launch import _may_differ
from training.machine import (
    Gpu,
    Hardware,
    Machine,
    choose_accelerator,
    choose_devices,
    has_kernels,
)
from training.resume import is_other_gpu

CUDA_13 = ("sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120", "compute_120")  # of torch 2.13
T4, H200 = Gpu("Tesla T4", (7, 5)), Gpu("NVIDIA H200", (9, 0))
GPU_BUILD = {"architectures": CUDA_13, "pytorch": "2.13.0+cu130", "cuda": "13.0"}
CPU_BUILD = {"pytorch": "2.13.0+cpu"}

# What is there; then the device, what the line about the machine begins with, and what the run says
# of a GPU that it cannot use.
MACHINES = {
    "a CPU": (Hardware(**CPU_BUILD), "cpu", "cpu, ", ""),
    "one H200": (Hardware((H200,), **GPU_BUILD), "cuda", "cuda, bf16-mixed (the GPU has bf16)", ""),
    "two T4s": (Hardware((T4, T4), **GPU_BUILD), "cuda",
                "cuda (1 of 2 GPUs; trainer.devices=2 uses all), 32-true (the GPU has no bf16)", ""),
    "three GPUs": (Hardware((T4,) * 3, **GPU_BUILD), "cuda", "cuda (1 of 3 GPUs), 32", ""),
    "a P100": (Hardware((Gpu("Tesla P100", (6, 0)),), **GPU_BUILD), "cpu", "cpu, ",
               "Tesla P100 has compute capability 6.0, but PyTorch 2.13.0+cu130 has kernels for 7.5 to 12.0"),
    "a CPU build": (Hardware(driver="550.54", **CPU_BUILD), "cpu", "cpu, ",
                    "there is a GPU of NVIDIA (driver 550.54), but PyTorch 2.13.0+cpu was built without CUDA; "),
    "an old driver": (Hardware(driver="550.54", **GPU_BUILD), "cpu", "cpu, ",
                      "NVIDIA's driver 550.54 is too old for PyTorch 2.13.0+cu130, which was built for CUDA 13.0"),
}  # fmt: skip


@pytest.mark.parametrize("name", MACHINES)
def test_what_the_first_command_does_on_a_machine(name, monkeypatch):
    there, device, line, note = MACHINES[name]
    monkeypatch.setattr(machine, "look", lambda: there)
    monkeypatch.setattr(torch.cuda, "set_device", lambda index: None)
    monkeypatch.setattr(hardware, "available", lambda device: 16 * 2**30)
    config = compose(["threads=1"])
    found = machine.find_machine(config, 1.0)
    choice = choose(config, a_text(SHORT_TEXT), found)
    assert (found.device, found.devices, found.local) == (device, 1, 1)
    assert choice.machine.startswith(line)
    assert found.note.startswith(note) and bool(found.note) is bool(note)
    trainer = choice.config.trainer
    assert trainer.devices == trainer.num_nodes == trainer.accelerator == "auto", (
        "resuming elsewhere decides anew"
    )
    if note:
        said = refusal(InputError, choose_accelerator, "gpu", there)
        assert said.startswith(f"trainer.accelerator=gpu: {note}")


def test_apple_s_gpu_is_used_only_if_asked_for():
    device, note = choose_accelerator("mps", Hardware(has_mps=True))
    assert device == "mps" and "untried" in note
    assert choose_accelerator("auto", Hardware(has_mps=True)) == ("cpu", "")
    assert refusal(InputError, choose_accelerator, "mps", Hardware()).endswith(
        "this machine has only cpu"
    )


@pytest.mark.parametrize(("capability", "architectures", "runs"), [
    ((7, 5), CUDA_13, True), ((8, 9), CUDA_13, True), ((6, 0), CUDA_13, False), ((7, 0), CUDA_13, False),
    ((9, 0), ("sm_90a",), True), ((12, 1), CUDA_13, True), ((13, 0), CUDA_13, True), ((10, 3), ("sm_90",), False),
    ((9, 4), ("gfx942",), True),
])  # fmt: skip
def test_which_gpus_a_build_has_kernels_for(capability, architectures, runs):
    assert has_kernels(capability, architectures) is runs


# trainer.devices, device, GPUs, and what is used or said
DEVICES = [
    ("auto", "cuda", 4, 1), (2, "cuda", 4, 2), ([1, 3], "cuda", 4, [1, 3]), ("auto", "cpu", 0, 1), (3, "cpu", 0, 3),
    (4, "cuda", 2, "trainer.devices=4: this machine has 2 GPUs"),
    ([2], "cuda", 2, "trainer.devices=[2]: this machine has 2 GPUs, from 0 on"),
    ([0], "cpu", 0, "trainer.devices=[0]: a list is for GPUs"),
]  # fmt: skip


@pytest.mark.parametrize(("devices", "device", "gpus", "expected"), DEVICES)
def test_which_devices_a_run_uses(devices, device, gpus, expected):
    if isinstance(expected, str):
        assert refusal(InputError, choose_devices, devices, device, gpus).startswith(expected)
    else:
        assert choose_devices(devices, device, gpus) == expected


def test_each_rank_uses_its_own_gpu(monkeypatch):
    used = []
    monkeypatch.setattr(machine, "look", lambda: Hardware((H200,) * 4, **GPU_BUILD))
    monkeypatch.setattr(torch.cuda, "set_device", used.append)
    for name, value in {
        "RANK": 6,
        "LOCAL_RANK": 2,
        "WORLD_SIZE": 8,
        "LOCAL_WORLD_SIZE": 4,
    }.items():
        monkeypatch.setenv(name, str(value))
    found = machine.find_machine(compose([]), 1.0)
    assert (found.devices, found.local, found.nodes, used) == (8, 4, 2, [2])
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "8")
    said = refusal(InputError, machine.find_machine, compose([]), 1.0)
    assert said == "torchrun or srun started 8 ranks here: this machine has 4 GPUs"


def test_bf16_that_is_set_needs_a_gpu_that_has_it():
    said = refusal(InputError, hardware.choose_precision, "bf16-mixed", Machine("cuda", gpu=T4))
    assert "Tesla T4 has no bf16" in said and "'allow=[trainer.precision]'" in said
    assert hardware.choose_precision("bf16-mixed", Machine("cuda", gpu=H200)) == ("bf16-mixed", "")


COMPILED = [  # what a run on a GPU chooses; a slower card saves more
    (H200, ["trainer.max_steps=1500"], "false"), (H200, ["model=base", "trainer.max_steps=100000"], "true"),
    # an unknown one is like a T4
    (Gpu("A new one", (9, 0)), ["model=small", "trainer.max_steps=20000"], "true"),
    (T4, ["minutes=1"], "false"), (T4, ["minutes=10"], "true"),
]  # fmt: skip


@pytest.mark.parametrize(("gpu", "arguments", "expected"), COMPILED)
def test_a_gpu_compiles_if_that_saves_more_than_it_costs(gpu, arguments, expected, monkeypatch):
    monkeypatch.setattr(hardware, "available", lambda device: 1e15)
    monkeypatch.setattr(hardware, "missing_to_compile", lambda: "")
    monkeypatch.setattr(time_budget, "time_step", lambda *_: 0.003)
    monkeypatch.setattr(processes, "BEGAN", time.perf_counter())
    config = compose(["threads=1", *arguments])
    found = choose(config, a_text(10**9), Machine("cuda", gpu=gpu, gpus=1))
    assert found.config.compile == expected


def test_compiled_code_is_known_by_its_device():
    config = compose(["threads=1", "trainer.precision=32-true", "data.batch=8"])
    machines = [Machine("cpu"), Machine("cuda", gpu=T4), Machine("cuda", gpu=H200)]
    assert len({hardware.compiled_marker(config, each) for each in machines}) == 3


def test_another_gpu_of_a_resumed_run_is_another_only_to_the_bit():
    a, b, cpu = (
        {"device": name} for name in ("cuda NVIDIA H200", "cuda Tesla T4", "cpu with AVX512")
    )
    assert is_other_gpu(a, b) and not is_other_gpu(a, a) and not is_other_gpu(a, cpu)


def test_ranks_must_have_equal_gpus():
    assert not _may_differ("device", "cuda NVIDIA H200") and _may_differ("device", "cpu with AVX2")
    assert _may_differ("threads", 2) and not _may_differ("text", "a")


@pytest.mark.parametrize("message", [
    "MPS backend out of memory (MPS allocated: 1 GB)", "CUDA error: out of memory", "CUDA out of memory. Tried to",
    "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
])  # fmt: skip
def test_memory_that_runs_out_is_recognised(message):
    assert is_out_of_memory(RuntimeError(message)) and not is_out_of_memory(RuntimeError("a bug"))


def test_the_driver_is_asked_only_for_a_gpu_that_is_not_hidden(monkeypatch):
    monkeypatch.setattr(machine.shutil, "which", lambda name: f"/usr/bin/{name}")
    answer = subprocess.CompletedProcess([], 0, "550.54.15\n550.54.15\n")
    monkeypatch.setattr(machine.subprocess, "run", lambda *_, **__: answer)
    assert machine.nvidia_driver() == "550.54.15"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert machine.nvidia_driver() is None


@pytest.mark.parametrize("number", ["2", "4"])
def test_a_run_of_two_devices_can_be_resumed_by_any_number_of_ranks(monkeypatch, number):
    for name, value in {"RANK": "0", "WORLD_SIZE": number, "LOCAL_WORLD_SIZE": number}.items():
        monkeypatch.setenv(name, value)
    assert compose_resumed([], compose(["trainer.devices=2"])).trainer.devices == "auto"


@pytest.mark.parametrize(("minutes", "number"), [(None, 1), (5.0, 3)])
def test_without_a_time_limit_compiling_depends_on_no_clock(minutes, number):
    config = with_constants(compose(["threads=1"]), "32-true", 1)
    config = replace(config, minutes=minutes)
    estimates = {
        hardware.compiling_seconds(config, Machine("cpu", import_seconds=seconds))
        for seconds in (1.0, 7.0, 40.0)
    }
    assert len(estimates) == number


@pytest.mark.parametrize(("arguments", "said"), [
    ("trainer.devices=4", "trainer.devices=4: this machine has 2 GPUs"),
    ("trainer.devices=2 minutes=1", "minutes=1: needs one device"),
])  # fmt: skip
def test_devices_that_cannot_be_are_said_before_any_process_starts(monkeypatch, arguments, said):
    monkeypatch.setattr(launch, "look", lambda: Hardware((T4, T4), **GPU_BUILD))
    assert refusal(InputError, launch.check_launch, compose(arguments.split())).startswith(said)
