import errno
import os
import re
from pathlib import Path
from unittest.mock import Mock

import pytest

from base.files import atomic, write_text


def write_folder(path: Path, text: str) -> None:
    with atomic(path) as temporary:
        (temporary / "below").mkdir(parents=True)
        (temporary / "a.txt").write_text(text)
        (temporary / "below/b.txt").write_text(text)


def test_what_cannot_be_finished_leaves_the_old_one_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, broken = tmp_path / "name", OSError(errno.EIO, "the disk is broken")
    write_text(path, "old")
    for error in (ValueError, KeyboardInterrupt, SystemExit):
        for write in (
            lambda new: new.write_text("new"),
            lambda new: (new.mkdir(), (new / "a").write_text("new")),
        ):
            with pytest.raises(error), atomic(path) as temporary:
                write(temporary)
                raise error
            assert path.read_text() == "old" and os.listdir(tmp_path) == ["name"]
    for named in (None, "below/a.txt"):
        with (
            pytest.raises(OSError, match=re.escape(str(path))) as caught,
            atomic(path) as temporary,
        ):
            raise OSError(errno.EIO, "the disk is broken", named and str(temporary / named))
        assert caught.value.filename == str(path)
    for call in ("fsync", "replace"):
        with monkeypatch.context() as patch, pytest.raises(OSError, match="the disk is broken"):
            patch.setattr(os, call, Mock(side_effect=broken))
            write_text(path, "new")
        assert path.read_text() == "old" and os.listdir(tmp_path) == ["name"], call


def test_a_file_is_replaced_and_a_folder_is_made_once(tmp_path: Path) -> None:
    for text in ("old", "new äλ語\r\n"):
        write_text(tmp_path / "a", text)
        assert (tmp_path / "a").read_bytes() == text.encode()
    with pytest.raises(OSError), atomic(tmp_path / "both") as temporary:
        temporary.mkdir()
        write_folder(tmp_path / "both", "quicker")
    assert (
        (tmp_path / "both/a.txt").read_text()
        == (tmp_path / "both/below/b.txt").read_text()
        == "quicker"
    )
    assert sorted(os.listdir(tmp_path)) == ["a", "both"]


def test_contents_reach_the_disk_before_the_name_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[object] = []
    fsync, replace = os.fsync, os.replace
    monkeypatch.setattr(
        os, "fsync", lambda handle: (events.append(os.fstat(handle).st_ino), fsync(handle))
    )
    monkeypatch.setattr(os, "replace", lambda *given: (events.append("renamed"), replace(*given)))
    write_folder(tmp_path / "folder", "text")
    written = {
        path.stat().st_ino for path in [tmp_path / "folder", *(tmp_path / "folder").rglob("*")]
    }
    assert len(written) == 4 and set(events[:4]) == written
    assert events[4:] == ["renamed", tmp_path.stat().st_ino]
