"""The processes of one run, as environment variables describe them. Imports nothing heavy.

torchrun or SLURM's srun starts all of them; otherwise Lightning starts, from rank 0, one for each further device of
this machine.

Our environment variables, each set by a process for the processes that it starts: CHARGPT_PARENT (process id of rank
0), CHARGPT_RUN (generated name of the run), CHARGPT_RESUMED (run that resume=auto found), CHARGPT_SWEEP (process id of
the sweep of this trial), CHARGPT_TRIAL (number of this trial in its search).
"""

import ctypes
import multiprocessing
import os
import re
import signal
import sys
import threading
from pathlib import Path

from base.errors import InputError

# Rounds that a thread spins at a barrier before it sleeps. GNU's default, 300,000, takes the core from the thread that
# is waited for as soon as anything else runs: beside one busy process training keeps 0.06 to 0.30 of its speed, with
# 3,000 rounds 0.35. With 1,000 it keeps 0.5, but alone it loses 4 to 17 % (docs/experiments.md).
SPINS = 3000


class JobError(InputError):
    """Wrong environment variables of torchrun or srun; every process reports them."""


def adopt_srun() -> None:
    """Set torchrun's environment variables in a task of srun, for torch, Lightning and this module.

    Raises:
        JobError: the machines have different numbers of tasks, or a variable is not a number.
    """
    launched(), rank()  # check torchrun's own variables
    if "SLURM_STEP_ID" not in os.environ or "RANK" in os.environ or _number("SLURM_STEP_NUM_TASKS") == 1:
        return  # not started by srun, or a single task
    tasks, machines = _number("SLURM_STEP_NUM_TASKS"), _number("SLURM_STEP_NUM_NODES")
    layout = os.environ.get("SLURM_STEP_TASKS_PER_NODE", "")
    if tasks % machines or "," in layout:
        raise JobError(f"srun: {tasks} tasks on {machines} machines ({layout}): give every machine the same number")
    # The first host of node[5-7,9],other1 is node5.
    first = re.sub(r"\[([^],-]*)[^]]*\]", r"\1", os.environ["SLURM_STEP_NODELIST"]).partition(",")[0]
    os.environ |= {
        "RANK": str(_number("SLURM_PROCID")),
        "LOCAL_RANK": str(_number("SLURM_LOCALID")),
        "GROUP_RANK": str(_number("SLURM_NODEID")),
        "WORLD_SIZE": str(tasks),
        "LOCAL_WORLD_SIZE": str(tasks // machines),
        "MASTER_ADDR": os.environ.get("MASTER_ADDR", first),
        # The same for all tasks of a step, different for the next step.
        "MASTER_PORT": os.environ.get(
            "MASTER_PORT", str(15_000 + (_number("SLURM_JOB_ID") * 16 + _number("SLURM_STEP_ID")) % 10_000)
        ),
    }


def here(program: str) -> str:
    """Return a program of this Python's environment, such as `python`, as one would type it here."""
    local = Path(".venv") / ("Scripts" if sys.platform == "win32" else "bin") / program
    return str(local) if local.exists() and Path(sys.prefix) == local.parent.parent.absolute() else program


def launched() -> tuple[int, int] | None:
    """Return (processes per machine, machines) as started by torchrun or srun; None if neither has."""
    if "RANK" not in os.environ:
        return None
    here = max(1, _number("LOCAL_WORLD_SIZE"))
    return here, _number("WORLD_SIZE") // here


def rank() -> int:
    """Return the global rank of this process."""
    return _number("RANK" if "RANK" in os.environ else "LOCAL_RANK", otherwise="0")


def first_here() -> bool:
    """Whether this process has local rank 0."""
    return _number("LOCAL_RANK", otherwise="0") == 0


def _number(variable: str, otherwise: str = "1") -> int:
    """Read an environment variable; raise `JobError` unless it is a whole number."""
    value = os.environ.get(variable, otherwise)
    if not value.isdecimal():
        raise JobError(f"{variable}={value}: this environment variable must be a whole number")
    return int(value)


def adopt() -> None:
    """Set CHARGPT_PARENT, by which the ranks that Lightning starts know that this process started them."""
    os.environ["CHARGPT_PARENT"] = str(os.getpid())


def end_with(parent: int) -> None:
    """On Linux, have the kernel kill this process when `parent` ends, even if this process hangs."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)  # PR_SET_PDEATHSIG
        if os.getppid() != parent:
            os._exit(1)


def disown() -> None:
    """Unset CHARGPT_PARENT so that later children are not taken for ranks of this run."""
    if os.environ.get("CHARGPT_PARENT") == str(os.getpid()):
        del os.environ["CHARGPT_PARENT"]


def started_by_another_rank() -> bool:
    """Whether rank 0 started this process, not torchrun or SLURM, which end their processes themselves."""
    return os.environ.get("CHARGPT_PARENT") == str(os.getppid())


def restarted() -> bool:
    """Whether SLURM has requeued this job or torchrun has restarted its processes."""
    return any(_number(name, "0") for name in ("SLURM_RESTART_COUNT", "TORCHELASTIC_RESTART_COUNT"))


def identity() -> str | None:
    """Return the job's id, the same in all its processes and after a restart; None without SLURM or torchrun."""
    names = (os.environ.get(name, "none") for name in ("SLURM_JOB_ID", "TORCHELASTIC_RUN_ID"))
    return next((name for name in names if name != "none"), None)


def cores() -> int:
    """Return the number of threads to compute with: OMP_NUM_THREADS, or the CPUs this process may use."""
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return int(os.environ.get("OMP_NUM_THREADS") or usable)


def limit_spinning() -> None:
    """Have idle OpenMP threads sleep sooner, in this process and its children; call before torch is loaded.

    Nothing is done where the user has chosen, and on systems whose torch has another OpenMP than GNU's.
    """
    if sys.platform == "linux" and "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", str(SPINS))


def keep_freed_memory() -> None:
    """Have glibc keep the memory that a batch frees for the next batch.

    By default it returns large blocks to the system, which zeroes each page when they are allocated again
    (docs/experiments.md has the cost). Nothing is done without glibc.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt:
        trim_threshold, mmap_threshold = -1, -3  # M_TRIM_THRESHOLD and M_MMAP_THRESHOLD of malloc.h
        mallopt(trim_threshold, 2**30)
        mallopt(mmap_threshold, 2**30) or mallopt(mmap_threshold, 2**25)  # limit of old versions


def end_with_parent() -> None:
    """Ignore Ctrl-C and exit when the parent process ends; for worker processes of multiprocessing."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    assert parent is not None

    def follow() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=follow, daemon=True).start()
