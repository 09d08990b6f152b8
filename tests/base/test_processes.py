import os
import platform
import subprocess
import sys

import pytest

from base import processes
from tests.conftest import ROOT


@pytest.mark.slow
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc gives memory back in a way that can be set")
def test_freed_memory_is_kept() -> None:
    """Pages that are asked for again are not filled with zeros again: few page faults after the first round."""
    program = (
        "import resource, torch; from base.processes import keep_freed_memory\n"
        "faults = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_minflt\n"
        "def median():\n"
        "    counts = []\n"
        "    for _ in range(39):\n"
        "        before = faults(); torch.ones(10 * 2**20)\n"  # more than what glibc comes to keep by itself
        "        counts.append(faults() - before)\n"
        "    return sorted(counts[30:])[4]\n"  # a kernel short of memory may take pages back now and then
        "print(median()); keep_freed_memory(); print(median())"
    )
    ended = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    usual, kept = map(int, ended.stdout.split())
    pages = 4 * 10 * 2**20 / os.sysconf("SC_PAGE_SIZE")
    assert kept < 0.01 * pages < 0.5 * pages < usual


def test_threads_sleep_soon_unless_the_user_has_chosen() -> None:
    """In the environment of torch's OpenMP, which a child process inherits."""
    code = "import os; from base import processes; processes.limit_spinning(); print(os.environ.get('GOMP_SPINCOUNT'))"
    plain = {key: value for key, value in os.environ.items() if key not in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")}
    for given, expected in (
        ({}, str(processes.SPINS)), ({"GOMP_SPINCOUNT": "7"}, "7"), ({"OMP_WAIT_POLICY": "ACTIVE"}, "None")
    ):  # fmt: skip
        found = subprocess.run(
            [sys.executable, "-c", code], cwd=ROOT, env=plain | given, check=True, capture_output=True, text=True
        )
        assert found.stdout.strip() == (expected if sys.platform == "linux" else given.get("GOMP_SPINCOUNT", "None"))
