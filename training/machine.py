"""Choose device, precision and compilation for this machine before the first step; config.yaml stores the choice."""

import hashlib
import json
import shutil
import sys
import sysconfig
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from base.errors import InputError
from base.options import spell
from conf.merge import settings
from conf.schema import Config
from data.text import Text
from gpt.config import ModelConfig
from gpt.model import GPT
from training.devices import rows_per_device

COMPILE_FROM = 90.0  # seconds of a run on a CPU from which compiling saves time (docs/experiments.md)
LAPTOP_FLOPS = 1.5e11  # per second, of two laptop cores; a constant, so that every machine makes the same choice


def device_kind(accelerator: str) -> str:
    """Return the kind of device for `trainer.accelerator`: `cuda`, `mps` or `cpu`. Refuse one that is not there."""
    present = ["cuda"] * torch.cuda.is_available() + ["mps"] * torch.backends.mps.is_available() + ["cpu"]
    wanted = {"auto": present, "gpu": [kind for kind in present if kind != "cpu"]}.get(accelerator, [accelerator])
    if not wanted or wanted[0] not in present:
        raise InputError(f"trainer.accelerator={accelerator}: this machine has only {', '.join(present)}")
    return wanted[0]


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


def machine(device: str) -> dict[str, Any]:
    """Return the part of the run fingerprint that describes this machine."""
    if device == "cpu":
        amx = torch.cpu.get_capabilities().get("amx_bf16")
        device += f" with {torch.backends.cpu.get_cpu_capability()}{' and AMX' if amx else ''}"
    elif device == "cuda":
        device += f" {torch.cuda.get_device_name()}"
    return {"torch": str(torch.__version__), "device": device, "threads": torch.get_num_threads()}


def choose_compile(asked: str, device: str, seconds: float) -> tuple[str, str]:
    """Return `true`, `false` or `graph` for `compile=asked`, and the reason.

    `auto` becomes `true` on a CUDA GPU, and on a CPU in runs of at least `COMPILE_FROM` expected `seconds`.

    Raises:
        InputError: `true` or `graph` without a compiler or Python.h, or `graph` without CUDA.
    """
    if asked == "graph" and device != "cuda":
        raise InputError(f"compile=graph: needs a CUDA GPU, and this is {device}; compile=true only compiles")
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

    def describe(self, config: Config) -> str:
        """Return a line with device, precision and compilation."""
        compiled = f"{'not ' if config.compile == 'false' else ''}compiled"
        why = self.why_compiled if config.compile == self.compile else "it takes too long"
        return f"{self.device}, {config.trainer.precision} ({self.why_precision}), {compiled} ({why})"


def choose(config: Config, text: Text) -> tuple[Config, Runtime]:
    """Return the configuration with the precision and compilation chosen for this machine, and the reasons.

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
    devices: Any = len(trainer.devices) if isinstance(trainer.devices, list) else trainer.devices
    if devices == "auto":
        devices = torch.cuda.device_count() if device == "cuda" else 1
    devices *= trainer.num_nodes
    rows_per_device(config, devices)  # raises where the batch does not divide evenly
    runtime = Runtime(device, devices, why_precision, compiled, why_compiled, config.compile == "auto")
    return replace(config, trainer=replace(trainer, precision=precision), compile=compiled), runtime


def conditions(config: Config, text: Text, runtime: Runtime) -> dict[str, Any]:
    """Return the run fingerprint as plain data: everything, by name, that a run's results depend on bit for bit."""
    sharded = config.trainer.strategy == "fsdp" and runtime.devices > 1
    vocabulary = hashlib.sha256(json.dumps(text.tokenizer.vocabulary).encode()).hexdigest()
    return settings(config) | {
        "text": f"{sum(text.characters.values())} characters {text.fingerprint[:12]}",
        "vocabulary": f"{text.tokenizer.size} tokens {vocabulary[:12]}",
        "world_size": f"{runtime.devices} with fsdp" if sharded else runtime.devices,
        **machine(runtime.device),
    }


def untrained(config: ModelConfig, vocabulary: int) -> GPT:
    """Return a model on the meta device, to count its weights and operations."""
    with torch.device("meta"):
        return GPT(config, vocabulary)
