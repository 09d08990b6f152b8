import errno
import os
from unittest.mock import Mock

import pytest

from base.files import atomic, write_text


def write_folder(path, text):
    with atomic(path) as temporary:
        (temporary / "below").mkdir(parents=True)
        (temporary / "a.txt").write_text(text)
        (temporary / "below/b.txt").write_text(text)


def assert_only_the_old_one(path):
    assert path.read_text() == "old"
    assert os.listdir(path.parent) == [path.name]


@pytest.mark.parametrize("folder", [False, True])
def test_what_is_not_finished_leaves_the_old_one_alone(tmp_path, folder):
    path = tmp_path / "name"
    write_text(path, "old")
    with pytest.raises(KeyboardInterrupt), atomic(path) as temporary:
        if folder:
            temporary.mkdir()
        (temporary / "a" if folder else temporary).write_text("new")
        raise KeyboardInterrupt
    assert_only_the_old_one(path)


def test_what_cannot_be_written_leaves_the_old_one_alone(tmp_path, monkeypatch):
    path = tmp_path / "name"
    write_text(path, "old")
    broken = OSError(errno.EIO, "the disk is broken")
    monkeypatch.setattr(os, "fsync", Mock(side_effect=broken))
    with pytest.raises(OSError) as caught:
        write_text(path, "new")
    assert caught.value.filename == str(path)
    assert_only_the_old_one(path)


def test_a_file_is_replaced(tmp_path):
    write_text(tmp_path / "a", "old")
    write_text(tmp_path / "a", "new äλ語\r\n")
    assert (tmp_path / "a").read_bytes() == "new äλ語\r\n".encode()
    assert os.listdir(tmp_path) == ["a"]


def test_a_folder_is_made_once(tmp_path):
    both = tmp_path / "both"
    with pytest.raises(OSError) as caught, atomic(both) as temporary:
        temporary.mkdir()
        write_folder(both, "quicker")
    assert caught.value.filename == str(both)
    assert (both / "below/b.txt").read_text() == "quicker"
    assert os.listdir(tmp_path) == ["both"]


def test_contents_reach_the_disk_before_the_name_does(tmp_path, monkeypatch):
    events = []
    replace = os.replace
    monkeypatch.setattr(os, "fsync", lambda handle: events.append(os.fstat(handle).st_ino))
    monkeypatch.setattr(os, "replace", lambda *given: (events.append("renamed"), replace(*given)))
    write_folder(tmp_path / "folder", "text")
    written = {
        path.stat().st_ino for path in [tmp_path / "folder", *(tmp_path / "folder").rglob("*")]
    }
    assert len(written) == 4 and set(events[:4]) == written
    assert events[4:] == ["renamed", tmp_path.stat().st_ino]
