"""Start a process (rank) on each device of a run, and check that all ranks start alike."""

import logging
import os
import platform
import signal
import sys
from typing import Any, cast

from base import ranks
from base.errors import InputError
from base.jobs.run_directory import RUNS, Run
from base.log import log
from base.options import spell
from conf.schema import Config
from training.errors import resume_hint
from training.machine import choose_accelerator, choose_devices, look, number_of

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
        if trainer.devices != "auto" and devices != ranks_here:
            raise _set_by_launcher("devices", trainer.devices, f"{ranks_here} ranks per machine")
        if trainer.num_nodes not in ("auto", machines):
            raise _set_by_launcher("num_nodes", trainer.num_nodes, f"{machines} machines")
        devices = ranks_here * machines
    elif trainer.num_nodes not in ("auto", 1):
        hint = "start the program on every machine, with torchrun or srun (docs/cluster.md)"
        raise InputError(f"trainer.num_nodes={trainer.num_nodes}: {hint}")
    if devices > 1 and config.minutes is not None and trainer.max_steps == "auto":
        way = "use trainer.devices=1, or trainer.max_steps=N instead of minutes"
        raise InputError(f"minutes={config.minutes:g}: needs one device; {way}")
    is_to_launch = devices > 1 and not launched
    # Otherwise `find_machine` checks them later, because `look` loads PyTorch, which takes seconds.
    if is_to_launch or trainer.accelerator not in ("auto", "cpu"):
        hardware = look()
        device, _ = choose_accelerator(trainer.accelerator, hardware)  # raises if there is none
        choose_devices(trainer.devices, device, len(hardware.gpus))  # raises if there are fewer
    config.data.rows(devices)  # raises if the batch cannot be shared out
    return devices if is_to_launch else 0


def _set_by_launcher(key: str, value: Any, what: str) -> InputError:
    return InputError(
        f"trainer.{key}={spell(value)}: torchrun or srun started {what}; leave this key out"
    )


def check_same_start(start: dict[str, Any]) -> None:
    """Raise an `InputError` in every process (rank) if `start` differs between two of them."""
    from torch import distributed

    everyone: list[Any] = [None] * distributed.get_world_size()  # (machine, start) by rank
    distributed.all_gather_object(everyone, (platform.node(), start))
    (first, expected), *others = everyone
    for rank, (machine, reported) in enumerate(others, start=1):
        for name, value in expected.items():
            if reported.get(name) == value or _may_differ(name, value):
                continue
            same = (
                "use equal GPUs" if name == "device" else f"see the same text and the same {RUNS}/"
            )
            raise InputError(
                f"{name}: rank {rank} on {machine} has {spell(reported.get(name))}, rank 0 on {first} has "
                f"{spell(value)}: all machines must {same}"
            )


def _may_differ(name: str, value: Any) -> bool:
    # With unequal GPUs, Muon would move the weights of the ranks apart, and only those of rank 0
    # are saved.
    return name == "threads" or (name == "device" and not str(value).startswith("cuda"))


def launch(devices: int, settled: list[str], run: Run) -> int:
    """Run this command in one process (rank) per device, wait for the processes, and return the exit status.

    `settled` are arguments that name the run, added to the command so that all ranks train the
    same run.
    """
    from torch.distributed import TCPStore
    from torch.distributed.elastic.multiprocessing import (
        DefaultLogsSpecs,
        SignalException,
        start_processes,
    )
    from torch.distributed.elastic.multiprocessing.api import SubprocessContext

    # the ranks and the line below say why
    logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)
    os.environ.setdefault(
        "TORCHELASTIC_SIGNALS_TO_HANDLE", "SIGINT,SIGTERM,SIGHUP,SIGQUIT,SIGUSR1"
    )
    # This process serves the ranks, as torchrun does, so that nobody can take the port before rank
    # 0 listens there.
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    address = {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(store.port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
    }
    size = {"WORLD_SIZE": str(devices), "LOCAL_WORLD_SIZE": str(devices), "GROUP_RANK": "0"}
    shared = ranks.child_environment() | address | size
    variables = {
        rank: shared | {"RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(devices)
    }
    command = (sys.argv[0], *sys.argv[1:], *settled)
    commands = dict.fromkeys(variables, command)  # by rank, like `variables`
    specs = DefaultLogsSpecs(log_dir=os.devnull)
    started = None
    try:
        started = start_processes("train.py", sys.executable, commands, variables, specs)
        result = started.wait(period=0.1)
    except SignalException as stop:
        if started is None:  # ranks that have been started end, because they miss the store
            raise SystemExit(128 + stop.sigval) from None
        try:
            started.close(stop.sigval, SAVE_SECONDS)
        except SignalException:  # a second one: end at once
            started.close(getattr(signal, "SIGKILL", signal.SIGTERM))  # Windows has no SIGKILL
        # The status of rank 0, which saves, is that of the command.
        status = cast(SubprocessContext, started).subprocess_handlers[0].proc.returncode
        if status is None or status < 0:
            status = 128 + stop.sigval
        raise SystemExit(status) from None
    if not result or not result.failures:
        return 0
    # the rank that failed first, because the others end when they miss it
    failure = min(result.failures.values(), key=lambda failure: failure.timestamp)
    if failure.exitcode < 0:
        # any other rank that is killed leaves rank 0, which prints the hint itself
        advice = f"; {resume_hint(run)}" if failure.local_rank == 0 else ""
        name = signal.Signals(-failure.exitcode).name
        log.error(f"train.py: rank {failure.local_rank} was killed by {name}{advice}")
        return 1
    return failure.exitcode
