import os

from training.loggers import Curves


def test_what_was_logged_is_on_the_disk_after_a_save(tmp_path, monkeypatch):
    synced = {}

    def fsync(handle):
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
