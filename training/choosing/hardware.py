"""Choose the precision, the number of threads and whether to use torch.compile; know the peak FLOP/s of GPUs."""

import hashlib
import os
import re
import shutil
import sys
import sysconfig
from pathlib import Path

import torch

from base import processes, ranks
from base.errors import InputError
from conf.schema import TrainerConfig
from gpt.config import ModelConfig

# A compiled step takes this fraction of an uncompiled one's time: the faster the matrix products, the more of the step
# is what compiling fuses (docs/experiments.md).
COMPILED = {"bf16-mixed": 0.7, "32-true": 0.82}
# Compiling takes so many times the seconds in which PyTorch and Lightning are imported, which depend on the CPU in the
# same way: without, and with the compiled code in torch's cache.
COLD, WARM = 3.2, 0.3
LOADED = 7.0  # those seconds on a laptop

# Dense TFLOP/s by CUDA's device name: bf16 with fp32 accumulation, and fp32 without TF32. Data sheets print twice the
# bf16 figure, for sparse matrices. None: the device has no bf16, or several official figures exist.
# Source: NVIDIA's data sheets H100 (2023), H200, HGX B200, A100, A10, L4, L40S, V100 and T4; for GeForce the white
# papers on GA102 and Ada, appendix A.
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


def choose_precision(precision: str, device: str) -> tuple[str, str]:
    """Return the precision of the run, such as `bf16-mixed`, and the reason for it."""
    if precision != "auto":
        return precision, "as configured"
    if device == "cuda":
        has_bf16 = torch.cuda.is_bf16_supported(including_emulation=False)
        return ("bf16-mixed", "the GPU has bf16") if has_bf16 else ("32-true", "the GPU has no bf16")
    if device == "cpu":
        flags = torch.cpu.get_capabilities()
        if flags.get("amx_bf16"):
            return "bf16-mixed", "the CPU has amx_bf16"
        if not flags.get("avx512_bf16"):
            return "32-true", "the CPU has no bf16 arithmetic"
        # A Xeon whose AMX is disabled multiplies half as fast in bf16 as in fp32 (docs/experiments/speed.csv). Cores
        # with avx512_bf16 but without avx512_fp16, such as Zen 4, are faster in bf16.
        if flags.get("avx512_fp16"):
            return "32-true", "the CPU has no AMX, and its avx512_bf16 is slow"
        return "bf16-mixed", "the CPU has avx512_bf16"
    return "32-true", "bf16 is untested on this device"


def step_ratio(precision: str) -> float:
    return COMPILED.get(precision, COMPILED["32-true"])


def compile_seconds(loaded: float, cached: bool) -> float:
    return loaded * (WARM if cached else COLD)


def choose_compile(asked: str, device: str, saved: float, cost: float) -> tuple[str, str]:
    """Return whether to use torch.compile, as the string `true` or `false`, and the reason."""
    missing = missing_to_compile() if device in ("cpu", "cuda") else ""
    if asked == "auto":
        if sys.platform != "linux":
            return "false", "not tested on this system"
        if missing:
            return "false", f"there is no {missing}"
        if device == "cuda":
            return "true", "on a GPU"
        return (
            "true" if saved > cost else "false",
            f"takes about {cost:.0f} s, saves {max(0.0, saved):.0f} s of training",
        )
    if asked != "false" and missing:
        raise InputError(f"compile={asked}: there is no {missing}; use compile=false")
    return asked, "as configured"


def choose_threads(threads: int | str) -> tuple[int | str, str]:
    """Set the number of threads of torch, and return the number and the reason for it.

    The reason is "" unless other programs are using some of the cores and the number is therefore lower. A thread
    without a core of its own slows down all others, because they wait for it at the end of each operation. In processes
    that a launcher such as torchrun has started, `auto` is returned unchanged, and the launcher's number of threads
    stays.
    """
    why = ""
    if isinstance(threads, str):
        if ranks.launched():
            return threads, ""
        cores, busy = processes.cores(), processes.busy_cores()
        taken = 0 if "OMP_NUM_THREADS" in os.environ else int(busy + 0.5)
        threads = max(1, cores - taken)
        if threads < cores:
            why = f"other programs use {busy:.1f} of {cores} cores"
    torch.set_num_threads(threads)
    return threads, why


def missing_to_compile() -> str:
    """Return what this machine lacks for torch.compile, a C++ compiler or Python.h, or "" if it has both."""
    if not any(shutil.which(name) for name in ("c++", "g++", "clang++")):
        return "C++ compiler, such as g++"
    if not Path(sysconfig.get_path("include"), "Python.h").exists():
        return "Python.h, from a package such as python3-dev"
    return ""


def compiled_marker(model: ModelConfig, trainer: TrainerConfig, rows: int) -> Path:
    """Return the path of a marker file in torch's cache, which exists if this training step was compiled before."""
    shape = (vars(model), rows, trainer.precision, trainer.deterministic, torch.get_num_threads())
    machine = (torch.__version__, torch.backends.cpu.get_cpu_capability(), sys.version)
    name = hashlib.sha256(repr((shape, machine)).encode()).hexdigest()[:16]
    return Path(os.environ.get("TORCHINDUCTOR_CACHE_DIR", ""), f"chargpt-{name}")


def peak_flops(device: torch.device, precision: str) -> float | None:
    """Return the peak FLOP/s of `device` for matrix products, according to the table `TFLOPS`, or None if unknown."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else ""
    for pattern, (bf16, fp32) in TFLOPS.items():
        if re.fullmatch(rf"(NVIDIA )?({pattern})", name):  # the whole name, because a MIG slice is slower
            tflops = {"bf16-mixed": bf16, "bf16-true": bf16, "32-true": fp32}.get(precision)
            return tflops and tflops * 1e12
    return None
