import errno
import json
import shutil
import signal
import struct
import subprocess
import zipfile
from contextlib import contextmanager
from pathlib import Path

import pytest

from base.jobs.run_directory import Run
from gpt.checkpoint import load_checkpoint, read_training_checkpoint
from gpt.model_file import CheckpointError
from tests.conftest import missing, one_line
from tests.faults import faults
from tests.faults.processes import MUON, Process, run, wait_for
from tests.faults.test_resume import assert_as_if_never_touched, assert_same
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


@contextmanager
def at_work(*arguments, step):
    """A run that has reached a step and waits there, until the end of the block."""
    process = Process(*arguments, fault=(faults.wait_for_file, step, "go"))
    wait_for(Path("waiting").exists)
    try:
        yield process
    finally:
        Path("go").touch()
        process.process.join()


def test_broken_newest_is_passed_over_with_a_word(killed, whole):
    assert run(*RESUMED, fault=(faults.in_write, 1, 1000)).status == -signal.SIGKILL
    assert list(killed.rglob(".*.tmp")), "the kill has left one"
    LAST.write_bytes(LAST.read_bytes()[: LAST.stat().st_size // 2])
    # Killed while the older one, which is whole, is the only one: it is not the damaged one that
    # takes its place.
    assert run(*RESUMED, fault=(faults.before_rename, 1, "last.ckpt")).status == -signal.SIGKILL
    ended = run(*RESUMED)
    assert ended.status == 0, ended.err
    assert f"resume: skips {LAST}: is damaged or not a checkpoint" in ended.out
    assert f"resume: from {PREVIOUS}, step 10" in ended.out
    assert not list(killed.rglob(".*.tmp"))
    assert_as_if_never_touched(whole(MUON), killed)


AUTO = " ".join(RESUMED)
IO_ERROR = (faults.fail_to_read, OSError(errno.EIO, "Input/output error"))
# What the shell does to the checkpoints, the command, what goes wrong in it, its status, and what it says; the last
# of that may be a command that works.
REFUSED = [
    ("", "resume=runs/cut/checkpoints/step-00000020.ckpt", (), 2, "no such checkpoint, nor a run"),
    ("", f"resume={PREVIOUS}", (), 2, f"newest checkpoint|resume={LAST}"),
    (f"printf flipped | dd of={LAST} bs=1 seek=20000 conv=notrunc", f"resume={LAST}", (), 2,
     f"{LAST}|checksum|resume={PREVIOUS}"),
    (f"mkdir runs/cut/backup; cp {LAST} {BACKUP}", f"resume={BACKUP}", (), 2, f"{BACKUP}|resume={LAST}"),
    (f"truncate -s -100 {LAST} {PREVIOUS}", AUTO, (), 2, f"has no usable checkpoint|{LAST}|{PREVIOUS}"),
    # what cannot be read at the moment is not taken for damaged
    ("", AUTO, IO_ERROR, 1, f"{LAST}: Input/output error"),
    ("", AUTO, (faults.fail_to_read, MemoryError()), 2, "out of memory"),
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


def test_a_flipped_bit_of_every_kind_and_a_file_of_any_length(trained):
    """Refused in the contents of a record; elsewhere refused, or what is read is what was written."""
    path = trained.with_name("last.ckpt")
    data, contents, covered = path.read_bytes(), read_training_checkpoint(path), set()
    with zipfile.ZipFile(path) as archive:
        for record in archive.infolist():
            name, extra = struct.unpack_from("<HH", data, record.header_offset + 26)
            begin = record.header_offset + 30 + name + extra
            covered |= set(range(begin, begin + record.file_size))
    for place in [
        *range(200),
        *range(200, len(data), 1999),
        *range(len(data) - 400, len(data), 2),
    ]:
        path.write_bytes(data[:place] + bytes([data[place] ^ 1 << place % 8]) + data[place + 1 :])
        try:
            assert_same(contents, read_training_checkpoint(path), f"byte {place}")
            assert place not in covered, place
        except CheckpointError as error:
            assert "\n" not in str(error) and "last.ckpt" in str(error)
    for length in [*range(0, len(data), len(data) // 40), *range(len(data) - 40, len(data), 3)]:
        path.write_bytes(data[:length])
        with pytest.raises(CheckpointError):
            read_training_checkpoint(path)


def test_a_best_that_was_damaged_meanwhile_does_not_cost_the_result(workplace):
    ended = run("name=cut", "trainer.max_steps=20", fault=(faults.break_best,))
    assert (
        ended.status == 0
        and "skips runs/cut/checkpoints/best.safetensors: is damaged" in ended.out
    ), ended
    summary = json.loads(Path("runs/cut/summary.json").read_text())
    assert summary["status"] == "finished" and summary["best_step"] == 20
    assert load_checkpoint("runs/cut")[1]["step"] == 20


def test_the_newest_unfinished_run_that_is_not_in_use_continues(killed):
    summary = killed / "summary.json"
    for day, name in enumerate(("gone", "busy"), start=1):
        shutil.copytree(killed, f"runs/{name}")
        begun = {"begun": f"2099-01-0{day}T00:00:00+00:00"}
        Path(f"runs/{name}/summary.json").write_text(
            json.dumps(json.loads(summary.read_text()) | begun)
        )
    config = Path("runs/gone/config.yaml")
    config.write_text(config.read_text().replace("path: book.txt", "path: gone.txt"))
    with at_work("name=busy", *RESUMED[1:], step=22) as busy:
        one_line(run("resume=auto", defaults=False), 2, "gone.txt: no such file", "set data.path=")
        shutil.rmtree("runs/gone")
        ended = run("resume=auto", defaults=False)
    assert ended.status == 0 and "continuing runs/cut" in ended.out, ended
    assert busy.wait().status == 0


def test_damaged_event_files_are_no_reason_to_stop(killed, whole):
    (events_file,) = killed.glob("events*")
    with open(events_file, "ab") as file:
        file.write(b"\xff" * 30)
    (killed / "events.out.tfevents.9.x").write_bytes(struct.pack("<QI", 20, 0) + b"\xff" * 24)
    assert run(*RESUMED).status == 0
    assert_as_if_never_touched(whole(MUON), killed)


def test_a_full_disk(whole, workplace):
    Path("runs").mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=8m", "none", "runs"], capture_output=True
    )
    if mounted.returncode:
        missing(f"a tmpfs: {mounted.stderr.decode().strip()}")
    try:
        one_line(
            run("name=cut", *MUON, fault=(faults.fill_disk, 13)), 1, "No space left on device"
        )
        point = newest_checkpoint(Run(LAST.parent.parent), "auto")
        assert point and point.step == 10 and point.path.samefile(LAST)
        assert not list(Path("runs").rglob(".*.tmp"))
        exported = Process(
            "--to", "web", "runs/cut", "runs/cut.html", program="export.py", defaults=False
        ).wait()
        one_line(exported, 1, "No space left", program="export.py")
        assert not list(Path("runs").rglob(".*.tmp")) and not Path("runs/cut.html").exists()
        Path("runs/filler").unlink()
        assert run(*RESUMED).status == 0
        assert_as_if_never_touched(whole(MUON), Path("runs/cut"))
    finally:
        subprocess.run(["umount", "-l", "runs"], check=True)


def test_the_second_in_one_run_directory_is_refused(killed, whole):
    with at_work(*RESUMED, step=22) as first:
        before = contents_of(killed / "checkpoints")
        for arguments in (["name=cut", "resume=auto"], ["resume=runs/cut"]):
            one_line(
                run(*arguments, defaults=False), 2, "runs/cut", "another process is training there"
            )
        one_line(
            run("resume=auto", defaults=False), 2, "no unfinished run in runs/ that is not in use"
        )
        one_line(run("name=cut"), 2, "runs/cut exists")
        assert contents_of(killed / "checkpoints") == before
        first.signal(signal.SIGKILL)
        assert first.wait().status == -signal.SIGKILL
    assert run(*RESUMED).status == 0
    assert_as_if_never_touched(whole(MUON), killed)


@pytest.mark.parametrize(("name", "statuses"), [((), [0, 0, 0]), (("name=same",), [0, 2, 2])])
def test_jobs_started_in_the_same_second(workplace, name, statuses):
    processes = [Process(*name, "trainer.max_steps=5") for _ in range(3)]
    ended = sorted((process.wait() for process in processes), key=lambda each: each.status)
    assert [each.status for each in ended] == statuses, ended
    refused = [each.err for each in ended if each.status]
    assert all(err.count("\n") == 1 and "runs/same" in err for err in refused)
    runs = [json.loads(path.read_text()) for path in Path("runs").glob("*/summary.json")]
    assert [run["status"] for run in runs] == ["finished"] * statuses.count(0)
