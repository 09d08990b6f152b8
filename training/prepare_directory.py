"""Make the directory of a run, at the moment when the run begins."""

import shutil
from typing import TYPE_CHECKING

from base import run_directory, run_lock
from base.files import write_text
from conf.keys import leaves
from conf.schema import to_dict, to_yaml
from reports.tensorboard import cut_events
from reports.terminal import introduce
from training.resume import remove_leftovers
from training.summary import Summary, write_summary

if TYPE_CHECKING:
    import lightning as L

    from training.run_plan import RunPlan


def share_compiled(config: Config) -> None:
    """Let Inductor cache compiled kernels beside the cached texts, for later runs."""
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(cache_dir(config.data).absolute() / "compiled"))
    # Have Inductor test only AMX, VNNI and bf16: testing all vector extensions takes a second in each process.
    os.environ.setdefault("TORCHINDUCTOR_VEC_ISA_OK", "1")


def clean_up(run: Path, point: ResumePoint | None) -> None:
    """Repair the directory of a run that was killed; `point` is its newest valid checkpoint."""
    from training.checkpoint_files import restore_names

    remove_unfinished(run)
    remove_unfinished(run / "checkpoints")
    remove_unfinished(run / "projector")
    if point:
        restore_names(point.path, point.contents)


def compare_with_before(plan: "RunPlan", allow: list[str]) -> None:
    """Log how the fingerprint of a resumed run differs from its checkpoint, or from config.yaml if there is none.

    Raises:
        InputError: something differs that `allow` does not name.
    """
    now, point = plan.conditions, plan.resume_point
    before = point.contents["conditions"] if point else now | settings(read_config(plan.directory))
    if differing := check_unchanged(before, now, allow):
        log.info(f"resume: continues with {differing}: no longer bit for bit the original run")


def make_directory(run: Path, fresh: bool) -> None:
    """Make and lock the run's directory; of two processes with the same name, one gets it."""
    run.mkdir(parents=True, exist_ok=True)
    run_lock.lock(run)
    if fresh:  # checked under the lock: another process may have made a run there since the command was read
        run_directory.check_free(run_directory.name_of(run))
    if fresh and run_directory.is_debug(run.name):
        for left in set(run.iterdir()) - {run / ".lock"}:
            shutil.rmtree(left) if left.is_dir() and not left.is_symlink() else left.unlink()
    clean_up(run, None)


def open_directory(plan: "RunPlan", trainer: "L.Trainer", parameters: int) -> None:
    """Make the run directory, write config.yaml and summary.json, log the hyperparameters and introduce the run."""
    from reports.tensorboard import cut_events
    from reports.terminal import introduce
    from training.summary import Summary, write_summary

    make_directory(plan.directory, plan.fresh)
    if not plan.fresh:
        cut_events(plan.directory, plan.resume_point.step if plan.resume_point else -1)
    write_text(plan.directory / "config.yaml", to_yaml(plan.config))  # with this file the directory counts as a run
    (plan.directory / "checkpoints").mkdir(exist_ok=True)
    write_summary(plan.directory, Summary("running", text=plan.text.name))
    for logger in trainer.loggers:
        logger.log_hyperparams(dict(leaves(to_dict(plan.config))))
    introduce(run, plan.config, plan.text, plan.runtime.describe(plan.config), parameters, list(plan.notes))
