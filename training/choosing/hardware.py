"""What the hardware decides: precision, threads, torch.compile, and whether a run fits into its memory."""

import hashlib
import math
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from base import cgroups, processes, ranks
from base.errors import InputError, one_line
from conf.schema import Config
from gpt.attention import MIN_BLOCK, is_explicit
from gpt.model import untrained
from training.machine import Machine, number_of

# A compiled step takes this fraction of an uncompiled one's time: the faster the matrix products,
# the more of the step is what compiling fuses (docs/experiments.md).
COMPILED = {"bf16-mixed": 0.7, "32-true": 0.82}
# Compiling takes a multiple of the seconds in which PyTorch and Lightning are imported, which
# depend on the CPU in the same way: without, and with the compiled code in torch's cache.
COLD, WARM = 3.2, 0.3
# The same on a GPU, where the step is a CUDA graph with and without compiling, and seconds
# (docs/results.md, an H200; the fraction is an estimate).
COMPILED_ON_GPU = 0.55
COLD_ON_GPU, WARM_ON_GPU = 33.0, 3.0
# FLOP/s of two laptop cores; a constant, so that every CPU makes the same choice
LAPTOP_FLOPS = 1.5e11
# fraction of its peak FLOP/s that a GPU reaches in an uncompiled step (docs/results.md, an H200)
REACHED = 0.1

LOADED_BYTES = 0.45 * 2**30  # of PyTorch and Lightning
# How many fp32 numbers a training step needs (docs/experiments/memory.csv): per position and
# channel, what each layer stores for its backward pass and what one backward pass needs; per score
# of explicit attention, likewise; per logit.
CHANNEL, CHANNELS_ONCE, SCORE, SCORES_ONCE, LOGIT = 28, 20, 1, 2, 3
COMPILED_CHANNEL, BF16_CHANNEL, BF16_SCORE = 0.66, 0.74, 0.5  # fractions of them
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
    """Return the precision of the run, such as `bf16-mixed`, and the reason for it, "" if it is set.

    It is also that of Muon's matrix products.
    """
    gpu = machine.gpu
    if precision != "auto":
        if gpu and precision == "bf16-mixed" and not gpu.has_bf16:
            way = (
                "use trainer.precision=32-true, and 'allow=[trainer.precision]' to resume with it"
            )
            raise InputError(f"trainer.precision={precision}: {gpu.name} has no bf16; {way}")
        return precision, ""
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


def choose_compile(compiled: str, device: str, saved: float, cost: float) -> tuple[str, str]:
    """Return whether to use torch.compile, as the string `true` or `false`, and the reason, "" if it is set.

    Compiling takes about `cost` seconds, and saves about `saved` seconds of training.
    """
    if compiled == "false":
        return compiled, ""
    if compiled == "auto" and sys.platform != "linux":
        return "false", "not tested on this system"
    missing = missing_to_compile() if device in ("cpu", "cuda") else ""
    if missing and compiled == "true":
        raise InputError(f"compile={compiled}: there is no {missing}; use compile=false")
    if compiled == "true":
        return compiled, ""
    if missing:
        return "false", f"there is no {missing}"
    pays = "true" if saved > cost else "false"
    return pays, f"takes about {cost:.0f} s, saves {max(0.0, saved):.0f} s of training"


def compiled_fraction(precision: str, device: str) -> float:
    """Return which fraction of the time of an uncompiled step a compiled one takes."""
    return COMPILED_ON_GPU if device == "cuda" else COMPILED[precision]


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
        busy = processes.busy_cores()
        is_set = "OMP_NUM_THREADS" in os.environ  # by the user, so it stays
        taken = 0 if is_set else int(busy + 0.5)
        threads = max(1, cores - taken)
        if threads < cores:
            why = f"other programs use {busy:.1f} of {cores} cores"
    torch.set_num_threads(threads)
    return threads, why


@cache
def missing_to_compile() -> str:
    """Return what this machine lacks for torch.compile, a working C++ compiler or Python.h, or "" if it has both."""
    usual = "clang++" if sys.platform == "darwin" else "g++"
    compiler = os.environ.get("CXX") or usual  # the one that Inductor uses
    if not shutil.which(compiler):
        return f"C++ compiler {compiler}"
    include = sysconfig.get_path("include")
    if not Path(include, "Python.h").exists():
        return "Python.h, from a package such as python3-dev"
    with TemporaryDirectory() as folder:
        source = Path(folder, "try.cpp")
        source.write_text("#include <cmath>\n#include <Python.h>\n")
        command = [
            compiler,
            "-shared",
            "-fPIC",
            f"-I{include}",
            str(source),
            "-o",
            str(source.with_suffix(".so")),
        ]
        attempt = subprocess.run(command, capture_output=True, text=True, errors="replace")
    if attempt.returncode:
        return f"working C++ compiler ({compiler}: {one_line(attempt.stderr)[:100] or 'failed'})"
    return ""


