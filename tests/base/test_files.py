"""A file or a folder is the old one or the whole new one, whatever happens while it is written."""

import errno
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from base.files import atomic, remove_unfinished, write_text
from tests.conftest import ROOT, missing

KILLED = """
import os, signal, sys
from pathlib import Path
from base.files import atomic
moment, path, kind = sys.argv[1], Path(sys.argv[2]), sys.argv[3]
def die(*_):
    os.kill(os.getpid(), signal.SIGKILL)
if moment != "in the block":
    setattr(os, moment, die)
with atomic(path) as temporary:
    if kind == "folder":
        temporary.mkdir()
        (temporary / "a").write_text("new")
    else:
        temporary.write_text("new")
    if moment == "in the block":
        die()
"""


def no_leftovers(directory: Path) -> bool:
    return not list(directory.glob(".*"))


def write_folder(path: Path, text: str) -> None:
    with atomic(path) as temporary:
        (temporary / "below").mkdir(parents=True)
        (temporary / "a.txt").write_text(text)
        (temporary / "below/b.txt").write_text(text)


@pytest.mark.parametrize("kind", ["file", "folder"])
@pytest.mark.parametrize("moment", ["in the block", "fsync", "replace"])
def test_a_killed_process_leaves_the_old_one(tmp_path: Path, moment: str, kind: str) -> None:
    path = tmp_path / "name"
    path.write_text("old") if kind == "file" else path.mkdir()
    ended = subprocess.run([sys.executable, "-c", KILLED, moment, path, kind], cwd=ROOT)
    assert ended.returncode == -signal.SIGKILL
    assert path.read_text() == "old" if kind == "file" else not list(path.iterdir())
    (left,) = set(tmp_path.iterdir()) - {path}
    assert left.name.startswith(".name.") and left.suffix == ".tmp"
    remove_unfinished(tmp_path, "other")
    remove_unfinished(tmp_path, seconds=3600)
    assert left.exists()
    os.utime(left, (time.time() - 7200,) * 2)
    remove_unfinished(tmp_path, "name", seconds=3600)
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit])
@pytest.mark.parametrize("folder", [False, True])
def test_an_exception_in_the_block_leaves_nothing(tmp_path: Path, error: type[BaseException], folder: bool) -> None:
    path = tmp_path / "name"
    path.write_text("old")
    with pytest.raises(error), atomic(path) as temporary:
        if folder:
            temporary.mkdir()
            (temporary / "a").write_text("new")
        else:
            temporary.write_text("new")
        raise error
    assert path.read_text() == "old" and list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_what_cannot_be_finished_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    def fail(*_: object) -> None:
        raise OSError(errno.EIO, "the disk is broken")

    write_text(tmp_path / "name", "old")
    monkeypatch.setattr(os, call, fail)
    with pytest.raises(OSError, match="the disk is broken"):
        write_text(tmp_path / "name", "new")
    assert (tmp_path / "name").read_text() == "old" and no_leftovers(tmp_path)


def test_a_file_is_replaced_and_a_folder_is_made_once(tmp_path: Path) -> None:
    for text in ("", "old", "new äλ語\r\n"):
        write_text(tmp_path / "a", text)
        assert (tmp_path / "a").read_bytes() == text.encode()
    write_folder(tmp_path / "folder", "old")
    with pytest.raises(OSError):
        write_folder(tmp_path / "folder", "new")
    for name in ("a.txt", "below/b.txt"):
        assert (tmp_path / "folder" / name).read_text() == "old"
    assert no_leftovers(tmp_path)


