"""The limits that the control groups of this process set, such as those of a container, of SLURM or of systemd."""

import math
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

ROOT = Path("/")  # the folder that contains proc and sys


def memory_limit() -> float:
    """Return the maximum memory of this process in bytes, or infinity without a limit."""
    limits = [math.inf]
    for group in _groups("memory"):
        for name in ("memory.max", "memory.limit_in_bytes"):  # of version 2, of version 1
            with suppress(OSError, ValueError):  # no such file, or "max"
                limits.append(float((group / name).read_text()))
    return min(limits)


def cpu_limit() -> float:
    """Return the number of CPUs whose time this process may use, such as 1.5, or infinity without a limit."""
    limits = [math.inf]
    for group in _groups("cpu"):
        with suppress(OSError, ValueError):
            quota, period = map(int, (group / "cpu.max").read_text().split())
            limits.append(quota / period)
        with suppress(OSError, ValueError):
            quota = int((group / "cpu.cfs_quota_us").read_text())
            period = int((group / "cpu.cfs_period_us").read_text())
            if quota > 0:  # -1: no limit
                limits.append(quota / period)
    return min(limits)


def _groups(controller: str) -> Iterator[Path]:
    """Yield the folders of the groups that may limit this process, because each limits those below it, too."""
    mounted = ROOT / "sys/fs/cgroup"  # version 2, which has all controllers in one hierarchy
    hierarchies = {mounted: "/", mounted / controller: "/"}
    with suppress(OSError):
        for line in (ROOT / "proc/self/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if not controllers:
                hierarchies[mounted] = path
            elif controller in controllers.split(","):
                hierarchies[mounted / controller] = path
    for top, path in hierarchies.items():
        group = top / path.lstrip("/")
        yield group
        # In a container, `path` may be that of the host, which does not exist here, but `top` does.
        yield from (parent for parent in group.parents if parent.is_relative_to(top))
