"""Choose device, precision and compilation for this machine before the first step; config.yaml stores the choice."""

import hashlib
import json
import os
import re
import shutil
import sys
import sysconfig
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from base import processes
from base.errors import InputError
from base.options import spell
from base.progress import count
from conf.merge import settings
from conf.schema import Config
from data.text import Text
from gpt.config import ModelConfig
from gpt.model import GPT
from training.launch import count_devices, device_kind, rows_per_device

COMPILE_FROM = 90.0  # seconds of a run on a CPU from which compiling saves time (docs/experiments.md)
LAPTOP_FLOPS = 1.5e11  # per second, of two laptop cores; a constant, so that every machine makes the same choice
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
    """Return the precision, for `auto` by the features of the hardware, and the reason for it."""
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
        # A Xeon that could have AMX multiplies half as fast in bf16 as in fp32 without it (docs/experiments.md). Cores
        # with avx512_bf16 and without avx512_fp16, such as Zen 4, are faster in bf16.
        if flags.get("avx512_fp16"):
            return "32-true", "the CPU has no AMX, and its avx512_bf16 is slow"
        return "bf16-mixed", "the CPU has avx512_bf16"
    return "32-true", "bf16 was not tried on this device"


def choose_compile(asked: str, device: str, seconds: float) -> tuple[str, str]:
    """Return `true` or `false` for `compile=asked`, and the reason.

    `auto` becomes `true` on a CUDA GPU, and on a CPU in runs of at least `COMPILE_FROM` expected `seconds`.

    Raises:
        InputError: `true` without a compiler or Python.h.
    """
    missing = missing_to_compile() if device in ("cpu", "cuda") else ""
    if asked == "auto":
        if sys.platform != "linux":
            return "false", "not tested on this system"
        if missing:
            return "false", f"there is no {missing}"
        if device == "cuda":
            return "true", "on a GPU"
        if seconds < COMPILE_FROM:
            return "false", f"saves time on a CPU only in runs of more than {COMPILE_FROM:.0f} s"
        return "true", "saves time in a run this long"
    if asked != "false" and missing:
        raise InputError(f"compile={asked}: there is no {missing}; use compile=false")
    return asked, "as configured"


def choose_threads(threads: int | str) -> tuple[int | str, str]:
    """Set the number of threads and return it, with the reason if other programs are the reason.

    A thread without a core of its own slows down all others, which wait for it at the end of each operation. Ranks of
    one machine keep what their launcher has set: auto.
    """
    why = ""
    if isinstance(threads, str):
        if processes.launched():
            return threads, ""
        cores, busy = processes.cores(), processes.busy_cores()
        taken = 0 if "OMP_NUM_THREADS" in os.environ else int(busy + 0.5)
        threads = max(1, cores - taken)
        if threads < cores:
            why = f"other programs use {busy:.1f} of {cores} cores"
    torch.set_num_threads(threads)
    return threads, why


def missing_to_compile() -> str:
    """Name what torch.compile lacks on this machine; empty when nothing is missing."""
    if not any(shutil.which(name) for name in ("c++", "g++", "clang++")):
        return "C++ compiler, such as g++"
    if not Path(sysconfig.get_path("include"), "Python.h").exists():
        return "Python.h, from a package such as python3-dev"
    return ""


@dataclass(frozen=True)
class Runtime:
    """The choices for this machine, with their reasons."""

    device: str
    devices: int  # over all machines
    why_precision: str
    compile: str  # as chosen; `minutes` may still set `config.compile` to `false`
    why_compiled: str
    auto_compile: bool  # whether `compile` is `auto`, so that the run may do without it
    why_threads: str

    def describe(self, config: Config) -> str:
        """Return a line with device, precision and compilation."""
        compiled = f"{'not ' if config.compile == 'false' else ''}compiled"
        why = self.why_compiled if config.compile == self.compile else "it takes too long"
        threads = f", {count(config.threads, 'thread')} ({self.why_threads})" if self.why_threads else ""
        return f"{self.device}, {config.trainer.precision} ({self.why_precision}), {compiled} ({why}){threads}"


def choose(config: Config, text: Text) -> tuple[Config, Runtime]:
    """Return the configuration with precision, threads and compilation for this machine, and the reasons.

    Raises:
        InputError: this machine lacks what was typed.
    """
    trainer = config.trainer
    device = device_kind(trainer.accelerator)
    precision, why_precision = choose_precision(trainer.precision, device)
    if device == "cpu" and isinstance(trainer.devices, list):
        raise InputError(f"trainer.devices={spell(trainer.devices)}: a list is for GPUs; a CPU takes a number")
    per_token = untrained(config.model, text.tokenizer.size).flops_per_token()
    flops = per_token * float(trainer.max_steps) * config.data.batch * config.model.context
    seconds = 60 * config.minutes if config.minutes else flops / LAPTOP_FLOPS
    compiled, why_compiled = choose_compile(config.compile, device, seconds)
    devices = count_devices(config) * trainer.num_nodes
    rows_per_device(config, devices)  # raises where the batch does not divide evenly
    threads, why_threads = choose_threads(config.threads)
    runtime = Runtime(device, devices, why_precision, compiled, why_compiled, config.compile == "auto", why_threads)
    trainer = replace(trainer, precision=precision)
    return replace(config, trainer=trainer, compile=compiled, threads=threads), runtime


def conditions(config: Config, text: Text, runtime: Runtime) -> dict[str, Any]:
    """Return the run fingerprint as plain data: everything, by name, that a run's results depend on bit for bit."""
    vocabulary = hashlib.sha256(json.dumps(text.tokenizer.vocabulary).encode()).hexdigest()
    device = runtime.device
    if device == "cpu":
        amx = torch.cpu.get_capabilities().get("amx_bf16")
        device += f" with {torch.backends.cpu.get_cpu_capability()}{' and AMX' if amx else ''}"
    elif device == "cuda":
        device += f" {torch.cuda.get_device_name()}"
    return settings(config) | {
        "text": f"{sum(text.characters.values())} characters {text.fingerprint[:12]}",
        "vocabulary": f"{text.tokenizer.size} tokens {vocabulary[:12]}",
        "world_size": runtime.devices,
        "torch": str(torch.__version__),
        "device": device,
        "threads": torch.get_num_threads(),
    }


def untrained(config: ModelConfig, vocabulary: int) -> GPT:
    """Return a model on the meta device, to count its weights and operations."""
    with torch.device("meta"):
        return GPT(config, vocabulary)


def peak_flops(device: torch.device, precision: str) -> float | None:
    """Return the peak FLOP/s of matrix products on a device, from its data sheet; None if unknown."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else ""
    for pattern, (bf16, fp32) in TFLOPS.items():
        if re.fullmatch(rf"(NVIDIA )?({pattern})", name):  # the whole name: a MIG slice is unknown
            tflops = {"bf16-mixed": bf16, "bf16-true": bf16, "32-true": fp32}.get(precision)
            return tflops and tflops * 1e12
    return None
