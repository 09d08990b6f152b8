"""Find the devices of this machine, and decide which of them a run uses. Loads torch only when it looks for them."""

import os
import subprocess
from dataclasses import dataclass

from base import ranks
from base.errors import InputError
from base.options import spell
from base.progress import count
from conf.schema import Config


@dataclass(frozen=True)
class Gpu:
    """What CUDA says about a GPU."""

    name: str  # such as Tesla T4
    has_bf16: bool  # whether it multiplies in bf16, which torch emulates on older ones


@dataclass(frozen=True)
class Machine:
    """The devices that a run uses."""

    device: str  # the kind of the devices: cuda, mps or cpu
    local: int | list[int] = 1  # on this machine, their number or their indices
    nodes: int = 1  # number of machines
    gpu: Gpu | None = None  # the GPU of this process
    gpus: int = 0  # number of GPUs of this machine, also of those that the run does not use
    note: str = ""  # why a GPU is not used, or what to know of one that is
    # of PyTorch and Lightning, which take as long as the CPU is slow; the default is a laptop's
    import_seconds: float = 7.0

    @property
    def devices(self) -> int:
        return number_of(self.local) * self.nodes  # over all machines


def number_of(devices: int | str | list[int]) -> int:
    """Return how many devices a value of `trainer.devices` stands for on one machine."""
    if isinstance(devices, list):
        return len(devices)
    return 1 if devices == "auto" else int(devices)


def visible_gpus() -> list[Gpu]:
    """Return the GPUs that CUDA sees. The first call loads torch."""
    import torch

    number = torch.cuda.device_count() if torch.cuda.is_available() else 0
    return [
        Gpu(torch.cuda.get_device_name(index), torch.cuda.get_device_capability(index) >= (8, 0))
        for index in range(number)
    ]


def has_nvidia_gpu() -> bool:
    """Return whether nvidia-smi finds a GPU, unless the user has hidden all of them."""
    if os.environ.get("CUDA_VISIBLE_DEVICES") in ("", "-1"):
        return False
    try:
        listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.SubprocessError):
        return False
    return listed.stdout.startswith("GPU ")


def why_unusable() -> str:
    """Return what torch says if an operation on the GPU fails, and the page that helps, or "" if it works."""
    import torch

    try:
        torch.ones(1, device="cuda").item()
    except (AssertionError, RuntimeError) as error:
        first, *_ = str(error).split("\n")
        return f"{first}; docs/cluster.md says what to install"
    return ""


def choose_accelerator(accelerator: str, gpus: int) -> tuple[str, str]:
    """Return the kind of device that `trainer.accelerator` selects (cuda, mps or cpu), and a note about it."""
    if accelerator == "cpu":
        return "cpu", ""
    if gpus and accelerator != "mps":
        return "cuda", ""
    problem = why_unusable() if has_nvidia_gpu() else ""
    if accelerator == "auto":
        return "cpu", problem
    import torch

    if accelerator in ("gpu", "mps") and torch.backends.mps.is_available():
        return "mps", "Apple's GPU (MPS) is untried; trainer.accelerator=cpu is tested"
    raise InputError(f"trainer.accelerator={accelerator}: {problem or 'this machine has none'}")


def choose_devices(devices: int | str | list[int], device: str, present: int) -> int | list[int]:
    """Return the number or the indices of the devices that a run uses on this machine, which has `present` GPUs.

    `auto` is one device, unless torchrun or srun has started a process for each of several. Other
    values then agree with the launcher, because `check_launch` has refused those that do not.
    """
    launched = ranks.launched()  # (ranks on this machine, machines), or None
    if isinstance(devices, list):
        if device == "cpu":
            raise InputError(
                f"trainer.devices={spell(devices)}: a list is for GPUs; set a number for CPUs"
            )
        if device == "cuda" and max(devices) >= present:
            raise InputError(
                f"trainer.devices={spell(devices)}: this machine has {count(present, 'GPU')}, from 0 on"
            )
        return devices
    num_devices = launched[0] if launched else number_of(devices)
    if device == "cuda" and num_devices > present:
        what = (
            f"torchrun or srun started {num_devices} ranks here"
            if launched
            else f"trainer.devices={num_devices}"
        )
        raise InputError(f"{what}: this machine has {count(present, 'GPU')}")
    return num_devices


def find_machine(config: Config, import_seconds: float) -> Machine:
    """Return the devices that the run uses, and make this process use its own GPU."""
    accelerator = config.trainer.accelerator
    gpus = visible_gpus()
    device, note = choose_accelerator(accelerator, len(gpus))
    local = choose_devices(config.trainer.devices, device, len(gpus))
    launched = ranks.launched()  # (ranks on this machine, machines), or None
    nodes = launched[1] if launched else 1
    gpu = None
    if device == "cuda":
        import torch

        index = local[ranks.local_rank()] if isinstance(local, list) else ranks.local_rank()
        gpu = gpus[index]
        # before anything asks for memory: each context on GPU 0 costs 0.5 GB there
        torch.cuda.set_device(index)
        note = why_unusable()
        if note and accelerator != "auto":
            raise InputError(f"trainer.accelerator={accelerator}: {note}")
        if note:
            gpu, gpus, device = None, [], "cpu"
            local = choose_devices(config.trainer.devices, device, 0)
    return Machine(device, local, nodes, gpu, len(gpus), note, import_seconds)
