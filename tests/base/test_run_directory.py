from pathlib import Path

import pytest

from base.errors import InputError
from base.run_directory import find_model, new_name, to_resume
from tests.conftest import refusal


def test_runs_that_cannot_be_found_made_or_resumed(trained: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("empty", "bare", "sweep"):
        Path("runs", name, "checkpoints").mkdir(parents=True)
    Path("elsewhere/checkpoints").mkdir(parents=True)
    for file in ("runs/empty/config.yaml", "elsewhere/config.yaml", "runs/sweep/sweep.csv"):
        Path(file).touch()
    Path("loop").symlink_to("loop")
    for resume, name, said in (
        ("runs/first", "other", "name=other: cannot be given with resume=runs/first"),
        ("x" * 5000, None, "x: File name too long"), ("loop", None, "resume=loop: "),
        ("runs/none", None, "no such run or checkpoint; the newest are runs/first"),
        ("runs/bare", None, "is not a run that can continue (without runs/bare/config.yaml)"),
        ("runs/empty", None, "has no checkpoint to continue from yet; name=empty resume=auto starts it afresh"),
        ("runs/sweep", None, "is a sweep; repeat its command, or resume=runs/sweep/TRIAL for one trial"),
        ("auto", "sweep", "name=sweep: is a sweep"), ("auto", "first/x", "runs/first is a run and cannot contain"),
    ):  # fmt: skip
        assert said in refusal(InputError, to_resume, resume, name), resume
    assert refusal(InputError, to_resume, "elsewhere", None).endswith("has no checkpoint to continue from yet")
    assert to_resume("auto", "empty") is None
    assert to_resume("auto", "first") == to_resume("runs/first/checkpoints/last.ckpt", None) == Path("runs/first")
    assert "no trial of this sweep has finished yet" in refusal(InputError, find_model, "sweep")
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    monkeypatch.delenv("CHARGPT_RUN", raising=False)
    assert "processes on several machines need one directory" in refusal(InputError, new_name, "settings")
