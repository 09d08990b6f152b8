"""Read ranks and numbers of processes from environment variables, and set up a process. Imports nothing heavy.

torchrun, SLURM's srun or `training.launch` starts all processes of a run.
"""

import ctypes
import math
import os
import re
import shlex
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path

from base.errors import InputError

# Rounds that an OpenMP thread spins at a barrier before it sleeps. A spinning thread can occupy the core that the last
# thread needs. Beside one busy process, training keeps 6 to 30 % of its speed with GNU's default of 300,000 rounds,
# 35 % with 3,000 and 50 % with 1,000. But 1,000 rounds cost 4 to 17 % on a quiet machine (docs/experiments.md).
SPINS = 3000

CGROUP = Path("/sys/fs/cgroup")  # in a container, the limits of the container


class JobError(InputError):
    """Wrong environment variables of torchrun or srun. Every process reports this error, not rank 0 alone."""


def adopt_srun() -> None:
    """Set torchrun's environment variables in a task of srun: torch, Lightning and this module read them."""
    launched(), rank(), is_local_rank_0()  # check torchrun's own variables
    needed = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    if any(name in os.environ for name in needed[:2]) and (missing := [n for n in needed if n not in os.environ]):
        found = next(name for name in needed if name in os.environ)
        without = f"is set without {', '.join(missing)}; unset {found}, or start with torchrun"
        raise JobError(f"{found}={os.environ[found]}: this environment variable of torchrun {without}")
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


def command(program: str, *arguments: object) -> str:
    """Return a command to type for a program of this environment: `.venv/bin/python`, or `python` without a `.venv`."""
    local = Path(".venv") / ("Scripts" if sys.platform == "win32" else "bin") / program
    ours = local.exists() and Path(sys.prefix) == local.parent.parent.absolute()
    return " ".join([str(local) if ours else program, *(shlex.quote(str(each)) for each in arguments)])


def launched() -> tuple[int, int] | None:
    """Return (processes per machine, machines) if torchrun or srun started this process, else None."""
    if "RANK" not in os.environ:
        return None
    per_machine = max(1, _number("LOCAL_WORLD_SIZE"))
    return per_machine, _number("WORLD_SIZE") // per_machine


def rank() -> int:
    """Return the global rank of this process."""
    return _number("RANK", otherwise="0")


def is_local_rank_0() -> bool:
    """Whether this process is the first of its run on this machine."""
    return _number("LOCAL_RANK", otherwise="0") == 0


def _number(variable: str, otherwise: str = "1") -> int:
    """Read an environment variable; raise `JobError` unless it is a whole number."""
    value = os.environ.get(variable, otherwise)
    if not value.isdecimal():
        raise JobError(f"{variable}={value}: this environment variable must be a whole number")
    return int(value)


def child_environment() -> dict[str, str]:
    """Return the environment variables for a `train.py` that this process starts and that must end with it."""
    return os.environ | {"CHARGPT_PARENT": str(os.getpid())}


def end_with_parent() -> None:
    """On Linux, make the kernel kill this process when the process that set CHARGPT_PARENT for it ends."""
    parent = os.environ.pop("CHARGPT_PARENT", None)
    if parent and sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)  # PR_SET_PDEATHSIG
        if os.getppid() != int(parent):
            os._exit(1)


def restarted() -> bool:
    """Whether SLURM has requeued this job or torchrun has restarted its processes."""
    return any(_number(name, "0") for name in ("SLURM_RESTART_COUNT", "TORCHELASTIC_RESTART_COUNT"))


def identity() -> str | None:
    """Return the job's id, the same in all its processes and after a restart; None without SLURM or torchrun."""
    names = (os.environ.get(name, "none") for name in ("SLURM_JOB_ID", "TORCHELASTIC_RUN_ID"))
    return next((name for name in names if name != "none"), None)


def cores() -> int:
    """Return the number of threads to compute with: OMP_NUM_THREADS, or the CPUs this process may use, rounded up.

    Raises:
        InputError: OMP_NUM_THREADS is no list of numbers, one for each level of nesting; the first one counts.
    """
    if given := os.environ.get("OMP_NUM_THREADS", "").strip():
        first = given.partition(",")[0].strip()
        if not first.isdecimal() or not int(first):
            raise InputError(f"OMP_NUM_THREADS={given}: this environment variable must be a whole number, at least 1")
        return int(first)
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return math.ceil(min(allowed, _quota()))


def _quota() -> float:
    """Return the CPUs that a container's quota allows, such as `docker run --cpus=1.5`; infinity without a quota."""
    for names in (("cpu.max",), ("cpu/cpu.cfs_quota_us", "cpu/cpu.cfs_period_us")):  # cgroup v2, v1
        with suppress(OSError, ValueError):  # no such file, or "max"
            quota, period = map(int, " ".join((CGROUP / name).read_text() for name in names).split())
            if quota > 0:
                return quota / period
    return math.inf


def _used_elsewhere() -> float:
    """Return the CPU seconds that other processes have used since boot, on the cores this process may use."""
    ours, cores_of_ours = sum(os.times()[:4]), {f"cpu{number}" for number in os.sched_getaffinity(0)}
    stat = Path("/proc/stat")
    lines = [line.split() for line in stat.read_text().splitlines()] if stat.exists() else []
    # Columns: user, nice, system, idle, iowait, irq, softirq, in ticks.
    ticks = sum(int(line[column]) for line in lines if line[0] in cores_of_ours for column in (1, 2, 3, 6, 7))
    return ticks / os.sysconf("SC_CLK_TCK") - ours


_BEGUN = (time.perf_counter(), _used_elsewhere()) if sys.platform == "linux" else (0.0, 0.0)


def busy_cores() -> float:
    """Return how many of its cores other processes have used since this one began; 0 on systems other than Linux."""
    if sys.platform != "linux":
        return 0.0
    return max(0.0, (_used_elsewhere() - _BEGUN[1]) / (time.perf_counter() - _BEGUN[0]))


def limit_spinning() -> None:
    """Let waiting OpenMP threads sleep sooner, in this process and its children. Call this before torch is loaded.

    Do nothing if the user has set an environment variable for it, or if torch does not use GNU's OpenMP.
    """
    if sys.platform == "linux" and "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", str(SPINS))


def max_memory() -> float:
    """Return the most memory that this process has used, in bytes; NaN on Windows, which does not count it."""
    if sys.platform == "win32":
        return math.nan
    import resource

    unit = 1 if sys.platform == "darwin" else 1024  # bytes of ru_maxrss
    return float(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit)


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
