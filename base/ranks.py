"""The rank of this process and the number of processes, from the variables of the launcher; loads no torch."""

import ctypes
import os
import re
import signal
import sys

from base.errors import InputError


class JobError(InputError):
    """Invalid environment variables of torchrun or srun. Every process reports this error, not only rank 0."""


def adopt_srun() -> None:
    """If srun started this process, set torchrun's environment variables, which torch and Lightning read, too."""
    launched(), rank(), local_rank()  # raise unless torchrun's variables are numbers
    needed = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    missing = [name for name in needed if name not in os.environ]
    for present in needed[:2]:
        if missing and present in os.environ:
            without = f"is set without {', '.join(missing)}; unset it, or start with torchrun"
            raise JobError(
                f"{present}={os.environ[present]}: this environment variable of torchrun {without}"
            )
    if (
        "SLURM_STEP_ID" not in os.environ
        or "RANK" in os.environ
        or _number("SLURM_STEP_NUM_TASKS") == 1
    ):
        return  # not started by srun, started by torchrun, or a single task
    tasks = _number("SLURM_STEP_NUM_TASKS")
    machines = _number("SLURM_STEP_NUM_NODES")
    layout = os.environ.get("SLURM_STEP_TASKS_PER_NODE", "")  # such as 2(x3), or 2,1 if unequal
    if "," in layout:
        on = f"{tasks} tasks on {machines} machines ({layout})"
        raise JobError(f"srun: {on}: give every machine the same number of tasks")
    # The first machine in the list: node[5-7,9],other1 -> node5,other1 -> node5.
    nodes = re.sub(r"\[([^],-]*)[^]]*\]", r"\1", os.environ["SLURM_STEP_NODELIST"])
    first = nodes.partition(",")[0]
    # A port that all tasks of a step compute alike, and that differs in the next step.
    port = 15_000 + (_number("SLURM_JOB_ID") * 16 + _number("SLURM_STEP_ID")) % 10_000
    os.environ |= {
        "RANK": os.environ["SLURM_PROCID"],
        "LOCAL_RANK": os.environ["SLURM_LOCALID"],
        "GROUP_RANK": os.environ["SLURM_NODEID"],
        "WORLD_SIZE": str(tasks),
        "LOCAL_WORLD_SIZE": str(tasks // machines),
    }
    os.environ.setdefault("MASTER_ADDR", first)
    os.environ.setdefault("MASTER_PORT", str(port))


def launched() -> tuple[int, int] | None:
    """Return (processes per machine, number of machines) if torchrun or srun started this process, otherwise None."""
    if "RANK" not in os.environ:
        return None
    per_machine = max(1, _number("LOCAL_WORLD_SIZE"))
    return per_machine, _number("WORLD_SIZE") // per_machine


def rank() -> int:
    return _number("RANK", otherwise="0")


def local_rank() -> int:
    return _number("LOCAL_RANK", otherwise="0")  # among the processes on this machine


def _number(variable: str, otherwise: str = "1") -> int:
    value = os.environ.get(variable, otherwise)
    if not value.isdecimal():
        raise JobError(f"{variable}={value}: this environment variable must be a whole number")
    return int(value)


def child_environment() -> dict[str, str]:
    # the child ends with this process: `end_with_parent`
    return os.environ | {"CHARGPT_PARENT": str(os.getpid())}


def end_with_parent() -> None:
    """On Linux, let this process end with its parent, if CHARGPT_PARENT contains the parent's process id."""
    parent = os.environ.pop("CHARGPT_PARENT", None)
    if parent and sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)  # PR_SET_PDEATHSIG
        if os.getppid() != int(parent):  # it ended before this call
            os._exit(1)


def restarted() -> bool:
    return (
        _number("SLURM_RESTART_COUNT", "0") > 0 or _number("TORCHELASTIC_RESTART_COUNT", "0") > 0
    )


def identity() -> str | None:
    """Return the id of this job of SLURM or torchrun, if any; a restarted job keeps it."""
    for variable in ("SLURM_JOB_ID", "TORCHELASTIC_RUN_ID"):
        job = os.environ.get(variable, "none")  # torchrun's default id is "none"
        if job != "none":
            return job
    return None
