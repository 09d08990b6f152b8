"""Run a sweep (`-m`): check all its trials, run each trial in its own process and write a table of the results."""

import os
import shlex
import signal
import subprocess
import time
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from base.errors import InputError, printable
from base.jobs import run_lock, slurm
from base.jobs.run_directory import RUNS, Run, find_model
from base.log import log
from base.processes import command
from base.progress import Progress, count
from conf.compose import compose, read_config
from conf.keys import is_launch
from conf.overrides import Command, Setting
from conf.resume_rules import changed, check_trained
from conf.schema import Config
from reports.tensorboard import watch
from sweeps.table import Row, leaderboard, write_page, write_table
from sweeps.trial import Trial, ending, make_trial, start, sweep_name
from training.launch import rows_per_device


class Candidate(NamedTuple):
    """One combination of settings that a sweep will run, and the configuration that results from the settings."""

    settings: list[Setting]
    config: Config


def candidates(command: Command) -> list[Candidate]:
    return [Candidate(settings, compose(settings)) for settings in command.runs()]


def varied_keys(command: Command) -> list[str]:
    """Return the keys with several values on the command line, or all keys that are set if none has several."""
    several = [key for key, each in command.overrides.items() if each.is_sweep_override()]
    several += [key for key, values in command.literals.items() if len(values) > 1]
    return several or [key for key in command.overrides if not is_launch(key)]


def check_sweep(name: str, varied: list[str], resume: str | None) -> Path:
    """Return the directory of a sweep after checking that the sweep can be started."""
    if "TORCHELASTIC_RUN_ID" in os.environ or os.environ.get("SLURM_STEP_NUM_TASKS", "1") != "1":
        train = command("python", "train.py")
        raise InputError(f"-m: a sweep is one process; start it with {train}, in SLURM with srun --ntasks=1")
    if not varied:
        raise InputError("-m: needs several values of a key, such as optim.lr=3e-3,6e-3")
    if resume not in (None, "auto"):
        raise InputError(f"resume={resume}: to continue a sweep, repeat its command without resume=")
    for key in varied:
        if is_launch(key):
            raise InputError(f"{key}: must have one value for all trials of a sweep")
    directory = RUNS / name
    if "/" in name:
        raise InputError(f"name={name}: the name of a sweep must not contain a slash")
    if (directory / "config.yaml").exists() or (os.path.lexists(directory) and not directory.is_dir()):
        raise InputError(f"name={name}: {directory} is not a sweep; use another name")
    return directory


def has_finished(trial: Trial, config: Config) -> bool:
    """Return whether an earlier command has finished a trial; refuse a run with other settings in its directory."""
    if not (trial.directory / "config.yaml").exists():
        return False
    old, steps = read_config(trial.directory), config.trainer.max_steps
    if differing := changed(old, config):
        raise InputError(f"{trial.directory}: is a run with other settings; use another name=…: {'; '.join(differing)}")
    finished = Run(trial.directory).summary.status == "finished"
    return finished and (steps == "auto" or steps <= old.trainer.max_steps)


def check_inputs(runs: Iterable[Candidate]) -> list[str]:
    """Check the text, batch size and initial model of each run, and return the texts' SHA-256 hashes, sorted."""
    from data.corpus import open_corpus
    from data.text import open_text

    texts = set()
    distinct = {}  # by what is checked, one run: reading a text is slow
    for run in runs:
        config = run.config
        start = config.init_from and (config.init_from, config.model)
        distinct[repr((config.data, config.model.context, config.trainer, start))] = run
    for run in distinct.values():
        config = run.config
        if isinstance(config.trainer.devices, int):
            rows_per_device(config.data, config.trainer.devices)
        if config.init_from is None:
            texts.add(open_text(config.data, config.model.context).sha256)
        else:  # the context, which the fingerprint depends on, may be that model's
            from gpt import model_file

            model, _, meta = model_file.read(find_model(config.init_from))
            trained = {"model": vars(model), "data": {"tokenizer": meta["vocabulary"]["kind"]}}
            check_trained(compose(run.settings, trained), trained)
            corpus = open_corpus(config.data)
            texts.add(corpus.sha256(corpus.digests()))
    return sorted(texts)


def claim(directory: Path, texts: Collection[str]) -> None:
    """Create and lock the directory of a sweep; refuse one whose earlier trials used another text."""
    for file in sorted(directory.glob("*/summary.json")):
        old = Run(file.parent).summary
        if old.text_sha256 not in (None, *texts):
            had = f"{file.parent} has another text ({printable(old.text)}), and losses on different texts"
            raise InputError(f"name={directory.name}: {had} cannot be compared; use another name")
    directory.mkdir(parents=True, exist_ok=True)
    run_lock.lock(directory)


