"""Choices made for a machine, once, before the first step; they are written to config.yaml with the run."""

import ctypes
import platform
import shutil

import torch


def device_kind(accelerator: str) -> str:
    """The kind of device, `cuda`, `mps` or `cpu`, that `trainer.accelerator` leads to.

    Raises:
        ValueError: this machine has no such device.
    """
    present = ["cuda"] * torch.cuda.is_available() + ["mps"] * torch.backends.mps.is_available() + ["cpu"]
    wanted = {"auto": present, "gpu": [kind for kind in present if kind != "cpu"]}.get(accelerator, [accelerator])
    if not wanted or wanted[0] not in present:
        raise ValueError(f"trainer.accelerator={accelerator}: this machine has only {', '.join(present)}")
    return wanted[0]


def choose_precision(precision: str, device: str) -> tuple[str, str]:
    """Resolve `trainer.precision=auto` by what the hardware says of itself, so that the choice repeats.

    Returns:
        The precision and the reason for it.
    """
    if precision != "auto":
        return precision, "as asked"
    if device == "cuda":
        if torch.cuda.is_bf16_supported(including_emulation=False):
            return "bf16-mixed", "the GPU has bf16"
        return "32-true", "the GPU has no bf16"
    if device == "cpu":
        flags = torch.cpu.get_capabilities()
        for flag in ("amx_bf16", "avx512_bf16"):
            if flags.get(flag):
                return "bf16-mixed", f"the CPU has {flag}"
        return "32-true", "the CPU has no bf16 arithmetic"
    return "32-true", "bf16 was not tried on this device"


def choose_compile(compile: str, device: str) -> tuple[bool, str]:
    """Resolve `compile=auto`: on a GPU it pays within a minute, on a CPU only after several.

    Returns:
        Whether to compile and the reason.

    Raises:
        ValueError: `compile=true` on a machine without a C++ compiler.
    """
    if compile == "auto":
        return device == "cuda", "pays on a GPU" if device == "cuda" else "15 s of compiling pay only in long CPU runs"
    if compile == "true" and device == "cpu" and not any(shutil.which(name) for name in ("c++", "g++", "clang++")):
        raise ValueError("compile=true: needs a C++ compiler, such as g++; compile=false goes without")
    return compile == "true", "as asked"


def keep_freed_memory() -> None:
    """Have glibc keep the blocks that a training step frees, for the next step to take.

    By default it gives large ones back to the system, which fills every page with zeros when they are
    asked for again (docs/results.md has what that costs). Other systems are left as they are.
    """
    if platform.libc_ver()[0] == "glibc":
        libc = ctypes.CDLL(None)
        trim_threshold, mmap_threshold = -1, -3  # M_TRIM_THRESHOLD and M_MMAP_THRESHOLD of malloc.h
        libc.mallopt(trim_threshold, 2**30)
        libc.mallopt(mmap_threshold, 2**30)
