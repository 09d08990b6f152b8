"""Read ranks and numbers of processes from environment variables, and set up a process. Imports nothing heavy.

torchrun or SLURM's srun starts all processes of a run. Without them Lightning's rank 0 starts one process for each
further device of this machine. docs/architecture.md lists our own environment variables.
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

# Rounds that an OpenMP thread spins at a barrier before it sleeps. A spinning thread can occupy the core that the last
# thread needs. Beside one busy process, training keeps 6 to 30 % of its speed with GNU's default of 300,000 rounds,
# 35 % with 3,000 and 50 % with 1,000. But 1,000 rounds cost 4 to 17 % on a quiet machine (docs/experiments.md).
SPINS = 3000


class JobError(InputError):
    """Wrong environment variables of torchrun or srun. Every process reports this error, not rank 0 alone."""


def adopt_srun() -> None:
    """Set torchrun's environment variables in a task of srun: torch, Lightning and this module read them."""
    launched(), rank()  # check torchrun's own variables
    if "SLURM_STEP_ID" not in os.environ or "RANK" in os.environ or _number("SLURM_STEP_NUM_TASKS") == 1:
        return  # not started by srun, or a single task
    tasks, machines = _number("SLURM_STEP_NUM_TASKS"), _number("SLURM_STEP_NUM_NODES")
    layout = os.environ.get("SLURM_STEP_TASKS_PER_NODE", "")
    if tasks % machines or "," in layout:
        raise JobError(f"srun: {tasks} tasks on {machines} machines ({layout}): give every machine the same number")
    # Such as node5 of node[5-7,9],other1.
    first = re.sub(r"\[([^],-]*)[^]]*\]", r"\1", os.environ["SLURM_STEP_NODELIST"]).partition(",")[0]
    # The same for all tasks of a step, different for the next step.
    port = 15_000 + (_number("SLURM_JOB_ID") * 16 + _number("SLURM_STEP_ID")) % 10_000
    os.environ |= {
        "RANK": str(_number("SLURM_PROCID")),
        "LOCAL_RANK": str(_number("SLURM_LOCALID")),
        "GROUP_RANK": str(_number("SLURM_NODEID")),
        "WORLD_SIZE": str(tasks),
        "LOCAL_WORLD_SIZE": str(tasks // machines),
        "MASTER_ADDR": os.environ.get("MASTER_ADDR", first),
        "MASTER_PORT": os.environ.get("MASTER_PORT", str(port)),
    }


def command(program: str) -> str:
    """Return the command for a program of this environment: `.venv/bin/python`, or `python` without a `.venv`."""
    local = Path(".venv") / ("Scripts" if sys.platform == "win32" else "bin") / program
    return str(local) if local.exists() and Path(sys.prefix) == local.parent.parent.absolute() else program


def launched() -> tuple[int, int] | None:
    """Return (processes per machine, machines) if torchrun or srun started this process, else None."""
    if "RANK" not in os.environ:
        return None
    per_machine = max(1, _number("LOCAL_WORLD_SIZE"))
    return per_machine, _number("WORLD_SIZE") // per_machine


def rank() -> int:
    """Return the global rank of this process."""
    return _number("RANK" if "RANK" in os.environ else "LOCAL_RANK", otherwise="0")


def is_local_rank_0() -> bool:
    """Whether this process is the first of its run on this machine."""
    return _number("LOCAL_RANK", otherwise="0") == 0


def _number(variable: str, otherwise: str = "1") -> int:
    """Read an environment variable; raise `JobError` unless it is a whole number."""
    value = os.environ.get(variable, otherwise)
    if not value.isdecimal():
        raise JobError(f"{variable}={value}: this environment variable must be a whole number")
    return int(value)


def set_parent() -> None:
    """Set CHARGPT_PARENT, so that the ranks that Lightning starts know that this process is their parent."""
    os.environ["CHARGPT_PARENT"] = str(os.getpid())


def end_with(parent: int) -> None:
    """On Linux, make the kernel kill this process when the process `parent` ends."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)  # PR_SET_PDEATHSIG
        if os.getppid() != parent:
            os._exit(1)


def unset_parent() -> None:
    """Unset CHARGPT_PARENT so that later children are not taken for ranks of this run."""
    if os.environ.get("CHARGPT_PARENT") == str(os.getpid()):
        del os.environ["CHARGPT_PARENT"]


def started_by_another_rank() -> bool:
    """Whether rank 0 started this process, rather than torchrun, SLURM or the user."""
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
    """Let waiting OpenMP threads sleep sooner, in this process and its children. Call this before torch is loaded.

    Do nothing if the user has set an environment variable for it, or if torch does not use GNU's OpenMP.
    """
    if sys.platform == "linux" and "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", str(SPINS))


def keep_freed_memory() -> None:
    """Make glibc keep freed memory for the next batch.

    By default glibc returns large blocks to the system, which zeroes each page when it is allocated again
    (docs/experiments.md has the cost).
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt:
        trim_threshold, mmap_threshold = -1, -3  # M_TRIM_THRESHOLD and M_MMAP_THRESHOLD of malloc.h
        mallopt(trim_threshold, 2**30)
        mallopt(mmap_threshold, 2**30) or mallopt(mmap_threshold, 2**25)  # 2**25 is the maximum of old versions


def init_worker() -> None:
    """Set up a worker of multiprocessing: ignore Ctrl-C, and exit when the parent process ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    assert parent is not None

    def follow() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=follow, daemon=True).start()
