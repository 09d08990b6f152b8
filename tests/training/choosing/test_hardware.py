import math
import os
import sys
from types import SimpleNamespace

import pytest
import torch

from base import cgroups, processes
from tests.conf.test_defaults import compose
from tests.folders import make
from training.choosing import hardware
from training.choosing.choose import with_constants
from training.machine import Machine


@pytest.fixture
def four_cores(monkeypatch):
    monkeypatch.setattr(torch, "set_num_threads", lambda _: None)
    monkeypatch.setattr(processes, "cores", lambda: 4)
    monkeypatch.setattr(processes, "busy_cores", lambda: 1.6)
    monkeypatch.delenv("OMP_NUM_THREADS")
    return monkeypatch


@pytest.mark.parametrize(("busy", "threads"), [(0.4, 4), (0.5, 3), (1.6, 2), (4.0, 1)])
def test_other_programs_keep_their_cores(four_cores, busy, threads):
    four_cores.setattr(processes, "busy_cores", lambda: busy)
    number, why = hardware.choose_threads("auto")
    assert number == threads
    assert why == f"other programs use {busy:.1f} of 4 cores" * (threads < 4)


@pytest.mark.skipif(sys.platform != "linux", reason="the load is known on Linux")
@pytest.mark.parametrize(("so_far", "in_a_second", "busy"), [
    # quiet, a load that has ended, and a load
    (0, 100, 0), (10**9, 0, 0), (10**9, 1.6, 1.6),
])  # fmt: skip
def test_a_load_counts_if_it_goes_on(tmp_path, monkeypatch, so_far, in_a_second, busy):
    clock = SimpleNamespace(now=1e9, slept=[], perf_counter=lambda: clock.now)

    def sleep(seconds):
        clock.slept.append(seconds)
        clock.now += seconds
        use(so_far + in_a_second)

    def use(seconds):
        ticks = round(seconds * os.sysconf("SC_CLK_TCK"))
        number = min(os.sched_getaffinity(0))
        (tmp_path / "stat").write_text(f"cpu{number} {ticks} 0 0 7 0 0 0\n")

    clock.sleep = sleep
    use(so_far)
    monkeypatch.setattr(processes, "STAT", tmp_path / "stat")
    monkeypatch.setattr(processes, "time", clock)
    assert processes.busy_cores() == pytest.approx(busy, abs=0.05)
    assert clock.slept == [1] * (so_far > 0), "it looks again"


def test_threads_that_are_set_stay(four_cores):
    assert hardware.choose_threads(3) == (3, "")
    four_cores.setenv("OMP_NUM_THREADS", "4")
    assert hardware.choose_threads("auto") == (4, "")
    for name in ("RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"):  # a launcher has chosen them
        four_cores.setenv(name, "1")
    assert hardware.choose_threads("auto") == ("auto", "")


GIB = 2**30
UNLIMITED = 2**63 - 4096  # what version 1 of control groups says
# What a machine of 8 cores says in /proc/self/cgroup, the limits in /sys/fs/cgroup, and what is
# left: cores, and bytes of memory, of which none is without a limit here.
GROUPS = {
    "without control groups": (None, {}, 8, math.inf),
    "a container": ("0::/", {"cpu.max": "150000 100000", "memory.max": GIB}, 2, GIB),
    "of which /proc is hidden": (None, {"cpu.max": "10000 100000", "memory.max": GIB}, 1, GIB),
    "more than there is": ("0::/", {"cpu.max": "1600000 100000"}, 8, math.inf),
    "that sees the path of its host": ("0::/host/pod", {"memory.max": GIB}, 8, GIB),
    "SLURM, whose job limits its step": (
        "0::/slurmstepd.scope/job_7/step_0/user/task_0",
        {
            "slurmstepd.scope/job_7/memory.max": GIB,
            "slurmstepd.scope/job_7/cpu.max": "300000 100000",
            "slurmstepd.scope/job_7/step_0/memory.max": 2 * GIB,
            "slurmstepd.scope/job_7/step_0/user/task_0/cpu.max": "400000 100000",
            "slurmstepd.scope/job_8/memory.max": 1,
        },
        3,
        GIB,
    ),
    "version 1": (
        "9:cpu,cpuacct:/user\n4:memory:/slurm/uid_1/job_7\n1:name=systemd:/x\n0::/",
        {
            "memory/memory.limit_in_bytes": UNLIMITED,
            "memory/slurm/uid_1/memory.limit_in_bytes": GIB,
            "memory/slurm/uid_1/job_7/memory.limit_in_bytes": 2 * GIB,
            "cpu/cpu.cfs_quota_us": -1,
            "cpu/cpu.cfs_period_us": 100_000,
            "cpu/user/cpu.cfs_quota_us": 250_000,
            "cpu/user/cpu.cfs_period_us": 100_000,
        },
        3,
        GIB,
    ),
}


