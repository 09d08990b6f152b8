"""Checkpoints survive: what is on disk is whole, what is broken is passed over with a word, and errors reach people."""

import json
import os
import shutil
import signal
import struct
import subprocess
import time
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from gpt.checkpoint import CheckpointError, find_newest, load_checkpoint, read
from tests.conftest import Ended, missing
from tests.faults import faults
from tests.faults.processes import MUON, Process, events, run
from tests.faults.test_resume import assert_as_if_never_touched, assert_same

LAST = Path("runs/cut/checkpoints/step-00000020.ckpt")


def contents_of(directory: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(directory.rglob("*")) if path.is_file()}


def killed_at_25() -> None:
    assert run("name=cut", *MUON, fault=(faults.at_step, 25)).status == -signal.SIGKILL


def one_line(ended: Ended, status: int, *words: str) -> None:
    assert ended.status == status, ended
    assert ended.err.startswith("train.py: ") and ended.err.count("\n") == 1, ended.err
    for word in words:
        assert word in ended.err, ended.err


def test_broken_newest_is_passed_over_with_a_word(whole: Any, workplace: Path) -> None:
    killed_at_25()
    data = LAST.read_bytes()
    LAST.write_bytes(data[: len(data) // 2])  # last.ckpt is the same file
    ended = run("name=cut", "resume=auto", *MUON)
    assert ended.status == 0, ended.err
    assert f"resume: passes over {LAST}: is damaged or no checkpoint" in ended.out
    assert "resume: from runs/cut/checkpoints/step-00000010.ckpt, step 10" in ended.out
    assert_as_if_never_touched(whole(MUON), Path("runs/cut"))


def test_an_explicit_path_that_is_missing_or_broken_is_an_error(workplace: Path) -> None:
    killed_at_25()
    one_line(run("resume=runs/cut/checkpoints/step-00000015.ckpt", defaults=False), 2, "no such run or checkpoint")
    one_line(
        run("resume=runs/cut/checkpoints/step-00000010.ckpt", defaults=False), 2, f"newest checkpoint, resume={LAST}"
    )
    data = bytearray(LAST.read_bytes())
    data[len(data) // 2] ^= 1
    LAST.write_bytes(data)
    before = contents_of(Path("runs"))
    one_line(run(f"resume={LAST}", defaults=False), 2, str(LAST), "checksum")
    assert contents_of(Path("runs")) == before
    # Now the older one is the newest that there is.
    assert run("resume=runs/cut/checkpoints/step-00000010.ckpt", defaults=False).status == 0


def test_nothing_is_touched_where_no_checkpoint_is_whole(workplace: Path) -> None:
    killed_at_25()
    for path in LAST.parent.glob("*.ckpt"):
        path.write_bytes(path.read_bytes()[:-1])
    before = contents_of(Path("runs"))
    for arguments in (["name=cut", "resume=auto"], ["resume=auto"], ["resume=runs/cut"]):
        ended = run(*arguments, defaults=False)
        one_line(ended, 2, "no checkpoint can be gone on from", "step-00000020", "step-00000010")
    assert contents_of(Path("runs")) == before


@pytest.mark.parametrize("where", ["header", "name", "pickle", "numbers", "padding", "directory", "end"])
def test_a_flipped_bit_of_every_kind(where: str, workplace: Path) -> None:
    """Refused, or harmless: then all that is read is what was written."""
    assert run("name=cut", "trainer.max_steps=10").status == 0
    path = Path("runs/cut/checkpoints/last.ckpt")
    data, contents = path.read_bytes(), read(path)
    with zipfile.ZipFile(path) as archive:
        largest = max(archive.infolist(), key=lambda record: record.file_size)
        pickle = next(record for record in archive.infolist() if record.filename.endswith("data.pkl"))
        directory = archive.start_dir

    def begin(record: zipfile.ZipInfo) -> int:
        name, extra = struct.unpack_from("<HH", data, record.header_offset + 26)
        return record.header_offset + 30 + name + extra

    begins = largest.header_offset + 30 + len(largest.filename)
    places = {
        "header": range(largest.header_offset, largest.header_offset + 30),
        "name": range(largest.header_offset + 30, begins),
        "pickle": range(begin(pickle), begin(pickle) + pickle.file_size, 97),
        "numbers": range(begin(largest), begin(largest) + largest.file_size, 997),
        "padding": range(begins, begin(largest)),
        "directory": range(directory, directory + 300),
        "end": range(len(data) - 98, len(data)),
    }[where]
    refused = 0
    for place in places:
        for bit in (0, 7):
            path.write_bytes(data[:place] + bytes([data[place] ^ 1 << bit]) + data[place + 1 :])
            try:
                assert_same(contents, read(path), f"bit {bit} of byte {place}")
            except CheckpointError as error:
                assert "\n" not in str(error) and "last.ckpt" in str(error)
                refused += 1
    if where in ("pickle", "numbers"):
        assert refused == 2 * len(places)
    elif where in ("name", "directory", "end"):
        assert refused


def test_torch_itself_does_not_see_a_flipped_bit(workplace: Path) -> None:
    assert run("name=cut", "trainer.max_steps=10").status == 0
    path = Path("runs/cut/checkpoints/last.ckpt")
    before, data = torch.load(path)["state_dict"], bytearray(path.read_bytes())
    weights = before["net.embedding.weight"].numpy().tobytes()
    data[data.index(weights) + 2] ^= 1
    path.write_bytes(data)
    assert not torch.equal(torch.load(path)["state_dict"]["net.embedding.weight"], before["net.embedding.weight"])
    with pytest.raises(CheckpointError, match="checksum"):
        read(path)


def test_truncation_at_many_lengths(workplace: Path) -> None:
    assert run("name=cut", "trainer.max_steps=20").status == 0
    folder = Path("runs/cut/checkpoints")
    (folder / "last.ckpt").unlink()
    newest, older = folder / "step-00000020.ckpt", folder / "step-00000010.ckpt"
    data = newest.read_bytes()
    lengths = [*range(40), *range(40, len(data), len(data) // 150), *range(len(data) - 40, len(data))]
    for length in lengths:
        newest.write_bytes(data[:length])
        found, contents, skipped = find_newest(folder)
        assert (found, contents["global_step"], len(skipped)) == (older, 10, 1), length
    newest.write_bytes(data)
    assert find_newest(folder)[0] == newest


def test_unfinished_files_are_removed_at_the_next_start(workplace: Path) -> None:
    for fault in ((faults.in_write, 2, 1000), (faults.before_rename, 2, "step-"), (faults.before_rename, 1, "last")):
        run("name=cut", "resume=auto", *MUON, fault=fault)
    stale = [path for path in Path("runs").rglob(".*.tmp")]
    assert stale, "the last kill has left one"
    assert run("name=cut", "resume=auto", *MUON).status == 0
    assert not [path for path in Path("runs").rglob(".*.tmp")]


def test_where_there_are_no_hard_links(workplace: Path) -> None:
    killed = run("name=cut", *MUON, fault=(faults.no_links, 25))
    assert killed.status == -signal.SIGKILL
    last = Path("runs/cut/checkpoints/last.ckpt")
    assert last.stat().st_nlink == 1 and last.read_bytes() == LAST.read_bytes()
    ended = run(f"resume={last}", defaults=False, fault=(faults.no_links, -1))
    assert ended.status == 0 and "step 20" in ended.out, ended


def test_a_best_that_was_damaged_meanwhile_does_not_cost_the_result(workplace: Path) -> None:
    """Training has got worse since; the best file is broken when the run ends."""
    ended = run("name=cut", "trainer.max_steps=20", fault=(faults.break_best,))
    assert ended.status == 0 and "passes over runs/cut/checkpoints/best.safetensors: is damaged" in ended.out, ended
    summary = json.loads(Path("runs/cut/summary.json").read_text())
    assert summary["status"] == "finished" and summary["best_step"] == 20
    assert load_checkpoint("runs/cut")[1]["step"] == 20


def test_runs_that_cannot_go_on_are_passed_over(workplace: Path) -> None:
    """The newest that can is taken, whatever is wrong with newer ones."""
    for name in ("good", "broken", "bare"):
        assert run(f"name={name}", fault=(faults.at_step, 15)).status == -signal.SIGKILL
    for path in Path("runs/broken/checkpoints").iterdir():
        path.write_bytes(path.read_bytes()[:100])
    Path("runs/bare/config.yaml").unlink()
    Path("runs/bare/summary.json").write_text("[]")
    Path("runs/bare/checkpoints/step-00000099.ckpt").symlink_to("nowhere")
    ended = run("resume=auto", defaults=False)
    assert ended.status == 0, ended
    for said in ("over runs/bare: has no config.yaml", "over runs/broken: no checkpoint", "going on in runs/good"):
        assert said in ended.out, ended.out


def test_damaged_event_files_are_no_reason_to_stop(whole: Any, workplace: Path) -> None:
    killed_at_25()
    (events_file,) = Path("runs/cut").glob("events*")
    with open(events_file, "ab") as file:
        file.write(b"\xff" * 30)
    Path("runs/cut/events.out.tfevents.9.x").write_bytes(struct.pack("<QI", 20, 0) + b"\xff" * 24)
    assert run("name=cut", "resume=auto", *MUON).status == 0
    assert_as_if_never_touched(whole(MUON), Path("runs/cut"))


def test_encoded_text_that_was_damaged_is_encoded_anew(whole: Any, workplace: Path) -> None:
    killed_at_25()
    (encoded,) = workplace.glob("cache/**/train.bin")
    data = encoded.read_bytes()
    encoded.write_bytes(bytes(1000) + data[1000:])
    assert run("name=cut", "resume=auto", *MUON).status == 0
    assert encoded.read_bytes() == data
    assert_as_if_never_touched(whole(MUON), Path("runs/cut"))


# -- The disk ----------------------------------------------------------------------------------------


def test_a_file_that_may_not_grow(workplace: Path) -> None:
    """RLIMIT_FSIZE, from the second save on: the first is kept, and nothing unfinished."""
    ended = run("name=cut", *MUON, fault=(faults.limit_file_size, 12, 100_000))
    one_line(ended, 1, "last.safetensors: could not be written")
    folder = Path("runs/cut/checkpoints")
    names = ["best.safetensors", "last.ckpt", "last.safetensors", "step-00000010.ckpt"]
    assert sorted(path.name for path in folder.iterdir()) == names
    assert read(folder / "last.ckpt")["global_step"] == 10


@contextmanager
def small_disk(workplace: Path, size: str) -> Iterator[Path]:
    """A file system of its own to work in, in memory."""
    disk = workplace / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "none", disk], capture_output=True)
    if mounted.returncode:
        missing(f"a tmpfs: {mounted.stderr.decode().strip()}")
    try:
        shutil.copy("book.txt", disk)
        os.chdir(disk)
        yield disk
    finally:
        os.chdir(workplace)
        subprocess.run(["umount", "-l", disk], check=True)


def test_a_full_disk(whole: Any, workplace: Path) -> None:
    """A real one: a small tmpfs, in which there is room for two checkpoints and not for a third."""
    with small_disk(workplace, "800k") as disk:
        ended = run("name=cut", *MUON)
        one_line(ended, 1, "could not be written")
        path, contents, skipped = find_newest(Path("runs/cut/checkpoints"))
        assert path and contents["global_step"] in (10, 20) and not skipped
        assert not list(Path("runs").rglob(".*.tmp"))
        subprocess.run(["mount", "-o", "remount,size=8m", disk], check=True)
        assert run("name=cut", "resume=auto", *MUON).status == 0
        assert_as_if_never_touched(whole(MUON), Path("runs/cut"))


def test_a_disk_without_a_byte_left(whole: Any, workplace: Path) -> None:
    """Not even the log, the summary and TensorBoard can be written: it is still one line."""
    with small_disk(workplace, "4m"):
        ended = run("name=cut", *MUON, fault=(faults.fill_disk, 13))
        one_line(ended, 1, "No space left on device")
        assert read("runs/cut/checkpoints/last.ckpt")["global_step"] == 10
        Path("filler").unlink()
        assert run("name=cut", "resume=auto", *MUON).status == 0
        assert_as_if_never_touched(whole(MUON), Path("runs/cut"))


def test_a_directory_that_became_read_only(workplace: Path) -> None:
    """For a user who is not root, who may write anywhere."""
    ended = run("name=cut", *MUON, fault=(faults.read_only, 12))
    one_line(ended, 1, "last.safetensors: could not be written", "Permission denied")
    assert read("runs/cut/checkpoints/last.ckpt")["global_step"] == 10


def test_a_place_that_cannot_be_written_at_all(workplace: Path) -> None:
    Path("runs").write_text("not a directory")
    ended = run("name=cut")
    one_line(ended, 1, "runs")


# -- Two at once -------------------------------------------------------------------------------------


def test_the_second_in_one_run_directory_is_refused(whole: Any, workplace: Path) -> None:
    """By a lock that a process holds only while it lives."""
    assert run("name=cut", *MUON, fault=(faults.at_step, 15)).status == -signal.SIGKILL
    first = Process("name=cut", "resume=auto", *MUON, fault=(faults.wait_for_file, 22, "go"))
    until = time.monotonic() + 30
    while not Path("waiting").exists() and time.monotonic() < until:
        time.sleep(0.01)
    before = contents_of(Path("runs/cut/checkpoints"))
    for arguments in (["name=cut", "resume=auto"], ["resume=runs/cut"], ["name=cut"], ["resume=auto"]):
        ended = run(*arguments, *(MUON if "resume" not in arguments[0] else []), defaults="resume" not in arguments[0])
        one_line(ended, 2, "runs/cut", "exists" if arguments == ["name=cut"] else "another process is training there")
    assert contents_of(Path("runs/cut/checkpoints")) == before
    first.signal(signal.SIGKILL)
    assert first.wait().status == -signal.SIGKILL
    assert run("name=cut", "resume=auto", *MUON).status == 0
    assert_as_if_never_touched(whole(MUON), Path("runs/cut"))


def test_the_second_is_refused_before_the_first_checkpoint_too(workplace: Path) -> None:
    """And has touched nothing by then: what the first has logged is still there."""
    first = Process("name=cut", fault=(faults.wait_for_file, 8, "go"))
    until = time.monotonic() + 30
    while not Path("waiting").exists() and time.monotonic() < until:
        time.sleep(0.01)
    before = contents_of(Path("runs"))
    one_line(run("name=cut", "resume=auto"), 2, "runs/cut: another process is training there")
    assert contents_of(Path("runs")) == before
    Path("go").touch()
    assert first.wait().status == 0
    assert [step for step, _ in events(Path("runs/cut"))["train/loss"]] == [5, 10, 15, 20, 25, 30]


def test_jobs_started_in_the_same_second_get_directories_of_their_own(workplace: Path) -> None:
    processes = [Process("trainer.max_steps=2") for _ in range(4)]
    assert [process.wait().status for process in processes] == [0] * 4
    assert len(list(Path("runs").iterdir())) == 4


def test_of_jobs_that_want_one_name_one_gets_it(workplace: Path) -> None:
    processes = [Process("name=same", "trainer.max_steps=5") for _ in range(4)]
    ended = [process.wait() for process in processes]
    assert sorted(each.status for each in ended) == [0, 2, 2, 2], ended
    assert json.loads(Path("runs/same/summary.json").read_text())["status"] == "finished"
    assert all(each.err.count("\n") == 1 and "runs/same" in each.err for each in ended if each.status)


def test_a_run_in_use_is_passed_over_for_the_next(workplace: Path) -> None:
    for name in ("older", "newer"):
        assert run(f"name={name}", fault=(faults.at_step, 15)).status == -signal.SIGKILL
    first = Process("name=newer", "resume=auto", fault=(faults.wait_for_file, 22, "go"))
    until = time.monotonic() + 30
    while not Path("waiting").exists() and time.monotonic() < until:
        time.sleep(0.01)
    ended = run("resume=auto", defaults=False)
    assert ended.status == 0 and "passes over runs/newer: another process" in ended.out, ended
    Path("go").touch()
    assert first.wait().status == 0
