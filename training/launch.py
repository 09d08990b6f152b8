"""Find the devices of a run, start a process (rank) on each, and divide the batch among them."""

import logging
import os
import platform
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, cast

from base import ranks
from base.errors import InputError
from base.jobs.run_directory import RUNS
from base.log import log
from base.options import spell
from conf.schema import Config

PER_MACHINE = {"device", "threads"}  # the conditions that may differ between machines
SAVE_SECONDS = 120  # seconds for the ranks to save and end after a signal, before they are killed


def share_out(config: Config) -> Config:
    """Check the numbers of devices and machines in the configuration, and return the configuration."""
    trainer, launched = config.trainer, ranks.launched()
    if trainer.accelerator not in ("auto", "cpu"):
        device_kind(config)  # report a missing device before processes are started
    if launched:
        for key, found, what in zip(("devices", "num_nodes"), launched, ("ranks per machine", "machines"), strict=True):
            given = getattr(trainer, key)
            if given not in ("auto", found) and not (isinstance(given, list) and len(given) == found):
                started = f"torchrun or srun started {found} {what}"
                raise InputError(f"trainer.{key}={spell(given)}: {started}; leave this key out")
        listed = isinstance(trainer.devices, list)
        trainer = replace(trainer, devices=trainer.devices if listed else launched[0], num_nodes=launched[1])
        config = replace(config, trainer=trainer)
    elif trainer.num_nodes not in ("auto", 1):
        hint = "start the program on every machine, with torchrun or srun (docs/cluster.md)"
        raise InputError(f"trainer.num_nodes={trainer.num_nodes}: {hint}")
    if isinstance(trainer.devices, int):  # otherwise checked once torch is loaded and has counted the devices
        config.data.rows(trainer.devices * (launched[1] if launched else 1))
    return config


def device_kind(config: Config) -> str:
    """Return the kind of device that `trainer.accelerator` selects on this machine: `cuda`, `mps` or `cpu`."""
    import torch  # loading it takes a second

    present = ["cuda"] * torch.cuda.is_available() + ["mps"] * torch.backends.mps.is_available() + ["cpu"]
    if config.trainer.accelerator == "auto" or (config.trainer.accelerator == "gpu" and present[0] != "cpu"):
        return present[0]
    if config.trainer.accelerator not in present:
        only = ", ".join(present)
        raise InputError(f"trainer.accelerator={config.trainer.accelerator}: this machine has only {only}")
    return config.trainer.accelerator


def count_devices(config: Config) -> int:
    """Return the number of devices that the run uses on this machine."""
    devices = config.trainer.devices
    if devices != "auto":
        return len(devices) if isinstance(devices, list) else devices
    import torch

    return torch.cuda.device_count() if device_kind(config) == "cuda" else 1


@dataclass(frozen=True)
class Machine:
    """The devices that a run uses."""

    device: str  # the kind of the devices: cuda, mps or cpu
    devices: int  # the number of devices, over all machines


def find_machine(config: Config) -> Machine:
    """Return the kind and the number of the devices that the run uses."""
    trainer, device = config.trainer, device_kind(config)
    if device == "cpu" and isinstance(trainer.devices, list):
        raise InputError(f"trainer.devices={spell(trainer.devices)}: a list is for GPUs; set a number for CPUs")
    devices = count_devices(config) * (1 if trainer.num_nodes == "auto" else trainer.num_nodes)
    config.data.rows(devices)
    return Machine(device, devices)


def check_same_start(start: dict[str, Any]) -> None:
    """Raise an `InputError` in every process (rank) if `start` differs between two of them."""
    from torch import distributed

    everyone: list[Any] = [None] * distributed.get_world_size()  # (machine, start) by rank
    distributed.all_gather_object(everyone, (platform.node(), start))
    (first, wanted), *others = everyone
    for rank, (machine, found) in enumerate(others, start=1):
        for name in wanted.keys() - PER_MACHINE:
            if found.get(name) != wanted[name]:
                raise InputError(
                    f"{name}: rank {rank} on {machine} has {spell(found.get(name))}, rank 0 on {first} has "
                    f"{spell(wanted[name])}: all machines must see the same text and the same {RUNS}/"
                )


def launch(devices: int, settled: list[str], resume_hint: Callable[[], str]) -> int:
    """Run this command in one process (rank) per device, wait for the processes, and return the exit status."""
    from torch.distributed import TCPStore
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException, start_processes
    from torch.distributed.elastic.multiprocessing.api import SubprocessContext

    logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)  # the ranks and the line below say why
    os.environ.setdefault("TORCHELASTIC_SIGNALS_TO_HANDLE", "SIGINT,SIGTERM,SIGHUP,SIGQUIT,SIGUSR1")
    # This process serves the ranks, as torchrun does, so that nobody can take the port before rank 0 listens there.
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(store.port), "TORCHELASTIC_USE_AGENT_STORE": "True"}
    size = {"WORLD_SIZE": str(devices), "LOCAL_WORLD_SIZE": str(devices), "GROUP_RANK": "0"}
    shared = ranks.child_environment() | address | size
    variables = {rank: shared | {"RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(devices)}
    command = (sys.argv[0], *sys.argv[1:], *settled)
    specs = DefaultLogsSpecs(log_dir=os.devnull)
    try:
        started = start_processes("train.py", sys.executable, dict.fromkeys(variables, command), variables, specs)
        result = started.wait(period=0.1)
    except SignalException as stop:
        try:
            started.close(stop.sigval, SAVE_SECONDS)
        except SignalException:  # a second one: end at once
            started.close(signal.SIGKILL)
        first = cast(SubprocessContext, started).subprocess_handlers[0].proc.returncode
        raise SystemExit(first if first is not None and first >= 0 else 128 + stop.sigval) from None
    if not result or not result.failures:
        return 0
    failure = min(result.failures.values(), key=lambda each: each.timestamp)
    if failure.exitcode < 0:
        advice = f"; {resume_hint()}" if failure.local_rank == 0 else ""
        name = signal.Signals(-failure.exitcode).name
        log.error(f"train.py: rank {failure.local_rank} was killed by {name}{advice}")
        return 1
    return failure.exitcode
