import os
import subprocess
import sys
from pathlib import Path
from threading import Timer

import pytest
from filelock import FileLock

from base.errors import InputError
from base.jobs.run_directory import Run, check_free, find_model, new_name, to_resume
from base.jobs.run_lock import in_use, lock, release
from tests.conftest import refusal
from tests.stores import make
from training.resume import newest_unfinished


def test_runs_that_cannot_be_found_made_or_resumed(
    trained: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = "model/config.yaml model/checkpoints/best.safetensors ../elsewhere/config.yaml sweep/sweep.csv"
    make(
        Path("runs"), dict.fromkeys([*files.split(), "begun/config.yaml", "lost/summary.json"], "")
    )
    Path("runs/bare/checkpoints").mkdir(parents=True)
    for file in ("config.yaml", "checkpoints/best.safetensors"):
        os.utime(Path("runs/model", file), (0, 1))
    Path("loop").symlink_to("loop")
    for resume, name, said in (
        ("runs/first", "other", "name=other: cannot be combined with resume=runs/first"),
        ("x" * 5000, None, "no such checkpoint"), ("loop", None, "resume=loop: no such checkpoint"),
        ("runs/none", None, "no such checkpoint, nor a run in runs/"),
        ("auto", "model", "name=model: has a model but no checkpoint"), ("auto", "lost", "has lost its config.yaml"),
        ("runs/sweep", None, "is a sweep; repeat its command, or resume=runs/sweep/TRIAL for one trial"),
        ("auto", "sweep", "name=sweep: is a sweep"), ("auto", "first/x", "runs/first is a run and cannot contain"),
    ):  # fmt: skip
        assert said in refusal(InputError, to_resume, resume, name), resume
    for resume in ("elsewhere", "runs/begun"):  # their checkpoints folder is empty or missing
        assert to_resume(resume, None) in (Run(Path(resume)), Run(Path(resume).resolve()))
    assert (
        to_resume("auto", "begun") == Run(Path("runs/begun")) and to_resume("auto", "bare") is None
    )
    for name, said in (
        ("sweep", "is a sweep"),
        ("first/x", "is a run"),
        ("first", "name=first resume=auto continues"),
    ):
        assert said in refusal(InputError, check_free, name)
    assert newest_unfinished() == Run(Path("runs/begun")), "not runs/bare, nor what has finished"
    first = Run(Path("runs/first"))
    assert (
        to_resume("auto", "first") == to_resume("runs/first/checkpoints/last.ckpt", None) == first
    )
    assert to_resume("first", None) == to_resume("first/checkpoints/last.ckpt", None) == first
    assert "no trial of this sweep has finished yet" in refusal(InputError, find_model, "sweep")
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    assert "processes on several machines need one directory" in refusal(InputError, new_name, {})


def test_what_is_not_a_model_hides_no_run(trained: Path) -> None:
    Path("docs").mkdir()
    Path("book").write_text("a text")
    for name in ("docs", "book", "last.ckpt"):
        Path("runs/first").rename(f"runs/{name}")
        run = Path("runs", name)
        assert find_model(name) == run / "checkpoints/best.safetensors" and to_resume(
            name, None
        ) == Run(run)
        run.rename("runs/first")
    make(Path("first"), {"best.safetensors": "", "config.yaml": ""})
    assert find_model("first") == trained and to_resume("first", None) == Run(Path("runs/first"))
    assert find_model("./first") == Path("first/best.safetensors")
    assert to_resume("./first", None) in (Run(Path("first")), Run(Path("first").resolve()))
    assert find_model("runs/first") == trained and to_resume("runs/first", None) == Run(
        Path("runs/first")
    )


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
    program = (
        "import sys, pathlib; from base.jobs.run_lock import lock; lock(pathlib.Path(sys.argv[1]))"
    )
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
