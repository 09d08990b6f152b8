"""Start a process (rank) on each device of a run, and check that all ranks start alike."""

import logging
import os
import platform
import sys
from typing import Any

from base import ranks
from base.errors import InputError
from base.jobs import slurm
from base.jobs.run_directory import RUNS, Run
from base.log import log
from base.options import spell
from base.progress import Progress
from conf.schema import Config
from training.errors import resume_hint
from training.machine import choose_accelerator, choose_devices, number_of, visible_gpus

SAVE_SECONDS = 120  # seconds for the ranks to save and end after a signal, before they are killed


def check_launch(config: Config) -> int:
    """Check the numbers of devices and machines, and return how many processes (ranks) this one must start.

    It is 0 if this process trains, alone or as a rank that a launcher such as torchrun has started.
    """
    trainer = config.trainer
    devices = number_of(trainer.devices)
    launched = ranks.launched()
    if launched:
        ranks_here, machines = launched
        is_equal = trainer.devices == "auto" or devices == ranks_here
        if not is_equal or trainer.num_nodes not in ("auto", machines):
            raise InputError(
                f"trainer.devices={spell(trainer.devices)}, trainer.num_nodes={trainer.num_nodes}: torchrun or srun "
                f"started {ranks_here} ranks on each of {machines} machines; leave these keys out"
            )
        devices = ranks_here * machines
    elif trainer.num_nodes not in ("auto", 1):
        raise InputError(
            f"trainer.num_nodes={trainer.num_nodes}: start the program on every machine, with "
            "torchrun or srun (docs/cluster.md)"
        )
    if devices > 1 and config.minutes is not None and trainer.max_steps == "auto":
        raise InputError(
            f"minutes={config.minutes:g}: needs one device; use trainer.devices=1, or "
            "trainer.max_steps=N instead of minutes"
        )
    is_to_launch = devices > 1 and not launched
    # Otherwise `find_machine` checks them later, because looking loads PyTorch, which takes seconds.
    if is_to_launch or trainer.accelerator not in ("auto", "cpu"):
        with Progress("loading PyTorch", patience=0):
            gpus = len(visible_gpus())
        device, _ = choose_accelerator(trainer.accelerator, gpus)  # raises if there is none
        choose_devices(trainer.devices, device, gpus)  # raises if there are fewer
    config.data.rows(devices)  # raises if the batch cannot be shared out
    return devices if is_to_launch else 0


def check_same_start(start: dict[str, Any]) -> None:
    """Raise an `InputError` in every process (rank) if `start` differs between two of them."""
    from torch import distributed

    everyone: list[Any] = [None] * distributed.get_world_size()  # (machine, start) by rank
    distributed.all_gather_object(everyone, (platform.node(), start))
    (first, expected), *others = everyone
    for rank, (machine, reported) in enumerate(others, start=1):
        for name, value in expected.items():
            other = reported.get(name)
            # With unequal GPUs, Muon would move the weights of the ranks apart, and only those of
            # rank 0 are saved.
            is_cpu = name == "device" and not str(value).startswith("cuda")
            if other != value and name != "threads" and not is_cpu:
                raise InputError(
                    f"{name}: rank {rank} on {machine} has {spell(other)}, rank 0 on {first} has {spell(value)}: "
                    f"all machines must see the same text and the same {RUNS}/, and have equal GPUs"
                )


def launch(devices: int, run: Run, naming: list[str]) -> int:
    """Run this command in one process (rank) per device, wait for the processes, and return the exit status.

    `naming` are arguments that name the run, added to the command so that all ranks train the same
    run.
    """
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    # the ranks and the line below say why
    elastic = logging.getLogger("torch.distributed.elastic")
    elastic.addHandler(logging.NullHandler())
    elastic.propagate = False
    os.environ |= ranks.child_environment()
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=devices,
        run_id="none",  # the name of no job
        rdzv_backend="c10d",
        rdzv_endpoint="127.0.0.1:0",
        local_addr="127.0.0.1",
        max_restarts=0,
        signals_to_handle=",".join(["SIGQUIT", *(stop.name for stop in slurm.stops())]),
        shutdown_timeout=SAVE_SECONDS,
    )
    try:
        elastic_launch(config, sys.executable)(*sys.argv, *naming)
    except SignalException as stop:
        return 128 + stop.sigval
    except ChildFailedError as error:
        # the rank that failed first, because the others end when they miss it
        rank, failure = error.get_first_failure()
        if failure.exitcode > 0:
            return failure.exitcode
        # any other rank that is killed leaves rank 0, which prints the hint itself
        advice = f"; {resume_hint(run)}" if rank == 0 else ""
        log.error(f"train.py: rank {rank} was killed by {failure.signal_name()}{advice}")
        return 1
    return 0
