import os
import time
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from training.loggers import Curves


def log(run: Path, begin: int, end: int) -> None:
    """Log steps `begin` to `end` - 1 as a process that resumes at `begin` does."""
    curves = Curves(str(run), purge_step=begin)
    for step in range(begin, end):
        curves.log_metrics({"train/loss": begin + step / 100, "val/loss": begin + step / 100}, step)
    curves.finalize("success")


def steps(folder: Path, tag: str) -> list[tuple[int, float]]:
    accumulator = EventAccumulator(str(folder))
    accumulator.Reload()
    return [(event.step, round(event.value, 2)) for event in accumulator.Scalars(tag)]


def test_a_resumed_run_replaces_what_was_logged_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    second = int(time.time())
    for begin, end, clock in ((1, 9, second), (5, 9, second + 1), (7, 10, second + 2)):
        monkeypatch.setattr(time, "time", lambda clock=clock: clock)
        log(tmp_path, begin, end)
    expected = [(step, begin + step / 100) for begin, end in ((1, 5), (5, 7), (7, 10)) for step in range(begin, end)]
    assert steps(tmp_path, "train/loss") == steps(tmp_path / "validation", "val/loss") == expected


def test_what_was_logged_is_on_the_disk_after_a_save(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced = {}

    def fsync(handle: int) -> None:
        synced[os.fstat(handle).st_ino] = os.fstat(handle).st_size

    monkeypatch.setattr(os, "fsync", fsync)
    curves = Curves(str(tmp_path))
    for step in (1, 2):
        curves.log_metrics({"train/loss": 1.0, "val/loss": 1.0}, step)
        curves.save()
        files = [path.stat() for path in tmp_path.rglob("events*")]
        assert len(files) == 2 and all(synced[file.st_ino] == file.st_size > 100 for file in files)
        assert {tmp_path.stat().st_ino, (tmp_path / "validation").stat().st_ino} <= synced.keys()
    curves.finalize("success")