def test_contents_reach_the_disk_before_the_name_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every file and folder of what is written, then the rename, then the directory of the new name."""
    events: list[object] = []
    fsync, replace = os.fsync, os.replace
    monkeypatch.setattr(os, "fsync", lambda handle: (events.append(os.fstat(handle).st_ino), fsync(handle)))
    monkeypatch.setattr(os, "replace", lambda *given: (events.append("renamed"), replace(*given)))
    write_folder(tmp_path / "folder", "text")
    written = {path.stat().st_ino for path in [tmp_path / "folder", *(tmp_path / "folder").rglob("*")]}
    assert len(written) == 4 and set(events[:4]) == written
    assert events[4:] == ["renamed", tmp_path.stat().st_ino]


def test_a_full_disk(tmp_path: Path) -> None:
    """As in a file system that holds two files of this size, but not three."""
    mount = ["mount", "-t", "tmpfs", "-o", "size=640k", "none", str(tmp_path)]
    mounted = subprocess.run(mount, capture_output=True, text=True)
    if mounted.returncode:
        missing(f"a tmpfs: {mounted.stderr.strip()}")
    try:
        write_text(tmp_path / "name", "old" * 100_000)
        for _ in range(3):
            with pytest.raises(OSError) as error:
                write_text(tmp_path / "name", "new!" * 100_000)
            assert error.value.errno == errno.ENOSPC
            assert (tmp_path / "name").read_text() == "old" * 100_000 and no_leftovers(tmp_path)
        write_text(tmp_path / "name", "new")
        assert (tmp_path / "name").read_text() == "new"
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)


def test_a_directory_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # others than root may not pass the directories above
    write_text(Path("name"), "old")
    tmp_path.chmod(0o555)
    user = os.geteuid()
    os.seteuid(user or 65_534)  # root may write anywhere
    try:
        assert Path("name").read_text() == "old"
        with pytest.raises(PermissionError):
            write_text(Path("name"), "new")
    finally:
        os.seteuid(user)
        tmp_path.chmod(0o700)
    assert Path("name").read_text() == "old" and os.listdir() == ["name"]
    for directory in ("missing", "name"):
        with pytest.raises(OSError):
            write_text(Path(directory) / "name", "new")
    assert os.listdir() == ["name"]


WRITER = """
import sys
from pathlib import Path
from base.files import write_text
for number in range(200):
    write_text(Path(sys.argv[1]), sys.argv[2] * 50_000)
"""


def test_two_writers_at_once(tmp_path: Path) -> None:
    """A reader finds a whole file of one or the other, always."""
    path = tmp_path / "name"
    write_text(path, "a" * 50_000)
    writers = [subprocess.Popen([sys.executable, "-c", WRITER, path, each], cwd=ROOT) for each in "ab"]
    seen = set()
    while any(writer.poll() is None for writer in writers):
        seen.add(path.read_text())
    assert [writer.returncode for writer in writers] == [0, 0]
    assert seen == {"a" * 50_000, "b" * 50_000} and no_leftovers(tmp_path)


def test_of_two_folders_at_once_one_stays(tmp_path: Path) -> None:
    with pytest.raises(OSError), atomic(tmp_path / "name") as temporary:
        temporary.mkdir()
        (temporary / "a.txt").write_text("slower")
        write_folder(tmp_path / "name", "quicker")
    assert (tmp_path / "name/a.txt").read_text() == "quicker" and no_leftovers(tmp_path)


@pytest.mark.parametrize(
    "name", ["a b", "it's", 'a "b"', "[a]*?", "-", ".hidden", "a\nb", "ünï語🙂", "a\udcffb", "x.tmp", "n" * 200]
)
def test_unusual_names(tmp_path: Path, name: str) -> None:
    write_text(tmp_path / name, "text")
    write_folder(tmp_path / f"{name}.d", "text")
    assert sorted(os.listdir(tmp_path)) == sorted([name, f"{name}.d"])
    assert (tmp_path / name).read_text() == (tmp_path / f"{name}.d/a.txt").read_text() == "text"


def test_a_name_that_is_too_long_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(OSError) as error:
        write_text(tmp_path / ("x" * 255), "text")
    assert error.value.errno == errno.ENAMETOOLONG and not list(tmp_path.iterdir())


def test_what_another_process_removes_meanwhile_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / ".a.0123.tmp").touch()
    monkeypatch.setattr(Path, "glob", lambda *_: [tmp_path / ".a.0123.tmp", tmp_path / ".b.0123.tmp"])
    for seconds in (-1, 0):
        remove_unfinished(tmp_path, seconds=seconds)
    assert os.listdir(tmp_path) == []
