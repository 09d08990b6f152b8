"""Find the devices of this machine, and decide which of them a run uses. Loads torch only when it looks for them."""

import os
import shutil
import subprocess
from dataclasses import dataclass

from base import ranks
from base.errors import InputError
from base.options import spell
from base.progress import count
from conf.schema import Config

PAGE = "docs/cluster.md says what to install"
# The oldest driver for a version of CUDA. Source: NVIDIA's CUDA toolkit release notes, table
# "minor version compatibility".
OLDEST_DRIVER = {"12": 525, "13": 580}
# the compute capability from which a GPU multiplies in bf16; torch emulates it below
BF16_FROM = (8, 0)


@dataclass(frozen=True)
class Gpu:
    """What CUDA says about a GPU."""

    name: str  # such as Tesla T4
    capability: tuple[int, int]  # its compute capability, such as (7, 5)

    @property
    def has_bf16(self) -> bool:
        return self.capability >= BF16_FROM


@dataclass(frozen=True)
class Hardware:
    """What PyTorch and the system say about the accelerators of this machine."""

    gpus: tuple[Gpu, ...] = ()  # those that CUDA sees
    # for which this build of PyTorch has kernels, such as sm_80
    architectures: tuple[str, ...] = ()
    pytorch: str = ""  # version of PyTorch, such as 2.13.0+cpu
    cuda: str | None = None  # version of CUDA with which PyTorch was built
    # version of the NVIDIA driver, if CUDA sees no GPU although one is there
    driver: str | None = None
    has_mps: bool = False  # whether this is a Mac with Apple's GPU


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


def look() -> Hardware:
    """Return what this machine has. It is torch that looks, so the first call loads it."""
    import torch

    num_gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    names = [torch.cuda.get_device_name(index) for index in range(num_gpus)]
    capabilities = [torch.cuda.get_device_capability(index) for index in range(num_gpus)]
    return Hardware(
        gpus=tuple(map(Gpu, names, capabilities)),
        architectures=tuple(torch.cuda.get_arch_list()) if num_gpus else (),
        pytorch=torch.__version__,
        cuda=torch.version.cuda,
        driver=None if num_gpus else nvidia_driver(),
        has_mps=torch.backends.mps.is_available(),
    )


def nvidia_driver() -> str | None:
    """Return the version of the NVIDIA driver, or None if no NVIDIA GPU is there or all are hidden on purpose."""
    if os.environ.get("CUDA_VISIBLE_DEVICES") in ("", "-1") or not shutil.which("nvidia-smi"):
        return None
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        answer = subprocess.run(
            command, capture_output=True, text=True, check=True, timeout=20
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return None
    version = answer.partition("\n")[0].strip()
    return version if version[:1].isdecimal() else None  # it may be a message instead


def has_kernels(capability: tuple[int, int], architectures: tuple[str, ...]) -> bool:
    """Return whether a GPU runs one of the kernels of a build of PyTorch.

    Machine code (`sm_80`) runs on GPUs of the same major version, PTX (`compute_80`) on all later
    ones.
    """
    versions = _versions(architectures)
    if not versions:
        return True  # AMD's GPUs have other names
    for kind, major, minor in versions:
        if kind == "sm" and major == capability[0] and minor <= capability[1]:
            return True
        if kind == "compute" and (major, minor) <= capability:
            return True
    return False


def _versions(architectures: tuple[str, ...]) -> list[tuple[str, int, int]]:
    versions = []
    for architecture in architectures:
        # sm_90a -> ("sm", 9, 0)
        kind, _, digits = architecture.rstrip("af").partition("_")
        if kind in ("sm", "compute") and digits.isdecimal():
            versions.append((kind, int(digits) // 10, int(digits) % 10))
    return versions


def why_unusable(hardware: Hardware) -> str:
    """Return a line about a GPU that this PyTorch cannot use, or "" if there is none."""
    if hardware.gpus:
        gpu = hardware.gpus[0]
        if has_kernels(gpu.capability, hardware.architectures):
            return ""
        major, minor = gpu.capability
        versions = sorted((major, minor) for _, major, minor in _versions(hardware.architectures))
        low, low_minor = versions[0]
        high, high_minor = versions[-1]
        kernels = (
            f"PyTorch {hardware.pytorch} has kernels for {low}.{low_minor} to {high}.{high_minor}"
        )
        return f"{gpu.name} has compute capability {major}.{minor}, but {kernels}; {PAGE}"
    if hardware.driver is None:
        return ""
    if hardware.cuda is None:
        there = f"there is a GPU of NVIDIA (driver {hardware.driver})"
        return f"{there}, but PyTorch {hardware.pytorch} was built without CUDA; {PAGE}"
    built = f"PyTorch {hardware.pytorch}, which was built for CUDA {hardware.cuda}"
    oldest = OLDEST_DRIVER.get(hardware.cuda.partition(".")[0], 0)
    if int(hardware.driver.partition(".")[0]) < oldest:
        return (
            f"NVIDIA's driver {hardware.driver} is too old for {built} and needs {oldest}; {PAGE}"
        )
    return f"CUDA does not start with NVIDIA's driver {hardware.driver} and {built}; {PAGE}"


def choose_accelerator(accelerator: str, hardware: Hardware) -> tuple[str, str]:
    """Return the kind of device that `trainer.accelerator` selects (cuda, mps or cpu), and a note about it."""
    problem = why_unusable(hardware)
    has_cuda = bool(hardware.gpus) and not problem
    untried = "Apple's GPU (MPS) is untried; trainer.accelerator=cpu is tested"
    if accelerator == "auto":
        return ("cuda", "") if has_cuda else ("cpu", problem)
    if accelerator == "cpu":
        return "cpu", ""
    if accelerator in ("gpu", "cuda") and has_cuda:
        return "cuda", ""
    if accelerator in ("gpu", "mps") and hardware.has_mps:
        return "mps", untried
    present = ["cuda"] * has_cuda + ["mps"] * hardware.has_mps + ["cpu"]
    reason = problem or f"this machine has only {', '.join(present)}"
    raise InputError(f"trainer.accelerator={accelerator}: {reason}")


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
    hardware = look()
    device, note = choose_accelerator(config.trainer.accelerator, hardware)
    local = choose_devices(config.trainer.devices, device, len(hardware.gpus))
    launched = ranks.launched()  # (ranks on this machine, machines), or None
    nodes = launched[1] if launched else 1
    gpu = None
    if device == "cuda":
        import torch

        index = local[ranks.local_rank()] if isinstance(local, list) else ranks.local_rank()
        gpu = hardware.gpus[index]
        # before anything asks for memory: each context on GPU 0 costs 0.5 GB there
        torch.cuda.set_device(index)
    return Machine(device, local, nodes, gpu, len(hardware.gpus), note, import_seconds)


def describe(machine: Machine, config: Config) -> str:
    """Return the kind of device for the log, and the setting that would use all GPUs, if the run accepts it."""
    if machine.device != "cuda" or machine.gpus == 1:
        return machine.device
    used = f"{number_of(machine.local)} of {machine.gpus} GPUs"
    can_share = config.data.batch % (machine.gpus * (config.data.micro_batch or 1)) == 0
    is_free = config.trainer.devices == "auto" and config.minutes is None and not ranks.launched()
    if is_free and can_share:
        used += f"; trainer.devices={machine.gpus} uses all"
    return f"cuda ({used})"