def compiled_marker(config: Config, machine: Machine) -> Path:
    """Return the path of a marker file in torch's cache, which exists if this training step was compiled before."""
    trainer = config.trainer
    rows = config.data.rows(machine.devices)  # windows in a forward pass on a device
    shape = (
        vars(config.model),
        rows,
        trainer.precision,
        trainer.deterministic,
        torch.get_num_threads(),
    )
    device = machine.gpu or torch.backends.cpu.get_cpu_capability()
    name = hashlib.sha256(
        repr((shape, torch.__version__, device, sys.version)).encode()
    ).hexdigest()[:16]
    return Path(os.environ.get("TORCHINDUCTOR_CACHE_DIR", ""), f"chargpt-{name}")


def compiling_seconds(config: Config, machine: Machine) -> float:
    """Return about how long torch.compile takes, judging by how long importing PyTorch took.

    Without a time limit it is a constant, so that the same command trains the same bits, and all
    ranks alike.
    """
    is_warm = config.minutes is not None and compiled_marker(config, machine).exists()
    if machine.device == "cuda":
        return WARM_ON_GPU if is_warm else COLD_ON_GPU
    if config.minutes is None:
        return COLD * Machine.import_seconds
    # However fast the import was, count a second: compiling always takes some time.
    return (WARM if is_warm else COLD) * max(1.0, machine.import_seconds)


def estimated_flops(machine: Machine, precision: str) -> float:
    """Return about how many FLOP/s an uncompiled training step reaches; a GPU that is not in `TFLOPS` is like a T4."""
    if machine.gpu is None:
        return LAPTOP_FLOPS
    peak = peak_of(machine.gpu.name, precision) or peak_of("Tesla T4", "32-true")
    assert peak
    return REACHED * peak * machine.devices


def peak_flops(device: torch.device, precision: str) -> float | None:
    """Return the peak FLOP/s of `device` for matrix products, according to the table `TFLOPS`, or None if unknown."""
    if device.type != "cuda":
        return None
    return peak_of(torch.cuda.get_device_name(device), precision)


def peak_of(name: str, precision: str) -> float | None:
    """Return the peak FLOP/s of a GPU, or None if `TFLOPS` does not have it."""
    for pattern, (bf16, fp32) in TFLOPS.items():
        # the whole name, because a MIG slice is slower
        if re.fullmatch(rf"(NVIDIA )?({pattern})", name):
            tflops = bf16 if precision == "bf16-mixed" else fp32
            return None if tflops is None else tflops * 1e12
    return None


def check_memory(config: Config, vocabulary: int, machine: Machine) -> None:
    """Raise an `InputError` if a run needs more memory than the device has.

    Without this check, Linux might kill the run, or other programs, without a word.
    """
    model = config.model
    rows = config.data.rows(machine.devices)  # windows in a forward pass on a device
    memory = available(machine.device)
    if machine.device == "cpu":
        processes_here = number_of(machine.local)  # they share the memory of this machine
        memory = memory / processes_here - LOADED_BYTES
    row_bytes = step_memory(config, vocabulary, machine.device)
    numbers = 4 * untrained(model, vocabulary).num_parameters()  # weights, gradients, two moments
    state_bytes = 4 * numbers  # in fp32
    needed = state_bytes + rows * row_bytes
    if needed <= memory:
        return
    micro_batches = [
        part
        for part in range(1, rows)
        if rows % part == 0 and state_bytes + part * row_bytes <= memory
    ]
    lower = f"lower model.dim={model.dim}, model.layers={model.layers} or model.context={model.context}"
    if micro_batches:
        lower = f"use data.micro_batch={max(micro_batches)}"
    there = f"there are {max(0.0, memory) / 2**30:,.1f}"
    raise InputError(
        f"a step needs about {needed / 2**30:,.1f} GiB of memory, but {there}; {lower}"
    )


def step_memory(config: Config, vocabulary: int, device: str) -> float:
    """Return the bytes that one sequence needs in a training step, in addition to the weights and the optimizer."""
    model = config.model
    T = model.context
    # With a window, each block of queries attends to its own and the previous block of keys.
    keys = min(T, 2 * max(model.window or T, MIN_BLOCK))
    channels = (CHANNEL * model.layers + CHANNELS_ONCE) * T * model.dim
    if config.compile == "true":
        channels *= COMPILED_CHANNEL
    scores = 0.0
    if is_explicit(model, T, keys, device, training=True):
        scores = (SCORE * model.layers + SCORES_ONCE) * model.heads * T * keys
    if config.trainer.precision == "bf16-mixed":
        channels *= BF16_CHANNEL
        scores *= BF16_SCORE
    numbers = channels + scores + LOGIT * T * vocabulary
    return 4 * numbers  # in fp32


def available(device: str) -> float:
    """Return the number of bytes of memory that this process can use on a device, or infinity if it is unknown."""
    if device == "cuda":  # what other programs leave, and what torch keeps for the next step
        return float(torch.cuda.mem_get_info()[0] + torch.cuda.memory_reserved())
    if sys.platform == "win32":
        return math.inf
    import resource

    limits = [
        float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")),
        cgroups.memory_limit(cgroups.ROOT),
    ]
    soft_limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if soft_limit != resource.RLIM_INFINITY:
        limits.append(float(soft_limit))
    return min(limits)
