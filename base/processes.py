"""The processes that train one run together, as known before any of them has talked to another.

torchrun starts them itself, on each machine; so does SLURM's srun. Otherwise Lightning starts, from the first, one
for each further device of this machine. Imports nothing heavy.

Our environment variables, each set by a process for those that it starts: CHARGPT_PARENT (process id of rank 0),
CHARGPT_RUN (name made up for a run), CHARGPT_RESUMED (run that resume=auto found), CHARGPT_SWEEP (process id of the
sweep of this trial), CHARGPT_TRIAL (number of this trial in its search).
"""

import ctypes
import multiprocessing
import os
import re
import signal
import sys
import threading

from base.errors import InputError


class JobError(InputError):
    """Processes that cannot work together, in one line."""


def join() -> None:
    """Give a task of srun's the variables that torchrun gives its processes: torch, Lightning and we read these.

    Raises:
        JobError: the machines have not all the same number of tasks, or a variable is no number.
    """
    launched(), rank()  # raise what is wrong with torchrun's own
    if "SLURM_STEP_ID" not in os.environ or "RANK" in os.environ or _number("SLURM_STEP_NUM_TASKS") == 1:
        return  # not started by srun, or alone
    tasks, machines = _number("SLURM_STEP_NUM_TASKS"), _number("SLURM_STEP_NUM_NODES")
    layout = os.environ.get("SLURM_STEP_TASKS_PER_NODE", "")
    if tasks % machines or "," in layout:
        raise JobError(f"srun: {tasks} tasks on {machines} machines ({layout}): give every machine as many")
    # The first of node[5-7,9],other1 is node5.
    first = re.sub(r"\[([^],-]*)[^]]*\]", r"\1", os.environ["SLURM_STEP_NODELIST"]).partition(",")[0]
    os.environ |= {
        "RANK": str(_number("SLURM_PROCID")),
        "LOCAL_RANK": str(_number("SLURM_LOCALID")),
        "GROUP_RANK": str(_number("SLURM_NODEID")),
        "WORLD_SIZE": str(tasks),
        "LOCAL_WORLD_SIZE": str(tasks // machines),
        "MASTER_ADDR": os.environ.get("MASTER_ADDR", first),
        # The same for all tasks of a step, another for the next step.
        "MASTER_PORT": os.environ.get(
            "MASTER_PORT", str(15_000 + (_number("SLURM_JOB_ID") * 16 + _number("SLURM_STEP_ID")) % 10_000)
        ),
    }


def launched() -> tuple[int, int] | None:
    """How many processes torchrun or srun has started on each machine, and on how many; None where neither has.

    Raises:
        JobError: a variable is no number.
    """
    if "RANK" not in os.environ:
        return None
    here = max(1, _number("LOCAL_WORLD_SIZE"))
    return here, _number("WORLD_SIZE") // here


def rank() -> int:
    """This process' number among all that train the run.

    Raises:
        JobError: a variable that should hold it holds something else.
    """
    return _number("RANK" if "RANK" in os.environ else "LOCAL_RANK", otherwise="0")


def first_here() -> bool:
    """Whether this is the first of this machine's processes."""
    return _number("LOCAL_RANK", otherwise="0") == 0


def _number(variable: str, otherwise: str = "1") -> int:
    value = os.environ.get(variable, otherwise)
    if not value.isdecimal():
        raise JobError(f"{variable}={value}: this environment variable must be a whole number")
    return int(value)


def adopt() -> None:
    """Have the processes that Lightning starts from here know that it was this one that started them."""
    os.environ["CHARGPT_PARENT"] = str(os.getpid())


def end_with(parent: int) -> None:
    """Have the system end this process with the one that started it, even while it hangs; Linux can."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)  # PR_SET_PDEATHSIG
        if os.getppid() != parent:
            os._exit(1)


def disown() -> None:
    """What this process starts from now on has no part in the run."""
    if os.environ.get("CHARGPT_PARENT") == str(os.getpid()):
        del os.environ["CHARGPT_PARENT"]


def started_by_another_rank() -> bool:
    """Whether rank 0 has started this process itself, and not torchrun or SLURM, which look after theirs."""
    return os.environ.get("CHARGPT_PARENT") == str(os.getppid())


def restarted() -> bool:
    """Whether SLURM has requeued this job, or torchrun has started its processes again."""
    return any(_number(name, "0") for name in ("SLURM_RESTART_COUNT", "TORCHELASTIC_RESTART_COUNT"))


def identity() -> str | None:
    """What names this job: the same in all its processes, and when it is started again; None where nothing does."""
    names = (os.environ.get(name, "none") for name in ("SLURM_JOB_ID", "TORCHELASTIC_RUN_ID"))
    name = next((name for name in names if name != "none"), None)
    return name[:8] if name and re.fullmatch("[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", name) else name  # made up


def cpus() -> int:
    """How many CPUs this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def cores() -> int:
    """How many threads may compute at the same time; OMP_NUM_THREADS says so for NumPy and torch, too."""
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return int(os.environ.get("OMP_NUM_THREADS") or usable)


def end_with_parent() -> None:
    """Have this process, which a Ctrl-C reaches too, end with the one that has started it, however that ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    assert parent is not None

    def follow() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=follow, daemon=True).start()
