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
from base.log import log
from base.options import shown
from base.progress import Progress
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


class SearchRun:
    """A search under way: its study, its trials and what came of them."""

    def __init__(self, search: Search, text: str | None) -> None:
        import optuna
        from optuna.trial import TrialState

        self.search, self.states = search, TrialState
        self.study = open_study(search.directory)
        self.study.set_user_attr("search", kept(search, text))
        for left in self.study.get_trials(states=[TrialState.RUNNING]):
            if left.params.keys() != search.space.keys():  # killed while it was proposed
                self.study.tell(left.number, state=TrialState.FAIL)
        self.distributions = {
            key: getattr(optuna.distributions, each.kind)(**each.arguments) for key, each in search.space.items()
        }
        self.trials: dict[str, Trial] = {}
        self.outcomes: dict[str, Outcome] = {}
        self.progress = Progress("trials", search.config.trials, lines=False)

    def run(self) -> int | None:
        """Run the trials that are left; return the number of a signal that has stopped them."""
        for frozen in self.study.trials:
            if frozen.state.is_finished() and frozen.state != self.states.FAIL:
                self.known(frozen)
        self.table()
        ranges = ", ".join(each.text for each in self.search.space.values())
        log.info(f"search     {self.search.directory}: {self.search.config.trials} trials of {ranges}")
        with self.progress:
            self.progress.update(len(self.trials))
            return run_trials(self.proposals(), self.search.workers, self.ended)

    def known(self, frozen: "optuna.trial.BaseTrial") -> Trial:
        """The trial that Optuna has proposed so."""
        trial = self.search.trial(frozen.number, {key: frozen.params[key] for key in self.search.space})
        self.trials[trial.name] = trial
        if reason := self.study.user_attrs.get(f"{trial.name} failed"):
            self.outcomes[trial.name] = Outcome("failed", reason, by_settings=True)
        return trial

    def proposals(self) -> Iterator[Trial]:
        """Trials that were begun and have not finished, and then new ones."""
        count = self.search.config.trials
        for frozen in self.study.get_trials(states=[self.states.RUNNING]):
            trial = self.known(frozen)
            status = run_directory.summary_of(trial.directory).get("status")
            if status in ENDED:  # and this search before it was told
                self.ended(trial, Outcome(str(status)))
            else:
                log.info(f"{trial.name} of {count}  {described(trial)}: goes on")
                yield trial
        while len(begun := [each for each in self.study.trials if each.state != self.states.FAIL]) < count:
            self.study.sampler = make_sampler(self.search.config, len(begun))
            trial = self.known(self.study.ask(self.distributions))
            log.info(f"{trial.name} of {count}  {described(trial)}")
            yield trial

    def ended(self, trial: Trial, result: Outcome) -> None:
        """Tell the study what came of a trial."""
        assert trial.number is not None
        self.outcomes[trial.name] = result
        if result.status == "finished":
            self.study.tell(trial.number, run_directory.rank_of(trial.directory))
        elif result.status == "pruned":
            self.study.tell(trial.number, state=self.states.PRUNED)
        elif result.by_settings:
            self.study.set_user_attr(f"{trial.name} failed", result.reason)
            # The sampler then takes it for one of the worst, and looks elsewhere.
            self.study.tell(trial.number, state=self.states.PRUNED)
        self.table()
        self.progress.update(1)
        log.info(f"{trial.name} of {self.search.config.trials}  {describe(trial, result)}")

    def table(self) -> list[dict[str, str]]:
        """Write sweep.csv and return its rows."""
        results = rows(self.search.name, self.trials.values(), self.outcomes)
        write_table(self.search.name, results)
        return results


def run_search(search: Search, text: str | None) -> int:
    """Run the trials of a search to their number, and show what came of them.

    Returns:
        The exit status: 0, 1 where a trial has failed for another reason than its settings or none has finished, 128
        and its number for a signal.

    Raises:
        InputError: another process is at work in it.
    """
    import optuna

    search.directory.mkdir(parents=True, exist_ok=True)
    lock = run_lock.claim(search.directory)
    if lock is None:
        busy = f"{search.directory}: another process is searching there; wait for it or stop it first"
        raise InputError(busy)
    try:
        under_way = SearchRun(search, text)
        received = under_way.run()
        results = under_way.table()
    except optuna.exceptions.StorageInternalError as error:  # such as a full disk
        raise OSError(f"{search.directory / FILE}: {one_line(error.__cause__ or error)}") from error
    finally:
        lock.release()
    failed = [name for name, each in under_way.outcomes.items() if each.status == "failed" and not each.by_settings]
    status = conclude(results, failed, len(under_way.trials), search.directory / "sweep.csv", received)
    if not results or not results[0]["val_loss"]:
        return status or 1  # none has finished
    best = under_way.trials[Path(results[0]["directory"]).name]
    log.info(f"best again {shlex.join(['python', 'train.py', *best.overrides])}")
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
