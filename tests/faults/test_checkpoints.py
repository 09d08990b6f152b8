import errno
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from base.jobs.run_directory import Run
from gpt import model_file
from gpt.checkpoint import read_training_checkpoint
from gpt.model_file import CheckpointError
from tests.conftest import missing, one_line, summary
from tests.faults import faults
from tests.faults.processes import MUON, Process, run, wait_for
from tests.faults.test_resume import assert_as_if_never_touched, assert_same, killed_run
from training.resume import newest_checkpoint

LAST, PREVIOUS = Path("runs/cut/checkpoints/last.ckpt"), Path("runs/cut/checkpoints/previous.ckpt")
BACKUP = Path("runs/cut/backup/last.ckpt")
RESUMED = ["name=cut", "resume=auto", *MUON]


def contents_of(directory):
    return {
        str(path): path.read_bytes() for path in sorted(directory.rglob("*")) if path.is_file()
    }


@pytest.fixture
def killed(whole, workplace):
    """The folder runs/cut of a run that was killed at step 25."""
    cut = whole(MUON, (faults.at_step, 25))
    shutil.copytree(cut.parent.parent, workplace, dirs_exist_ok=True)
    return Path("runs/cut")


def test_broken_newest_is_passed_over_with_a_word(killed, whole):
    killed_run(*RESUMED, fault=(faults.in_write, 1, 1000))
    assert list(killed.rglob(".*.tmp")), "the kill has left one"
    LAST.write_bytes(LAST.read_bytes()[: LAST.stat().st_size // 2])
    # Killed while the older one, which is whole, is the only one: it is not the damaged one that
    # takes its place.
    killed_run(*RESUMED, fault=(faults.before_rename, 1, "last.ckpt"))
    ended = run(*RESUMED)
    assert ended.status == 0, ended.err
    assert f"resume: skips {LAST}: is damaged or not a checkpoint" in ended.out
    assert f"resume: from {PREVIOUS}, step 10" in ended.out
    assert not list(killed.rglob(".*.tmp"))
    assert_as_if_never_touched(whole(MUON))


AUTO = " ".join(RESUMED)
# What the shell does to the checkpoints, the command, what goes wrong in it, its status, and what it says; the last
# of that may be a command that works.
REFUSED = [
    ("", "resume=runs/cut/checkpoints/step-00000020.ckpt", (), 2, "no such checkpoint, nor a run"),
    (f"printf flipped | dd of={LAST} bs=1 seek=20000 conv=notrunc", f"resume={LAST}", (), 2,
     f"{LAST}|checksum|resume={PREVIOUS}"),
    (f"mkdir runs/cut/backup; cp {LAST} {BACKUP}", f"resume={BACKUP}", (), 2, f"{BACKUP}|resume={LAST}"),
    (f"truncate -s -100 {LAST} {PREVIOUS}", AUTO, (), 2, f"has no usable checkpoint|{LAST}|{PREVIOUS}"),
    # what cannot be read at the moment is not taken for damaged
    ("", AUTO, (faults.fail_to_read, OSError(errno.EIO, "Input/output error")), 1, f"{LAST}: Input/output error"),
]  # fmt: skip


@pytest.mark.parametrize(("damage", "command", "fault", "status", "said"), REFUSED)
def test_a_checkpoint_that_cannot_be_used_is_refused_and_left(
    killed, damage, command, fault, status, said
):
    subprocess.run(damage, shell=True, check=True)
    before = contents_of(killed)
    *_, way = words = said.split("|")
    one_line(run(*command.split(), fault=fault, defaults=command == AUTO), status, *words)
    assert contents_of(killed) == before
    if way.startswith("resume="):
        assert run(way, defaults=False).status == 0


READERS = {
    "last.ckpt": read_training_checkpoint,
    "best.safetensors": lambda path: model_file.digest(model_file.read(path).state),
}


@pytest.mark.parametrize("name", READERS)
def test_a_flipped_bit_or_a_cut_is_refused_or_what_is_read_is_what_was_written(trained, name):
    path = trained.with_name(name)
    data = path.read_bytes()
    contents = READERS[name](path)
    size = len(data)
    for place in [*range(200), *range(200, size, 1999), *range(size - 400, size, 2)]:
        path.write_bytes(data[:place] + bytes([data[place] ^ 1 << place % 8]) + data[place + 1 :])
        try:
            assert_same(contents, READERS[name](path), f"byte {place}")
        except CheckpointError as error:
            assert str(error).isprintable() and name in str(error)
    for length in [*range(0, size, size // 40), size - 1]:
        path.write_bytes(data[:length])
        with pytest.raises(CheckpointError):
            READERS[name](path)


def test_a_full_disk(whole, workplace):
    Path("runs").mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=8m", "none", "runs"], capture_output=True
    )
    if mounted.returncode:
        missing(f"a tmpfs: {mounted.stderr.decode().strip()}")
    try:
        ended = run("name=cut", *MUON, fault=(faults.fill_disk, 13))
        one_line(ended, 1, "No space left on device")
        point = newest_checkpoint(Run(LAST.parent.parent), "auto")
        assert point and point.step == 10 and point.path.samefile(LAST)
        assert not list(Path("runs").rglob(".*.tmp"))
        Path("runs/filler").unlink()
        assert run(*RESUMED).status == 0
        assert_as_if_never_touched(whole(MUON))
    finally:
        subprocess.run(["umount", "-l", "runs"], check=True)


def test_the_second_in_one_run_directory_is_refused(killed, whole):
    first = Process(*RESUMED, fault=(faults.wait_at, 22))
    wait_for(Path("waiting").exists)
    before = contents_of(killed / "checkpoints")
    for command, said in {
        "resume=runs/cut": "another process is training there",
        "resume=auto": "no unfinished run in runs/ that is not in use",
    }.items():
        one_line(run(command, defaults=False), 2, said)
    assert contents_of(killed / "checkpoints") == before
    first.signal(signal.SIGKILL)
    assert first.wait().status == -signal.SIGKILL
    assert run(*RESUMED).status == 0
    assert_as_if_never_touched(whole(MUON))


@pytest.mark.parametrize(("name", "runs"), [("", 3), ("name=same", 1)])
def test_jobs_started_in_the_same_second(workplace, name, runs):
    processes = [Process(*name.split(), "trainer.max_steps=5") for _ in range(3)]
    ended = sorted(process.wait() for process in processes)
    for refused in ended[runs:]:
        one_line(refused, 2, "runs/same")
    statuses = [summary(path.name)["status"] for path in Path("runs").iterdir()]
    assert statuses == ["finished"] * runs, ended
