"""The devices of a run, their peak FLOP/s, and everything that the results of the run depend on."""

import hashlib
import json
import re
from dataclasses import dataclass
from typing import Any

import torch

from base.errors import InputError
from base.options import spell
from conf.resume_rules import settings
from conf.schema import Config
from data.text import Text
from gpt.config import ModelConfig
from gpt.model import GPT
from training.launch import count_devices, device_kind

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


@dataclass(frozen=True)
class Machine:
    """The devices that a run uses."""

    device: str  # the kind of the devices: cuda, mps or cpu
    devices: int  # the number of devices, over all machines


def find_machine(config: Config) -> Machine:
    """Return the kind and the number of the devices that the run uses."""
    trainer, device = config.trainer, device_kind(config.trainer.accelerator)
    if device == "cpu" and isinstance(trainer.devices, list):
        raise InputError(f"trainer.devices={spell(trainer.devices)}: a list is for GPUs; set a number for CPUs")
    return Machine(device, count_devices(config) * (1 if trainer.num_nodes == "auto" else trainer.num_nodes))


def conditions(config: Config, text: Text, machine: Machine) -> dict[str, Any]:
    """Return everything that the results of a run depend on, bit for bit, as name -> plain data.

    The names are the keys of the settings and, for example, `text`, `torch` and `device`. Checkpoints contain this
    dict, and a run resumes only if the dict is the same, unless the key `allow` lists the names that differ.
    """
    vocabulary = hashlib.sha256(json.dumps(text.tokenizer.vocabulary).encode()).hexdigest()
    device = machine.device
    if device == "cpu":
        amx = torch.cpu.get_capabilities().get("amx_bf16")
        device += f" with {torch.backends.cpu.get_cpu_capability()}{' and AMX' if amx else ''}"
    elif device == "cuda":
        device += f" {torch.cuda.get_device_name()}"
    return settings(config) | {
        "text": f"{sum(text.characters.values())} characters {text.fingerprint[:12]}",
        "vocabulary": f"{text.tokenizer.size} tokens {vocabulary[:12]}",
        "world_size": machine.devices,
        "torch": str(torch.__version__),
        "device": device,
        "threads": torch.get_num_threads(),
    }


def untrained(config: ModelConfig, vocabulary: int) -> GPT:
    """Return a model whose weights have no values (PyTorch's meta device), to count its parameters and FLOPs."""
    with torch.device("meta"):
        return GPT(config, vocabulary)


def peak_flops(device: torch.device, precision: str) -> float | None:
    """Return the peak FLOP/s of `device` for matrix products, according to the table `TFLOPS`, or None if unknown."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else ""
    for pattern, (bf16, fp32) in TFLOPS.items():
        if re.fullmatch(rf"(NVIDIA )?({pattern})", name):  # the whole name, because a MIG slice is slower
            tflops = {"bf16-mixed": bf16, "bf16-true": bf16, "32-true": fp32}.get(precision)
            return tflops and tflops * 1e12
    return None
