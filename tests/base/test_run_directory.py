import os
from pathlib import Path

import pytest

from base.errors import InputError, describe_os_error
from base.run_directory import check_writable, find_model, new_name, to_resume, unfinished
from tests.conftest import refusal


def test_runs_that_cannot_be_found_made_or_resumed(trained: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("model", "bare", "sweep", "lost"):
        Path("runs", name, "checkpoints").mkdir(parents=True)
    Path("runs/begun").mkdir()
    Path("elsewhere/checkpoints").mkdir(parents=True)
    for file in ("runs/model/config.yaml", "elsewhere/config.yaml", "runs/sweep/sweep.csv", "runs/begun/config.yaml"):
        Path(file).touch()
    for file in ("runs/model/checkpoints/best.safetensors", "runs/lost/summary.json"):
        Path(file).touch()
    for file in ("config.yaml", "checkpoints/best.safetensors"):
        os.utime(Path("runs/model", file), (0, 1))
    Path("loop").symlink_to("loop")
    for resume, name, said in (
        ("runs/first", "other", "name=other: cannot be given with resume=runs/first"),
        ("x" * 5000, None, "x: File name too long"), ("loop", None, "resume=loop: "),
        ("runs/none", None, "no such run or checkpoint; the newest are runs/first"),
        ("runs/bare", None, "is not a run that can continue (without runs/bare/config.yaml)"),
        ("runs/model", None, "has a model but no checkpoint; init_from=runs/model starts another run from its model"),
        ("auto", "model", "name=model: has a model but no checkpoint"), ("auto", "lost", "has lost its config.yaml"),
        ("runs/sweep", None, "is a sweep; repeat its command, or resume=runs/sweep/TRIAL for one trial"),
        ("auto", "sweep", "name=sweep: is a sweep"), ("auto", "first/x", "runs/first is a run and cannot contain"),
    ):  # fmt: skip
        assert said in refusal(InputError, to_resume, resume, name), resume
    for resume in ("elsewhere", "runs/begun"):  # their checkpoints folder is empty or missing
        assert to_resume(resume, None) in (Path(resume), Path(resume).resolve())
    assert to_resume("auto", "begun") == Path("runs/begun") and to_resume("auto", "bare") is None
    assert unfinished() == [Path("runs/begun"), Path("runs/model")], "without runs/bare and what has finished"
    assert to_resume("auto", "first") == to_resume("runs/first/checkpoints/last.ckpt", None) == Path("runs/first")
    assert "no trial of this sweep has finished yet" in refusal(InputError, find_model, "sweep")
    with monkeypatch.context() as less:
        less.setattr(os, "access", lambda _, mode: mode == os.X_OK)
        with pytest.raises(PermissionError) as caught:
            check_writable()
        assert "runs: cannot be read" in describe_os_error(caught.value)
    assert "runs: could not be written" in describe_os_error(caught.value)
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    monkeypatch.delenv("CHARGPT_RUN", raising=False)
    assert "processes on several machines need one directory" in refusal(InputError, new_name, "settings")
