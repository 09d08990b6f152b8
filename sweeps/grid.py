"""Many runs: the trials of a sweep, each a process of its own, and the table of what came of them.

`runs/<sweep>/` holds one run directory for each trial, and `sweep.csv`. What is here starts, stops and counts
processes; it loads neither torch nor the text.
"""

import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from base import run_directory
from base.errors import InputError
from base.log import log
from base.options import shown
from base.progress import Progress
from conf.compose import ParsedRun
from conf.keys import HOW
from sweeps.table import conclude, describe, rows, write_table
from sweeps.trial import Outcome, Runner, Trial, check_world, group, has_finished, make_trial, sweep_name, varied_keys
from sweeps.trial_processes import run_trials

if TYPE_CHECKING:
    from collections.abc import Callable


def check_sweep(arguments: list[str], literals: Mapping[str, str | None]) -> tuple[str, list[str]]:
    """Check what concerns a sweep as a whole.

    Returns:
        Its name, and those of the literals that its trials are given.

    Raises:
        InputError: what is wrong, in one line.
    """
    if "TORCHELASTIC_RUN_ID" in os.environ:
        raise InputError("-m: torchrun starts the processes of one run; python train.py -m starts those of each trial")
    tasks = os.environ.get("SLURM_STEP_NUM_TASKS", "1")
    if tasks != "1":
        raise InputError(f"-m: a sweep is one task of SLURM's, and this step has {tasks}; srun --ntasks=1")
    if not varied_keys(arguments):
        raise InputError("-m: tries several values of a key, such as optim.lr=1e-3,3e-3")
    if literals.get("resume") not in (None, "auto"):
        raise InputError(f"resume={literals['resume']}: a sweep goes on with the command that began it, without resume")
    for key in varied_keys(arguments):
        if group(key) in HOW:
            raise InputError(f"{key}: is the same for all trials of a sweep")
    given = [f"{key}={shown(value)}" for key, value in literals.items() if key not in HOW]
    sweep = literals.get("name") or sweep_name([*arguments, *given])
    directory = run_directory.RUNS / sweep
    if "/" in sweep:
        raise InputError(f"name={sweep}: the name of a sweep has no slash")
    if (directory / "config.yaml").exists() or (os.path.lexists(directory) and not directory.is_dir()):
        raise InputError(f"name={sweep}: {directory} is no sweep; another name begins one")
    return sweep, given


def run_sweep(trials: list[Trial], finished: set[str], run: Runner) -> int:
    """Run the trials of a sweep, and show what came of them.

    Args:
        trials: all of them.
        finished: names of those that have finished before.
        run: runs those that are left: given them, and what is to be told of each end.

    Returns:
        The exit status: 0, 1 where a trial has failed, 128 and its number for a signal.
    """
    sweep = trials[0].sweep
    table = run_directory.RUNS / sweep / "sweep.csv"
    outcomes: dict[str, Outcome] = {}
    number = {trial.name: f"trial {place}/{len(trials)}" for place, trial in enumerate(trials, start=1)}
    before = {trial.name: run_directory.summary_of(trial.directory) for trial in trials}

    def unfinished() -> Iterator[Trial]:
        for trial in trials:
            now = run_directory.summary_of(trial.directory)  # of another command with the same sweep, too
            done = trial.name in finished or (now.get("status") == "finished" and now != before[trial.name])
            log.info(f"{number[trial.name]}  {trial.name}{': finished before' * done}")
            if not done:
                yield trial

    def ended(trial: Trial, result: Outcome) -> None:
        outcomes[trial.name] = result
        write_table(sweep, rows(sweep, trials, outcomes))
        progress.update(1)
        log.info(f"{number[trial.name]}  {describe(trial, result)}")

    log.info(f"sweep      {table.parent}: {len(trials)} trials; what each says is in {table.parent}/TRIAL/console.log")
    fresh = not table.parent.exists()
    table.parent.mkdir(parents=True, exist_ok=True)
    write_table(sweep, rows(sweep, trials, outcomes))
    try:
        with Progress("trials", len(trials), lines=False) as progress:
            progress.update(len(finished))
            received = run(unfinished(), ended)
    except InputError:  # no job was taken
        if fresh:
            shutil.rmtree(table.parent)
        raise
    failed = [name for name, result in outcomes.items() if result.status == "failed"]
    return conclude(rows(sweep, trials, outcomes), failed, len(trials), table, received)


def begin_sweep(rest: list[str], literals: dict[str, str | None], typed: list[ParsedRun]) -> int:
    """Check every trial of a sweep before there is anything of it, and run them.

    Raises:
        InputError: what is wrong, in one line.
    """
    return run_sweep(*plan_sweep(rest, literals, typed))


def plan_sweep(
    rest: list[str], literals: dict[str, str | None], typed: list[ParsedRun]
) -> tuple[list[Trial], set[str], Runner]:
    """Check every trial of a sweep before there is anything of it.

    Returns:
        The trials, in order, the names of those that have finished before, and what runs the others.

    Raises:
        ValueError: what is wrong, in one line.
    """
    sweep, given = check_sweep(rest, literals)
    if any(override.startswith("debug=") for override in rest):
        raise InputError("debug: looks for faults in one run, and is not taken with -m")
    varied = varied_keys(rest)
    trials, finished, texts = {}, set(), set()
    for each in typed:
        config = each.config
        trial = make_trial(sweep, varied, [*each.overrides, *given])
        trials[trial.name] = trial
        if has_finished(trial, config, each.keys):
            finished.add(trial.name)
        start = config.init_from and (config.init_from, config.model)
        if (world := repr((config.data, config.model.context, config.trainer, start))) not in texts:
            texts.add(world)
            check_world(config, each.keys)
    workers, launcher = typed[0].config.workers, typed[0].config.launcher
    if not launcher:
        return list(trials.values()), finished, lambda left, ended: run_trials(left, workers, ended)

    from sweeps.submit import launch_trials, make_executor

    with tempfile.TemporaryDirectory() as folder:
        make_executor(Path(folder), launcher)  # raises what is wrong before there is a sweep

    def run(left: "Iterator[Trial]", ended: "Callable[[Trial, Outcome], None]") -> int | None:
        executor = make_executor(run_directory.RUNS / sweep / ".submitit" / "%j", launcher)  # SLURM's job
        return launch_trials(left, executor, ended)

    return list(trials.values()), finished, run
