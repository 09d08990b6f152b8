import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path
from threading import Timer

import pytest
from filelock import FileLock

from base.errors import InputError
from base.jobs.run_directory import find
from base.jobs.run_lock import in_use, lock, release
from tests.conftest import one_line, refusal
from tests.folders import make
from training import run as training_run
from training.begin import check_free, new_name, run_to_resume


@pytest.fixture
def runs(trained):
    """runs/first, which has finished, and what looks like a run but has not all of one."""
    files = "model/config.yaml model/checkpoints/best.safetensors ../elsewhere/config.yaml sweep/sweep.csv"
    make(
        Path("runs"), dict.fromkeys([*files.split(), "begun/config.yaml", "lost/summary.json"], "")
    )
    Path("runs/bare/checkpoints").mkdir(parents=True)
    for file in ("config.yaml", "checkpoints/best.safetensors"):
        os.utime(Path("runs/model", file), (0, 1))
    Path("loop").symlink_to("loop")


@pytest.mark.parametrize(
    ("resume", "name", "words"),
    [
        ("runs/first", "other", "name=other: cannot be combined with resume=runs/first"),
        ("x" * 5000, None, "no such checkpoint"),
        ("loop", None, "resume=loop: no such checkpoint"),
        ("auto", "model", "name=model: has a model but no checkpoint"),
        ("auto", "lost", "has lost its config.yaml"),
        ("runs/sweep", None, "resume=runs/sweep/TRIAL for one trial"),
        ("auto", "sweep", "name=sweep: is a sweep"),
        ("auto", "first/x", "runs/first is a run"),
    ],
)
def test_what_cannot_be_resumed(runs, resume, name, words):
    assert words in refusal(InputError, run_to_resume, resume, name)


@pytest.mark.parametrize(
    ("resume", "name", "run"),
    [
        ("auto", "begun", "runs/begun"),
        ("auto", "first", "runs/first"),
        ("auto", None, "runs/begun"),  # the newest unfinished
        ("first/checkpoints/last.ckpt", None, "runs/first"),
        ("runs/first/checkpoints/last.ckpt", None, "runs/first"),
        ("elsewhere", None, "elsewhere"),
    ],
)
def test_what_can_be_resumed(runs, resume, name, run):
    assert run_to_resume(resume, name).directory.resolve() == Path(run).resolve()


def test_names_that_are_not_free(runs):
    for name, words in {
        "sweep": "is a sweep",
        "first/x": "is a run",
        "first": "continues",
    }.items():
        assert words in refusal(InputError, check_free, name, debug=True)


def test_a_sweep_without_a_finished_trial_has_no_model(runs):
    assert "no trial of this sweep has finished" in refusal(InputError, find, "sweep", "model")


def test_processes_on_several_machines_need_a_name(monkeypatch):
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    assert "processes on several machines need one directory" in refusal(InputError, new_name, {})


def test_the_run_of_a_name_is_found_before_a_folder_elsewhere(trained):
    make(Path(), {"first/best.safetensors": "", "first/config.yaml": ""})
    assert find("first", "model") == Path("runs/first/checkpoints/best.safetensors")
    assert find("./first", "model") == Path("first/best.safetensors")


def test_a_start_waits_for_a_process_that_only_looks(tmp_path):
    other = FileLock(tmp_path / ".lock", thread_local=False)
    other.acquire()
    assert in_use(tmp_path)
    Timer(0.3, other.release).start()
    lock(tmp_path)
    assert in_use(tmp_path)
    release()
    assert not in_use(tmp_path)


def test_a_group_shares_the_lock_of_a_run(tmp_path):
    before = os.umask(0o022)
    lock(tmp_path)
    os.umask(before)
    release()
    assert stat.S_IMODE((tmp_path / ".lock").stat().st_mode) == 0o664


@pytest.mark.skipif(sys.platform == "win32", reason="Windows does not remove a file that is open")
def test_a_run_stays_locked_without_its_lock_file(tmp_path):
    program = (
        "import sys, pathlib; from base.jobs.run_lock import lock; lock(pathlib.Path(sys.argv[1]))"
    )
    command = [sys.executable, "-c", program, str(tmp_path)]
    lock(tmp_path)
    (tmp_path / ".lock").unlink()
    assert in_use(tmp_path)
    second = subprocess.run(command, capture_output=True, text=True, timeout=60)
    release()
    assert second.returncode and "another process is training there" in second.stderr
    assert subprocess.run(command, timeout=60).returncode == 0


def test_a_slow_start_overwrites_no_run_that_another_process_has_ended_meanwhile(
    trained, train, monkeypatch
):
    Path("runs/first").rename("ended")
    find_machine = training_run.find_machine

    def slow(*given):
        # the run has looked for runs/first, and not locked it
        shutil.copytree("ended", "runs/first")
        return find_machine(*given)

    monkeypatch.setattr(training_run, "find_machine", slow)
    ended = train("name=first", "seed=1", "resume=auto")
    one_line(ended, 2, "runs/first exists; name=first resume=auto continues it")
    for file in ("config.yaml", "checkpoints/best.safetensors"):
        assert Path("runs/first", file).read_bytes() == Path("ended", file).read_bytes()
