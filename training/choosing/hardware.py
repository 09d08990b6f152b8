"""What the hardware decides: precision, threads, torch.compile, and whether a run fits into its memory."""

import math
import os
import re
import sys

import torch

from base import cgroups, processes, ranks
from base.errors import InputError
from conf.schema import Config
from gpt.attention import MIN_BLOCK, is_explicit
from gpt.model import untrained
from training.machine import Machine, number_of

# A compiled step takes this fraction of an uncompiled one's time: the faster the matrix products,
# the more of the step is what compiling fuses (docs/experiments.md).
COMPILED = {"bf16-mixed": 0.7, "32-true": 0.82}
COMPILED_ON_GPU = 0.55  # an estimate: there the step is a CUDA graph, compiled or not
# Compiling takes about this multiple of the seconds in which PyTorch and Lightning are imported,
# which depend on the CPU in the same way, or on a GPU so many seconds (docs/results.md, an H200).
COMPILING = 3.2
COMPILING_ON_GPU = 33.0
# FLOP/s of two laptop cores; a constant, so that every CPU makes the same choice
LAPTOP_FLOPS = 1.5e11
# fraction of its peak FLOP/s that a GPU reaches in an uncompiled step (docs/results.md, an H200)
REACHED = 0.1

AS_CONFIGURED = "as configured"  # the reason for a value that is set
LOADED_BYTES = 0.45 * 2**30  # of PyTorch and Lightning
# How many fp32 numbers a training step stores (docs/experiments/memory.csv): per position and
# channel for the backward pass of a layer, and per logit.
CHANNEL, LOGIT = 28, 3
FUSED = 0.66  # fraction of them in a compiled step, and in one in bf16
# Dense TFLOP/s by CUDA's device name: bf16 with fp32 accumulation, and fp32 without TF32. Data
# sheets print twice the bf16 figure, for sparse matrices. None: the device has no bf16, or several
# official figures exist. Source: NVIDIA's data sheets H100 (2023), H200, HGX B200, A100, A10, L4,
# L40S, V100 and T4; for GeForce the white papers on GA102 and Ada, appendix A.
TFLOPS: dict[str, tuple[float | None, float | None]] = {
    r"B200": (2250, None),
    r"H200|GH200 480GB|H100 80GB HBM3": (989.4, 66.9),
    r"H100 PCIe": (756, 51),
    r"A100-SXM4-(40|80)GB|A100-PCIE-40GB|A100 80GB PCIe": (312, 19.5),
    r"L40S": (362, 91.6),
    r"L4": (121, 30.3),
    r"A10": (125, 31.2),
    r"GeForce RTX 4090": (165.2, 82.6),
    r"GeForce RTX 3090": (71, 35.6),
    r"Tesla V100-SXM2-(16|32)GB": (None, 15.7),
    r"Tesla V100-PCIE-(16|32)GB": (None, 14),
    r"Tesla T4": (None, 8.1),
}


def choose_precision(precision: str, machine: Machine) -> tuple[str, str]:
    """Return the precision of the run, such as `bf16-mixed`, and the reason for it.

    It is also that of Muon's matrix products.
    """
    gpu = machine.gpu
    if precision != "auto":
        if gpu and precision == "bf16-mixed" and not gpu.has_bf16:
            raise InputError(
                f"trainer.precision={precision}: {gpu.name} has no bf16; use "
                "trainer.precision=32-true, and 'allow=[trainer.precision]' to resume with it"
            )
        return precision, AS_CONFIGURED
    if gpu:
        if gpu.has_bf16:
            return "bf16-mixed", "the GPU has bf16"
        return "32-true", "the GPU has no bf16"
    if machine.device == "cpu":
        flags = torch.cpu.get_capabilities()
        if flags.get("amx_bf16"):
            return "bf16-mixed", "the CPU has amx_bf16"
        if not flags.get("avx512_bf16"):
            return "32-true", "the CPU has no bf16 arithmetic"
        # A Xeon whose AMX is disabled multiplies half as fast in bf16 as in fp32
        # (docs/experiments/speed.csv). Cores with avx512_bf16 but without avx512_fp16, such as Zen
        # 4, are faster in bf16.
        if flags.get("avx512_fp16"):
            return "32-true", "the CPU has no AMX, and its avx512_bf16 is slow"
        return "bf16-mixed", "the CPU has avx512_bf16"
    return "32-true", "bf16 is untested on this device"


