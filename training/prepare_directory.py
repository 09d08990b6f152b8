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


def open_directory(plan: "RunPlan", trainer: "L.Trainer", parameters: int) -> None:
    """Make and lock the run directory, write config.yaml and summary.json, log hyperparameters, introduce the run."""
    run = plan.directory
    run.mkdir(parents=True, exist_ok=True)
    run_lock.lock(run)  # of two processes with the same name, one gets the directory
    if plan.fresh:
        run_directory.check_free(run_directory.name_of(run))  # again: since then another process may have made a run
        if run_directory.is_debug(run.name):
            for left in set(run.iterdir()) - {run / ".lock"}:
                shutil.rmtree(left) if left.is_dir() and not left.is_symlink() else left.unlink()
    else:
        cut_events(run, plan.resume_point.step if plan.resume_point else -1)
    remove_leftovers(run)
    write_text(run / "config.yaml", to_yaml(plan.config))  # from here on the directory is a run
    (run / "checkpoints").mkdir(exist_ok=True)
    write_summary(run, Summary("running", text=plan.text.name))
    for logger in trainer.loggers:
        logger.log_hyperparams(dict(leaves(to_dict(plan.config))))
    introduce(run, plan.config, plan.text, plan.runtime.describe(plan.config), parameters, list(plan.notes))