@pytest.mark.parametrize(("groups", "limits", "cores", "memory"), GROUPS.values(), ids=GROUPS)
def test_control_groups_limit_cores_and_memory(
    tmp_path, monkeypatch, groups, limits, cores, memory
):
    files = {f"sys/fs/cgroup/{name}": f"{value}\n" for name, value in limits.items()}
    if groups is not None:
        files["proc/self/cgroup"] = f"{groups}\n"
    make(tmp_path, files)
    monkeypatch.setattr(cgroups, "ROOT", tmp_path)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)), raising=False)
    monkeypatch.delenv("OMP_NUM_THREADS")
    assert processes.cores() == cores
    there = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert hardware.available("cpu") == min(memory, there)


# asked for, seconds of training, TORCH_COMPILE_DISABLE, system; what is chosen
@pytest.mark.parametrize(("asked", "seconds", "disabled", "system", "chosen"), [
    ("auto", 200, "", "linux", "true"), ("auto", 100, "", "linux", "false"),
    ("false", 1e9, "", "linux", "false"), ("true", 1, "", "darwin", "true"),
    ("auto", 1e9, "", "darwin", "false"),  # where nobody tried it
    ("auto", 1e9, "1", "linux", "false"), ("true", 1e9, "1", "linux", "false"),
])  # fmt: skip
def test_compiling_pays_in_long_runs(monkeypatch, asked, seconds, disabled, system, chosen):
    monkeypatch.setattr(sys, "platform", system)
    monkeypatch.setenv("TORCH_COMPILE_DISABLE", disabled)
    config = with_constants(compose([f"compile={asked}"]), "32-true", 1)
    choice, _ = hardware.choose_compile(config, Machine("cpu"), seconds)
    assert choice == chosen


@pytest.mark.parametrize(("asked", "device", "flags", "precision"), [
    ("auto", "cpu", "amx_bf16 avx512_bf16 avx512_fp16", "bf16-mixed"), ("auto", "cpu", "avx512_bf16", "bf16-mixed"),
    ("auto", "cpu", "avx512_bf16 avx512_fp16", "32-true"), ("auto", "cpu", "avx512_f", "32-true"),
    ("auto", "mps", "amx_bf16", "32-true"), ("bf16-mixed", "cpu", "", "bf16-mixed"),
])  # fmt: skip
def test_precision_by_what_the_processor_says(monkeypatch, asked, device, flags, precision):
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: dict.fromkeys(flags.split(), True))
    assert hardware.choose_precision(asked, Machine(device))[0] == precision


def test_a_gpu_is_known_by_its_whole_name():
    assert hardware.peak_flops("NVIDIA H100 80GB HBM3", "bf16-mixed") == 989.4e12
    assert hardware.peak_flops("NVIDIA H100 80GB HBM3 MIG 1g.10gb", "bf16-mixed") is None


def test_the_memory_of_a_device(monkeypatch):
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (2**30 - 2**20, 2**40))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda: 2**20)
    assert hardware.available("cuda") == 2**30, "what other programs leave"
    monkeypatch.setattr(sys, "platform", "win32")
    assert hardware.available("cpu") == math.inf, "unknown there"
