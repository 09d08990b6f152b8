from pathlib import Path

import pytest

from base.errors import InputError
from base.files import write_text
from base.jobs.run_directory import Run
from gpt.config import OptimConfig
from training.errors import LOWER, Diverged, resume_hint, watched


def test_an_error_that_ends_a_run_says_how_to_continue(workplace: Path) -> None:
    run = Run(Path("runs/a"))
    with pytest.raises(InputError, match=LOWER), watched(run):
        raise MemoryError
    with (
        pytest.raises(Diverged, match="^seen: training has diverged; .*; there is no run yet"),
        watched(run),
    ):
        raise Diverged("seen", OptimConfig())
    run.directory.mkdir(parents=True)
    write_text(run.config, "")
    assert resume_hint(run, "seed=1").endswith(
        "starts at step 0: python train.py resume=runs/a seed=1"
    )
    run.checkpoints.mkdir()
    write_text(run.checkpoints / "last.ckpt", "")
    assert "the newest checkpoint is runs/a/checkpoints/last.ckpt" in resume_hint(run)