def choose_compile(config: Config, machine: Machine, seconds: float) -> tuple[str, str]:
    """Return whether to use torch.compile, `true` or `false`, and the reason.

    Training takes `seconds` if it is not compiled.
    """
    if os.environ.get("TORCH_COMPILE_DISABLE") == "1":
        return "false", "TORCH_COMPILE_DISABLE=1"
    if config.compile != "auto":
        return config.compile, AS_CONFIGURED
    if sys.platform != "linux":
        return "false", "not tested on this system"
    cost, fraction = compiling(config, machine)
    saved = (1 - fraction) * seconds
    pays = "true" if saved > cost else "false"
    return pays, f"takes about {cost:.0f} s, saves {max(0.0, saved):.0f} s of training"


def compiling(config: Config, machine: Machine) -> tuple[float, float]:
    """Return the seconds that torch.compile takes, and the time of a compiled step over that of an uncompiled one."""
    if machine.device == "cuda":
        return COMPILING_ON_GPU, COMPILED_ON_GPU
    seconds = machine.import_seconds
    if config.minutes is None:
        # A constant, so that the same command trains the same bits, and all ranks alike.
        seconds = Machine.import_seconds
    return COMPILING * seconds, COMPILED[config.trainer.precision]


def choose_threads(threads: int | str) -> tuple[int | str, str]:
    """Set the number of threads of torch, and return the number and the reason for it.

    The reason is "" unless other programs are using some of the cores and the number is therefore
    lower. A thread without a core of its own slows down all others, because they wait for it at
    the end of each operation. In processes that a launcher such as torchrun has started, `auto` is
    returned unchanged, and the launcher's number of threads stays.
    """
    why = ""
    if isinstance(threads, str):
        if ranks.launched():
            return threads, ""
        cores = processes.cores()
        is_set = "OMP_NUM_THREADS" in os.environ  # by the user, so it stays
        busy = 0.0 if is_set else processes.busy_cores()
        threads = max(1, cores - int(busy + 0.5))
        if threads < cores:
            why = f"other programs use {busy:.1f} of {cores} cores"
    torch.set_num_threads(threads)
    return threads, why


def peak_flops(name: str, precision: str) -> float | None:
    """Return the peak FLOP/s of a GPU for matrix products, or None if `TFLOPS` does not have it."""
    for pattern, (bf16, fp32) in TFLOPS.items():
        # the whole name, because a MIG slice is slower
        if re.fullmatch(rf"(NVIDIA )?({pattern})", name):
            tflops = bf16 if precision == "bf16-mixed" else fp32
            return tflops and tflops * 1e12
    return None


def check_memory(config: Config, vocabulary: int, machine: Machine) -> None:
    """Raise an `InputError` if a run needs more memory than the device has.

    Without this check, Linux might kill the run, or other programs, without a word.
    """
    model = config.model
    rows = config.data.rows(machine.devices)  # windows in a forward pass on a device
    memory = available(machine.device)
    if machine.device == "cpu":
        # the processes here share the memory of this machine
        memory = memory / number_of(machine.local) - LOADED_BYTES
    row_bytes = step_memory(config, vocabulary, machine.device)
    # weights, gradients and two moments in fp32
    state_bytes = 16 * untrained(model, vocabulary).num_parameters()
    needed = state_bytes + rows * row_bytes
    if needed <= memory:
        return
    lower = f"lower model.dim={model.dim}, model.layers={model.layers} or model.context={model.context}"
    fitting = (memory - state_bytes) / row_bytes
    parts = [part for part in range(1, rows) if rows % part == 0 and part <= fitting]
    if parts:
        lower = f"use data.micro_batch={parts[-1]}"
    raise InputError(
        f"a step needs about {needed / 2**30:,.1f} GiB of memory, but there are "
        f"{max(0.0, memory) / 2**30:,.1f}; {lower}"
    )


def step_memory(config: Config, vocabulary: int, device: str) -> float:
    """Return the bytes that one sequence needs in a training step, in addition to the weights and the optimizer."""
    model = config.model
    T = model.context
    # With a window, each block of queries attends to its own and the previous block of keys.
    keys = min(T, 2 * max(model.window or T, MIN_BLOCK))
    numbers = CHANNEL * (model.layers + 1) * T * model.dim
    if config.compile == "true":
        numbers *= FUSED
    if is_explicit(model, T, keys < T, device, training=True):
        numbers += (model.layers + 2) * model.heads * T * keys  # attention scores
    if config.trainer.precision == "bf16-mixed":
        numbers *= FUSED
    return 4 * (numbers + LOGIT * T * vocabulary)  # in fp32


def available(device: str) -> float:
    """Return the number of bytes of memory that this process can use on a device, or infinity if it is unknown."""
    if device == "cuda":  # what other programs leave, and what torch keeps for the next step
        return float(torch.cuda.mem_get_info()[0] + torch.cuda.memory_reserved())
    if sys.platform == "win32":
        return math.inf
    memory = float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    return min(memory, cgroups.memory_limit())