@dataclass
class Sweep:
    """The trials of a sweep, and how they have ended. A subclass may propose trials from earlier results."""

    name: str
    count: int
    trials: dict[str, Trial]  # by name, in the order of their numbers
    outcomes: dict[str, str]  # by name, how a trial ended in this or an earlier command, such as `finished`
    kind: str = "sweep"

    def ask(self) -> Iterator[Trial]:
        """Yield the trials to run; `run_trials` requests the next one when a worker is free."""
        yield from [trial for trial in self.trials.values() if trial.name not in self.outcomes]

    def tell(self, trial: Trial, outcome: str) -> None:
        self.outcomes[trial.name] = outcome

    def label(self, trial: Trial) -> str:
        return f"trial {list(self.trials).index(trial.name) + 1}/{self.count}"

    def conclude(self, results: list[Row]) -> int:
        """Log which trials have failed, and return the exit status; not called if a signal stopped the sweep."""
        failed = [name for name, outcome in self.outcomes.items() if outcome == "failed"]
        if failed:
            log.error(f"train.py: {len(failed)} of {self.count} trials failed: {'; '.join(failed)}")
        return 1 if failed else 0


def run_sweep(sweep: Sweep, workers: int) -> int:
    """Run the trials of a sweep, log the results, and return the exit status: 128 + N if the signal N stopped it."""
    directory = RUNS / sweep.name
    log.info(f"{sweep.kind:10} {directory}: {count(sweep.count, 'trial')}; output: {directory}/TRIAL/console.log")
    for name, outcome in sweep.outcomes.items():
        log.info(f"{sweep.label(sweep.trials[name])}  {sweep.trials[name].title}: {outcome} before")
    results = write_table(directory, sweep.trials.values(), sweep.outcomes)
    received: list[int] = []
    for each in slurm.STOPS:  # not restored: the process ends with the sweep
        signal.signal(each, lambda number, _: received.append(number))
    with Progress("trials", sweep.count, lines=False) as progress:
        progress.update(len(sweep.outcomes))
        for trial, status in run_trials(sweep, workers, received):
            outcome, line = ending(trial, status, bool(received))
            sweep.tell(trial, outcome)
            results = write_table(directory, sweep.trials.values(), sweep.outcomes)
            progress.update(1)
            log.info(f"{sweep.label(trial)}  {line}")
    show_results(results, directory / "sweep.csv")
    if not received:
        return sweep.conclude(results)
    if slurm.time_is_up(received[0]):
        slurm.requeue()
    else:
        log.info("stopped    the same command continues")
    return 128 + received[0]


def run_trials(sweep: Sweep, workers: int, received: list[int]) -> Iterator[tuple[Trial, int]]:
    """Run the trials of a sweep, at most `workers` at the same time, and yield (trial, exit status) as each trial ends.

    After a signal, whose number a handler appends to `received`, running trials are stopped and no trials start.
    """
    waiting, running = sweep.ask(), dict[subprocess.Popen, Trial]()
    passed = 0  # number of signals that were passed on to the trials
    try:
        while True:
            while not received and len(running) < workers and (trial := next(waiting, None)):
                log.info(f"{sweep.label(trial)}  {trial.title}")
                running[start(trial, workers)] = trial
            if not running:
                return
            for number in received[passed:]:
                for process in running:  # a trial exits at once on its second SIGINT
                    process.send_signal(number if number == signal.SIGINT else signal.SIGTERM)
            passed = len(received)
            time.sleep(0.05)
            for process in [each for each in running if each.poll() is not None]:
                yield running.pop(process), process.returncode
    finally:
        for process in running:  # only after an exception
            process.kill()


def show_results(results: list[Row], table: Path) -> None:
    """Log the leaderboard, what to run next, and the paths of the page and of `table`, the file sweep.csv."""
    if results:
        log.info(f"\n{leaderboard(results)}\n")
        if results[0]["val_loss"] is not None:
            log.info(f"more text  {command('python', 'sample.py', results[0]['directory'])}")
        watch(table.parent)
    different = write_page(table.parent, results)
    log.info(f"report     {table.with_name('report.html')}")
    log.info(f"table      {table}{different and f'; {different}'}")


def combinations(command: Command) -> str:
    """Return the settings of a sweep's runs as text, one run per line."""
    return "\n".join(
        shlex.join(each.text for each in run.settings if not is_launch(each.key)) for run in candidates(command)
    )


def begin_sweep(command: Command) -> int:
    """Check all trials of the sweep that `command` describes, then run it and return its exit status."""
    given = [str(each.input_line) for each in command.overrides.values()]
    given += [each.text for values in command.literals.values() for each in values]
    runs, varied = candidates(command), varied_keys(command)
    name = command.literal("name") or sweep_name(given)
    directory = check_sweep(name, varied, command.literal("resume"))
    if "debug" in command.overrides:
        raise InputError("debug: only works for one run, without -m")
    trials = [make_trial(name, varied, [each.text for each in run.settings]) for run in runs]
    finished = [trial.name for trial, run in zip(trials, runs, strict=True) if has_finished(trial, run.config)]
    by_name = {trial.name: trial for trial in trials}
    sweep = Sweep(name, len(by_name), by_name, dict.fromkeys(finished, "finished"))
    claim(directory, check_inputs(runs))
    return run_sweep(sweep, runs[0].config.workers)
