"""Make a run directory, and clean up after a killed process."""

import shutil
from pathlib import Path

from base import run_directory, run_lock
from base.files import remove_unfinished
from training.resume import ResumePoint


def clean_up(run: Path, point: ResumePoint | None) -> None:
    """Finish or remove what a process was killed in the middle of."""
    from training.checkpoint_files import restore_names

    remove_unfinished(run)
    remove_unfinished(run / "checkpoints")
    remove_unfinished(run / "projector")
    if point:
        restore_names(point.path, point.contents)


def make_directory(run: Path, fresh: bool) -> None:
    """Make the run's directory; of two processes that want the same name, one gets it."""
    try:
        run.mkdir(parents=True, exist_ok=not fresh)
    except FileExistsError:
        run_directory.check_free(run_directory.name_of(run))
    run_lock.hold(run)
    if fresh and run_directory.is_debug(run.name):
        for left in set(run.iterdir()) - {run / ".lock"}:
            shutil.rmtree(left) if left.is_dir() and not left.is_symlink() else left.unlink()
    (run / "checkpoints").mkdir(exist_ok=True)
    clean_up(run, None)
