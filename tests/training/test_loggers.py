from training import loggers


def test_what_was_logged_is_on_the_disk_after_a_save(tmp_path, monkeypatch):
    synced = {}  # path: its size
    monkeypatch.setattr(loggers, "sync", lambda path: synced.update({path: path.stat().st_size}))
    curves = loggers.Curves(str(tmp_path))
    curves.log_metrics({"train/loss": 1.0, "val/loss": 1.0}, 1)
    curves.save()
    files = [*tmp_path.rglob("events*")]
    assert len(files) == 2 and all(synced[file] == file.stat().st_size > 100 for file in files)
    assert {tmp_path, tmp_path / "validation"} < synced.keys()
    curves.finalize("success")
