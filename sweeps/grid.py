"""Run a sweep (`-m`): check all trials, run each in its own process or SLURM job, and write a table of results.

`runs/<sweep>/` holds the table `sweep.csv` and a run directory for each trial. This module does not load torch.
"""

import os
import shutil
from collections.abc import Iterator, Mapping

from base import run_directory, run_lock
from base.errors import InputError
from base.log import log
from base.options import spell
from base.processes import command
from base.progress import Progress
from conf.compose import ParsedRun
from conf.keys import HOW
from sweeps.table import describe, show_results, write_table
from sweeps.trial import Outcome, Runner, Trial, check_inputs, group, has_finished, make_trial, sweep_name, varied_keys
from sweeps.trial_processes import exit_status, run_trials


def check_sweep(arguments: list[str], literals: Mapping[str, str | None]) -> tuple[str, list[str]]:
    """Check what concerns the whole sweep; return its name and the literals of every trial, such as `data.path=x`."""
    if "TORCHELASTIC_RUN_ID" in os.environ:
        raise InputError(
            f"-m: torchrun starts the processes of one run; start the sweep with {command('python')} train.py"
        )
    tasks = os.environ.get("SLURM_STEP_NUM_TASKS", "1")
    if tasks != "1":
        raise InputError(f"-m: a sweep runs in one SLURM task, and this step has {tasks}; use srun --ntasks=1")
    if not varied_keys(arguments):
        raise InputError("-m: needs several values of a key, such as optim.lr=3e-3,6e-3")
    if literals.get("resume") not in (None, "auto"):
        raise InputError(f"resume={literals['resume']}: to continue a sweep, repeat its command without resume=")
    for key in varied_keys(arguments):
        if group(key) in HOW:
            raise InputError(f"{key}: must have one value for all trials of a sweep")
    given = [f"{key}={spell(value)}" for key, value in literals.items() if key not in HOW]
    sweep = literals.get("name") or sweep_name([*arguments, *given])
    directory = run_directory.RUNS / sweep
    if "/" in sweep:
        raise InputError(f"name={sweep}: the name of a sweep has no slash")
    if (directory / "config.yaml").exists() or (os.path.lexists(directory) and not directory.is_dir()):
        raise InputError(f"name={sweep}: {directory} is not a sweep; use another name")
    return sweep, given


def run_sweep(trials: list[Trial], finished: set[str], run: Runner) -> int:
    """Run the trials whose names are not in `finished`, show the results and return the exit status."""
    sweep = trials[0].sweep
    table = run_directory.RUNS / sweep / "sweep.csv"
    outcomes: dict[str, Outcome] = {}
    number = {trial.name: f"trial {index}/{len(trials)}" for index, trial in enumerate(trials, start=1)}

    def unfinished() -> Iterator[Trial]:
        for trial in trials:
            done = trial.name in finished
            log.info(f"{number[trial.name]}  {trial.name}{': finished before' * done}")
            if not done:
                yield trial

    def ended(trial: Trial, result: Outcome) -> None:
        outcomes[trial.name] = result
        write_table(sweep, trials, outcomes)
        progress.update(1)
        log.info(f"{number[trial.name]}  {describe(trial, outcomes)}")

    fresh = not table.parent.exists()
    table.parent.mkdir(parents=True, exist_ok=True)
    with run_lock.locked(table.parent):
        log.info(f"sweep      {table.parent}: {len(trials)} trials; output: {table.parent}/TRIAL/console.log")
        write_table(sweep, trials, outcomes)
        try:
            with Progress("trials", len(trials), lines=False) as progress:
                progress.update(len(finished))
                received = run(unfinished(), ended)
        except InputError:  # SLURM refused the jobs: leave no new directory
            if fresh:
                shutil.rmtree(table.parent)
            raise
        show_results(write_table(sweep, trials, outcomes), table)
        failed = [name for name, result in outcomes.items() if result.status == "failed"]
        return exit_status(failed, len(trials), received)


def begin_sweep(overrides: list[str], literals: dict[str, str | None], runs: list[ParsedRun]) -> int:
    """Check all trials of a sweep before any file is written, and run them; return the exit status."""
    sweep, given = check_sweep(overrides, literals)
    if any(override.startswith("debug=") for override in overrides):
        raise InputError("debug: is for one run, not for -m")
    varied = varied_keys(overrides)
    trials, finished, checked = {}, set(), set()
    for run in runs:
        config = run.config
        trial = make_trial(sweep, varied, [*run.overrides, *given])
        trials[trial.name] = trial
        if has_finished(trial, config, run.keys):
            finished.add(trial.name)
        # Check equal inputs only once, because reading a text takes time.
        initial = config.init_from and (config.init_from, config.model)
        if (inputs := repr((config.data, config.model.context, config.trainer, initial))) not in checked:
            checked.add(inputs)
            check_inputs(config, run.keys)
    workers, launcher = runs[0].config.workers, runs[0].config.launcher
    if not launcher:
        return run_sweep(list(trials.values()), finished, lambda left, ended: run_trials(left, workers, ended))

    from sweeps.submit import launch_trials, make_executor

    executor = make_executor(run_directory.RUNS / sweep / ".submitit" / "%j", launcher)  # %j: the job's id
    return run_sweep(list(trials.values()), finished, lambda left, ended: launch_trials(left, executor, ended))
