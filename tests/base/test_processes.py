import os
import sys
from pathlib import Path

import pytest

from base import processes
from tests.stores import make


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux counts the time of each core")
@pytest.mark.parametrize("content", [None, "", "cpu 1 2", "cpu0 1 2\n", "cpu0 a b c d e f g h\n", "\n\n"])
def test_times_of_cores_that_the_system_hides(
    content: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(tmp_path, {"stat": content} if content is not None else {"stat/x": ""})
    monkeypatch.setattr(processes, "STAT", tmp_path / "stat")
    assert processes.busy_cores() == 0


def test_a_container_s_quota_limits_the_cores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "CPU_MAX", tmp_path / "cpu.max")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)), raising=False)
    monkeypatch.delenv("OMP_NUM_THREADS")
    assert processes.cores() == 8
    for quota, cores in (("max 100000", 8), ("150000 100000", 2), ("10000 100000", 1), ("1600000 100000", 8)):
        make(tmp_path, {"cpu.max": quota})
        assert processes.cores() == cores, quota
