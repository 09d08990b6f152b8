"""Run a search (`hparams_search=`): a sweep whose trials Optuna proposes from the results so far.

`runs/<search>/` is the directory of a sweep; Optuna's study is the file `study.db` beside `sweep.csv`. A stopped trial
stays RUNNING in the study, and the next command resumes it. This module does not load torch.
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
from base.options import spell
from base.progress import Progress
from conf.compose import compose
from conf.schema import SearchConfig
from sweeps.search_space import Search, fingerprint, plan_search
from sweeps.table import describe, show_results, write_table
from sweeps.trial import Outcome, Trial, check_inputs
from sweeps.trial_processes import exit_status, run_trials
from training.study import FILE, open_study

if TYPE_CHECKING:
    import optuna


def check_study(search: Search, text: str | None) -> None:
    """Raise an `InputError` if this directory has a sweep or a search with other settings or another text."""
    if not (search.directory / FILE).exists():
        if run_directory.is_sweep(search.directory):
            raise InputError(f"name={search.name}: {search.directory} is a sweep and not a search; use another name")
        return
    now = fingerprint(search, text)
    before = open_study(search.directory).user_attrs.get("search", now)
    for key in now:
        if now[key] != before[key]:
            was = f"{search.directory} was begun with {key}={spell(before[key])}, not {spell(now[key])}"
            raise InputError(f"name={search.name}: {was}; use another name")


def make_sampler(config: SearchConfig, count: int) -> Any:
    """Return a sampler for the trial after `count` others; its seed makes a resumed search propose the same trial."""
    import optuna

    seed = int.from_bytes(hashlib.blake2b(f"{config.seed} {count}".encode(), digest_size=4).digest())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        return optuna.samplers.TPESampler(seed=seed, n_startup_trials=config.startup, constant_liar=True)


class SearchRun:
    """A running search: the Optuna study, and the trials and outcomes by trial name."""

    def __init__(self, search: Search, text: str | None) -> None:
        import optuna
        from optuna.trial import TrialState

        self.search, self.states = search, TrialState
        self.study = open_study(search.directory)
        self.study.set_user_attr("search", fingerprint(search, text))
        for left in self.study.get_trials(states=[TrialState.RUNNING]):
            if left.params.keys() != search.space.keys():  # killed before Optuna had chosen all values
                self.study.tell(left.number, state=TrialState.FAIL)
        self.distributions = {
            key: getattr(optuna.distributions, values.kind)(**values.arguments) for key, values in search.space.items()
        }
        self.trials: dict[str, Trial] = {}
        self.outcomes: dict[str, Outcome] = {}
        self.progress = Progress("trials", search.config.trials, lines=False)

    def run(self) -> int | None:
        """Run the trials that have not ended; return the signal that stopped them, or None."""
        for frozen in self.study.trials:
            if frozen.state.is_finished() and frozen.state != self.states.FAIL:
                self.add(frozen)
        self.write_table()
        ranges = ", ".join(values.text for values in self.search.space.values())
        log.info(f"search     {self.search.directory}: {self.search.config.trials} trials of {ranges}")
        with self.progress:
            self.progress.update(len(self.trials))
            return run_trials(self.proposals(), self.search.workers, self.ended)

    def add(self, frozen: "optuna.trial.BaseTrial") -> Trial:
        """Add a trial of the study to the table, with the reason if an earlier command saw it fail."""
        trial = self.search.trial(frozen.number, {key: frozen.params[key] for key in self.search.space})
        self.trials[trial.name] = trial
        if reason := self.study.user_attrs.get(f"{trial.name} failed"):
            self.outcomes[trial.name] = Outcome("failed", reason)
        return trial

    def proposals(self) -> Iterator[Trial]:
        """Yield the trials that an earlier command began and did not end, then new trials that Optuna proposes."""
        count = self.search.config.trials

        def announce(trial: Trial, note: str = "") -> Trial:
            settings = " ".join(f"{key}={value}" for key, value in trial.varied.items())
            log.info(f"{trial.name} of {count}  {settings}{note}")
            return trial

        for frozen in self.study.get_trials(states=[self.states.RUNNING]):
            trial = self.add(frozen)
            status = run_directory.summary_of(trial.directory).get("status")
            if status in ("finished", "pruned"):  # the search was killed before it stored this
                self.ended(trial, Outcome(str(status)))
            else:
                yield announce(trial, ": resumed")
        while len(begun := [each for each in self.study.trials if each.state != self.states.FAIL]) < count:
            self.study.sampler = make_sampler(self.search.config, len(begun))
            yield announce(self.add(self.study.ask(self.distributions)))

    def ended(self, trial: Trial, result: Outcome) -> None:
        """Store the outcome of a trial in the study and the table, and log it."""
        assert trial.number is not None
        self.outcomes[trial.name] = result
        if result.status == "finished":
            self.study.tell(trial.number, run_directory.val_bpc_of(trial.directory))
        elif result.status == "pruned":
            self.study.tell(trial.number, state=self.states.PRUNED)
        elif result.status == "failed":
            self.study.set_user_attr(f"{trial.name} failed", result.reason)
            # Optuna ignores trials that FAIL; the sampler ranks PRUNED ones among the worst and avoids their settings.
            self.study.tell(trial.number, state=self.states.PRUNED)
        self.write_table()
        self.progress.update(1)
        log.info(f"{trial.name} of {self.search.config.trials}  {describe(trial, self.outcomes)}")

    def write_table(self) -> list[dict[str, str]]:
        """Write sweep.csv and return its rows."""
        return write_table(self.search.name, self.trials.values(), self.outcomes)


def run_search(search: Search, text: str | None) -> int:
    """Run the trials of a search, show the results and return the exit status: 1 if no trial has finished."""
    import optuna

    search.directory.mkdir(parents=True, exist_ok=True)
    with run_lock.locked(search.directory):
        try:
            running = SearchRun(search, text)
            received = running.run()
            results = running.write_table()
        except optuna.exceptions.StorageInternalError as error:  # such as a full disk
            raise OSError(f"{search.directory / FILE}: {one_line(error.__cause__ or error)}") from error
        show_results(results, search.directory / "sweep.csv")
        status = exit_status([], len(running.trials), received)
    if not results or not results[0]["val_loss"]:
        return status or 1  # no trial has finished
    best = running.trials[Path(results[0]["directory"]).name]
    log.info(f"best again {shlex.join(['python', 'train.py', *best.overrides])}")
    return status


def begin_search(config: SearchConfig, rest: list[str], literals: dict[str, str | None]) -> int:
    """Check the values of a search before any file is written, run the search and return the exit status."""
    search = plan_search(config, rest, literals)
    try:
        fingerprints = [check_inputs(each.config) for each in compose(search.corners(), literals)]
    except InputError as error:
        raise InputError(f"among the values of the search: {error}") from None
    check_study(search, fingerprints[0])
    return run_search(search, fingerprints[0])
