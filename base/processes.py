"""Set up the threads and the memory of a process, and format the commands that it prints. Does not load torch."""

import ctypes
import math
import os
import shlex
import sys
import time
from contextlib import suppress
from pathlib import Path

from base import cgroups
from base.errors import InputError

STAT = Path("/proc/stat")
# When this process began, as `time.perf_counter()` returns it: what it did so far was importing.
BEGAN = time.perf_counter() - time.process_time()


def command(program: str, *arguments: object) -> str:
    """Return a command to print, quoted for a shell; `program` is that of `.venv` if this process runs there.

    From another folder, a script such as train.py has the path with which this process was started.
    """
    folder = "Scripts" if sys.platform == "win32" else "bin"
    local = Path(".venv", folder, program)
    if local.exists() and sys.prefix == os.path.abspath(".venv"):
        program = str(local)
    words = list(map(str, arguments))
    script = os.path.join(os.path.dirname(sys.argv[0]), words[0])
    if not os.path.exists(words[0]) and os.path.isfile(script):
        words[0] = script
    return f"{program} {shlex.join(words)}"


def watch(folder: Path) -> str:
    """Return the log line that says how to watch the runs in a folder."""
    tensorboard = command("tensorboard", "--logdir", folder.resolve())
    return f"watch      {tensorboard}\n           and open http://localhost:6006/#custom_scalars"


def elapsed() -> float:
    """Return the seconds since this process began."""
    return time.perf_counter() - BEGAN


def cores() -> int:
    """Return the number of threads to compute with: OMP_NUM_THREADS or else the usable CPUs, rounded up."""
    threads = os.environ.get("OMP_NUM_THREADS", "").strip()
    if threads:
        if not threads.isdecimal() or not int(threads):
            raise InputError(
                f"OMP_NUM_THREADS={threads}: this environment variable must be a whole number, at least 1"
            )
        return int(threads)
    if sys.platform == "linux":
        allowed = len(os.sched_getaffinity(0))
    else:
        allowed = os.cpu_count() or 1
    limit = cgroups.cpu_limit()  # such as that of `docker run --cpus=1.5`
    if limit < allowed:
        return math.ceil(limit)
    return allowed


def _used_elsewhere() -> float:
    """Return the CPU seconds of other processes since boot on the cores that this process may use."""
    if sys.platform != "linux":
        return 0.0
    # in some containers the file is hidden, empty or shorter
    with suppress(OSError, LookupError, ValueError):
        lines = [line.split() for line in STAT.read_text().splitlines()]
        ours = {f"cpu{number}" for number in os.sched_getaffinity(0)}
        # Columns: user, nice, system, idle, iowait, irq, softirq, in ticks.
        ticks = sum(
            int(line[column]) for line in lines if line[0] in ours for column in (1, 2, 3, 6, 7)
        )
        own_seconds = sum(os.times()[:4])  # of this process and its children that have ended
        return ticks / os.sysconf("SC_CLK_TCK") - own_seconds
    return 0.0


_BEGUN = time.perf_counter(), _used_elsewhere()


def busy_cores() -> float:
    """Return how many of our cores other processes use (on Linux, otherwise 0).

    If they were busy since this process began, another second shows whether they still are.
    """
    busy = _busy_since(*_BEGUN)
    if busy < 0.5:
        return busy
    now = time.perf_counter(), _used_elsewhere()
    time.sleep(1)
    return _busy_since(*now)


def _busy_since(began: float, used: float) -> float:
    return max(0.0, (_used_elsewhere() - used) / (time.perf_counter() - began))


def max_memory() -> float:
    """Return the peak resident set of this process in bytes, or NaN on Windows."""
    if sys.platform == "win32":
        return math.nan
    import resource

    unit = 1 if sys.platform == "darwin" else 1024  # bytes of ru_maxrss
    return float(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit)


def keep_freed_memory() -> None:
    """Make glibc keep freed memory for the next batch, so that the system need not fill each page with zeros again."""
    if sys.platform != "linux":
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt:
        mallopt(-1, 2**30)  # M_TRIM_THRESHOLD of malloc.h
        is_set = mallopt(-3, 2**30)  # M_MMAP_THRESHOLD
        if not is_set:
            mallopt(-3, 2**25)  # the maximum of old versions
