"""A search for settings: a sweep whose trials Optuna proposes, each from what came of those before it.

`runs/<search>/` is the directory of a sweep, with `study.db` beside `sweep.csv`. A trial is under way in the study
until it has finished, was pruned or could not be run as it was proposed; whatever else ends it, it is gone on with the
next time. What is here loads neither torch nor, before a search begins or goes on, optuna.
"""

import hashlib
import shlex
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from base import run_directory, run_lock
from base.errors import InputError, one_line
from base.options import shown
from base.progress import Progress, say
from conf.compose import compose_configs, hydra_errors
from conf.schema import SearchConfig
from sweeps.search_space import Search, described, kept, plan_search
from sweeps.table import conclude, describe, rows, write_table
from sweeps.trial import Outcome, Trial, check_world
from sweeps.trial_processes import run_trials
from training.study import FILE, open_study

if TYPE_CHECKING:
    import optuna

ENDED = ("finished", "pruned")


def check_study(search: Search, text: str | None) -> None:
    """Refuse to go on with a search that was another one.

    Raises:
        InputError: the difference, in one line.
    """
    if not (search.directory / FILE).exists():
        if run_directory.is_sweep(search.directory):
            raise InputError(f"name={search.name}: {search.directory} is no search; another name begins one")
        return
    now = kept(search, text)
    before = open_study(search.directory).user_attrs.get("search", now)
    for key in now:
        if now[key] != before[key]:
            raise InputError(
                f"name={search.name}: {search.directory} was begun with {key}={shown(before[key])}, "
                f"not {shown(now[key])}; another name begins another search"
            )


def make_sampler(config: SearchConfig, count: int) -> Any:
    """What proposes a trial: a function of the seed and of the trials so far, wherever a search was interrupted."""
    import optuna

    seed = int.from_bytes(hashlib.blake2b(f"{config.seed} {count}".encode(), digest_size=4).digest())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        return optuna.samplers.TPESampler(seed=seed, n_startup_trials=config.startup, constant_liar=True)


def run_search(search: Search, text: str | None) -> int:
    """Run the trials of a search to their number, and show what came of them.

    Returns:
        The exit status: 0, 1 where a trial has failed for another reason than its settings or none has finished, 128
        and its number for a signal.

    Raises:
        RunError: another process is at work in it.
    """
    import optuna
    from optuna.trial import TrialState

    search.directory.mkdir(parents=True, exist_ok=True)
    lock = run_lock.claim(search.directory)
    if lock is None:
        raise run_directory.RunError(
            f"{search.directory}: another process is searching there; wait for it or stop it first"
        )
    study = open_study(search.directory)
    study.set_user_attr("search", kept(search, text))
    for left in study.get_trials(states=[TrialState.RUNNING]):
        if left.params.keys() != search.space.keys():  # killed while it was proposed
            study.tell(left.number, state=TrialState.FAIL)
    distributions = {
        key: getattr(optuna.distributions, each.kind)(**each.arguments) for key, each in search.space.items()
    }
    trials: dict[str, Trial] = {}
    outcomes: dict[str, Outcome] = {}
    count = search.config.trials

    def known(frozen: "optuna.trial.BaseTrial") -> Trial:
        trial = search.trial(frozen.number, {key: frozen.params[key] for key in search.space})
        trials[trial.name] = trial
        if reason := study.user_attrs.get(f"{trial.name} failed"):
            outcomes[trial.name] = Outcome("failed", reason, by_settings=True)
        return trial

    def proposals() -> Iterator[Trial]:
        for frozen in study.get_trials(states=[TrialState.RUNNING]):
            trial = known(frozen)
            if run_directory.summary_of(trial.directory).get("status") in ENDED:  # and this search before it was told
                ended(trial, Outcome(str(run_directory.summary_of(trial.directory)["status"])))
            else:
                say(f"{trial.name} of {count}  {described(trial)}: goes on")
                yield trial
        while len(begun := [each for each in study.trials if each.state != TrialState.FAIL]) < count:
            study.sampler = make_sampler(search.config, len(begun))
            trial = known(study.ask(distributions))
            say(f"{trial.name} of {count}  {described(trial)}")
            yield trial

    def ended(trial: Trial, result: Outcome) -> None:
        assert trial.number is not None
        outcomes[trial.name] = result
        if result.status == "finished":
            study.tell(trial.number, run_directory.rank_of(trial.directory))
        elif result.status == "pruned":
            study.tell(trial.number, state=TrialState.PRUNED)
        elif result.by_settings:
            study.set_user_attr(f"{trial.name} failed", result.reason)
            # The sampler then takes it for one of the worst, and looks elsewhere.
            study.tell(trial.number, state=TrialState.PRUNED)
        table()
        progress.update(1)
        say(f"{trial.name} of {count}  {describe(trial, result)}")

    def table() -> list[dict[str, str]]:
        results = rows(search.name, trials.values(), outcomes)
        write_table(search.name, results)
        return results

    try:
        for frozen in study.trials:
            if frozen.state.is_finished() and frozen.state != TrialState.FAIL:
                known(frozen)
        table()
        say(
            f"search     {search.directory}: {count} trials of {', '.join(each.text for each in search.space.values())}"
        )
        with Progress("trials", count, lines=False) as progress:
            progress.update(len(trials))
            received = run_trials(proposals(), search.workers, ended)
        results = table()
    except optuna.exceptions.StorageInternalError as error:  # such as a full disk
        raise OSError(f"{search.directory / FILE}: {one_line(error.__cause__ or error)}") from error
    finally:
        lock.release()
    failed = [name for name, each in outcomes.items() if each.status == "failed" and not each.by_settings]
    status = conclude(results, failed, len(trials), search.directory / "sweep.csv", received)
    if not results or not results[0]["val_loss"]:
        return status or 1  # none has finished
    best = trials[Path(results[0]["directory"]).name]
    say(f"best again {shlex.join(['python', 'train.py', *best.overrides])}")
    return status


def begin_search(config: SearchConfig, flags: list[str], rest: list[str], literals: dict[str, str | None]) -> int:
    """Check a search at both ends of its ranges before there is anything of it, and run it.

    Raises:
        InputError: what is wrong, in one line.
    """
    for flag in set(flags) - {"-m", "--multirun"}:
        raise InputError(f"{flag}: shows the settings of one run, and a search has many")
    search = plan_search(config, rest, literals)
    with hydra_errors("at one end of the ranges: "):
        fingerprints = [check_world(end) for end in compose_configs(search.corners(), literals)]
    check_study(search, fingerprints[0])
    return run_search(search, fingerprints[0])
