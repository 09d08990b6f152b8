import os
import subprocess
import sys
from pathlib import Path

import pytest

from base import processes
from tests.conftest import ROOT
from tests.stores import make


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux counts the time of each core")
@pytest.mark.parametrize("content", [None, "", "cpu 1 2", "cpu0 1 2\n", "cpu0 a b c d e f g h\n", "\n\n"])
def test_times_of_cores_that_the_system_hides(
    content: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(tmp_path, {"stat": content} if content is not None else {"stat/x": ""})
    monkeypatch.setattr(processes, "STAT", tmp_path / "stat")
    assert processes.busy_cores() == 0


@pytest.mark.parametrize(("files", "cores"), [
    ({}, 8), ({"cpu.max": "max 100000"}, 8), ({"cpu.max": "150000 100000"}, 2), ({"cpu.max": "10000 100000"}, 1),
    ({"cpu.max": "1600000 100000"}, 8),
])  # fmt: skip
def test_a_container_s_quota_limits_the_cores(
    files: dict[str, str], cores: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(tmp_path, files)
    monkeypatch.setattr(processes, "CPU_MAX", tmp_path / "cpu.max")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)), raising=False)
    monkeypatch.delenv("OMP_NUM_THREADS")
    assert processes.cores() == cores


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux counts the time of each core")
def test_other_processes_are_seen_and_this_one_is_not() -> None:
    work = "import os, time; end = time.perf_counter() + 0.7\nwhile time.perf_counter() < end: pass"
    code = f"from base import processes\n{work}\nprint(processes.busy_cores(), time.process_time() / 0.7)"
    one = {min(os.sched_getaffinity(0))}
    command = [sys.executable, "-c", f"import os; os.sched_setaffinity(0, {one})\n{code}"]
    alone = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    others, own = map(float, alone.stdout.split())
    assert others + own < 1.3, "on one core, both together"
    with subprocess.Popen([sys.executable, "-c", f"{command[2].partition(chr(10))[0]}\nwhile True: pass"]) as busy:
        try:
            found = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
        finally:
            busy.kill()
    assert float(found.stdout.split()[0]) > 0.25, "half of the core, or less beside a third process"


def test_commands_start_without_their_folder_on_the_path(tmp_path: Path) -> None:
    for script, arguments, said in (("train", ["--runs"], "no run in runs/ yet"), ("sample", ["x"], "no such model")):
        command = [sys.executable, ROOT / f"{script}.py", *arguments]
        environment = os.environ | {"PYTHONSAFEPATH": "1"}
        ended = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
        assert said in ended.stdout + ended.stderr and "Traceback" not in ended.stderr, ended
