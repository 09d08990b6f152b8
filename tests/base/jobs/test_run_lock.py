import subprocess
import sys
from pathlib import Path
from threading import Timer

import pytest
from filelock import FileLock

from base.jobs.run_lock import in_use, lock, release


def test_a_start_waits_for_a_process_that_only_looks(tmp_path: Path) -> None:
    other = FileLock(tmp_path / ".lock", thread_local=False)
    other.acquire()
    assert in_use(tmp_path)
    Timer(0.3, other.release).start()
    lock(tmp_path)
    try:
        assert in_use(tmp_path)
    finally:
        release()
    assert not in_use(tmp_path)


@pytest.mark.skipif(sys.platform == "win32", reason="Windows does not remove a file that is open")
def test_a_run_stays_locked_without_its_lock_file(tmp_path: Path) -> None:
    program = "import sys, pathlib; from base.jobs.run_lock import lock; lock(pathlib.Path(sys.argv[1]))"
    command = [sys.executable, "-c", program, str(tmp_path)]
    lock(tmp_path)
    try:
        (tmp_path / ".lock").unlink()
        assert in_use(tmp_path)
        second = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert second.returncode and "another process is training there" in second.stderr
    finally:
        release()
    assert not in_use(tmp_path)
    assert subprocess.run(command, timeout=60).returncode == 0
