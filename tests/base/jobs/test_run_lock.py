from pathlib import Path
from threading import Timer

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
