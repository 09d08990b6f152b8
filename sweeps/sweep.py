"""Run a sweep (`-m`): check all its trials, run each in a process of its own and write a table of the results."""

import hashlib
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from subprocess import DEVNULL, STDOUT

from base import ranks
from base.errors import InputError, one_line, printable
from base.jobs import run_lock, slurm
from base.jobs.run_directory import RUNS, Run
from base.log import log
from base.options import spell
from base.processes import command, cores, watch
from base.progress import Progress, clock, count
from conf.compose import compose, read_config
from conf.keys import KEYS, LAUNCH, PATHS, VERBATIM, with_folders
from conf.overrides import Command, key_of, values_of
from conf.schema import PLUGINS, Config, by_key
from gpt.facts import figure
from sweeps.table import Row, leaderboard, write_page, write_table
from training.begin import check_writable
from training.machine import number_of
from training.resume import difference, load_init_model

TRAIN = Path(__file__).parents[1] / "train.py"
MAX_NAME = 100  # maximum characters of a trial's name


@dataclass
class Trial:
    """One run of a sweep."""

    run: Run
    overrides: list[str]  # the settings as on the command line, such as `optim.lr=0.01`
    varied: dict[str, str]  # by key, the printable values that differ between trials
    outcome: str | None = None  # how it ended in this or an earlier command, such as `finished`

    @property
    def name(self) -> str:
        return self.run.directory.name

    @property
    def title(self) -> str:  # in log lines, because the name may be a number or a hash
        return ",".join(f"{key}={value}" for key, value in sorted(self.varied.items()))

    @property
    def command(self) -> list[str]:
        """The command that starts the trial or, if the trial has begun, resumes it."""
        name = self.run.directory.relative_to(RUNS)
        arguments = with_folders([*self.overrides, f"name={name}", "resume=auto"])
        return [sys.executable, str(TRAIN), *arguments]


def sweep_name(arguments: Iterable[str], kind: str = "sweep") -> str:
    settings = [argument for argument in arguments if key_of(argument) not in LAUNCH]
    return f"{kind}-{_hash(sorted(settings))}"  # the same for the settings in any order


def trial_name(varied: Mapping[str, str]) -> str:
    """Return the varied settings as a name; if too long or unsafe for a file system, it is changed and has a hash."""
    parts = [f"{key}={value}" for key, value in varied.items()]
    bare = [re.sub(r"[][{}()'\"]", "", printable(part)) for part in parts]
    safe = [re.sub(r"[^\w.=+-]+", "-", part, flags=re.ASCII).strip("-.") for part in bare]
    name = ",".join(safe)
    if name == ",".join(parts) and len(name) <= MAX_NAME:
        return name
    return f"{name[:MAX_NAME]}_{_hash(parts)}"


def _hash(parts: Iterable[str]) -> str:
    return hashlib.sha256("\0".join(parts).encode("utf-8", "surrogateescape")).hexdigest()[:6]


def make_trial(
    sweep: str, varied: Iterable[str], settings: Collection[str], name: str = ""
) -> Trial:
    """Return a trial with these settings, `key=value`, of which the keys `varied` differ between the trials."""
    values = {}
    for setting in settings:
        key, _, value = setting.partition("=")
        values[key] = value
    # A trial has a name and `resume` of its own, from `Trial.command`.
    of_sweep = ("name", "resume", "workers")
    arguments = [f"{key}={value}" for key, value in values.items() if key not in of_sweep]
    differing = {key: values[key] for key in varied}
    in_order = dict(sorted(differing.items()))  # any order of the keys gives the same name
    run = Run(RUNS / sweep / (name or trial_name(in_order)))
    return Trial(run, arguments, {key: printable(value) for key, value in differing.items()})


def gpus_for(workers: int) -> list[str]:
    """Return the ids of the GPUs that several trials at a time divide among them; none if there is only one GPU."""
    if workers == 1:
        return []
    import torch  # takes a second, which is little beside a sweep

    num_gpus = torch.cuda.device_count()
    if num_gpus < 2:
        return []
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible:
        return visible.split(",")[:num_gpus]
    return [str(index) for index in range(num_gpus)]


def start(trial: Trial, workers: int, gpu: str | None = None) -> subprocess.Popen:
    """Start the process of a trial with its share of the CPU cores among `workers`, and with the GPU `gpu` alone.

    It prints to console.log.
    """
    # Hide the SLURM job from the trial: only the sweep may requeue it, and the trial starts its
    # own ranks.
    environment = {
        key: value
        for key, value in ranks.child_environment().items()
        if not key.startswith("SLURM_")
    }
    if workers > 1 and "OMP_NUM_THREADS" not in environment:
        environment["OMP_NUM_THREADS"] = str(max(1, cores() // workers))
    if gpu is not None:
        environment["CUDA_VISIBLE_DEVICES"] = gpu
    trial.run.directory.mkdir(parents=True, exist_ok=True)
    with open(trial.run.directory / "console.log", "ab") as console:
        # A process group of its own: Ctrl-C in the terminal reaches the sweep only, which passes
        # it on.
        return subprocess.Popen(
            trial.command,
            stdin=DEVNULL,
            stdout=console,
            stderr=STDOUT,
            env=environment,
            process_group=0,
        )


def ending(trial: Trial, status: int, stopped: bool) -> tuple[str, str]:
    """Return how a trial has ended, such as `failed` or its status in summary.json, and a log line about it.

    `status` is the exit status of its process, and `stopped` says whether a signal has stopped the
    sweep.
    """
    console = trial.run.directory / "console.log"
    if status and not stopped:
        lines = console.read_text("utf-8", "replace").strip().split("\n")
        if status < 0:
            reason = f"killed by {signal.Signals(-status).name}"
        elif lines[-1]:
            reason = one_line(lines[-1]).removeprefix("train.py: ")
        else:
            reason = f"exit status {status}"
        return "failed", f"failed: {reason} ({console})"
    summary = trial.run.summary
    how = "interrupted" if status else str(summary.status)
    if summary.val_loss is None or summary.seconds is None:
        return how, how
    loss = (
        f"validation loss {figure(summary.val_loss)}, {figure(summary.val_bpc)} bits per character"
    )
    return how, f"{how} in {clock(summary.seconds)}, {loss}"


def varied_keys(command: Command) -> list[str]:
    """Return the keys by which the trials of a sweep are named: those with several values.

    A sweep of one trial has none, so it is named by all keys except those that are used verbatim
    or belong to the launch.
    """
    several = [
        key for key, argument in command.arguments.items() if values_of(argument) != [argument]
    ]
    if several:
        return several
    return [key for key in command.arguments if key not in LAUNCH | VERBATIM]


def check_varied(varied: list[str]) -> None:
    if not varied:
        raise InputError("-m: needs several values of a key, such as optim.lr=3e-3,6e-3")


def check_sweep(name: str, varied: list[str], resume: str | None) -> Path:
    """Return the directory of a sweep after checking that the sweep can be started."""
    if ranks.launched():
        train = command("python", "train.py")
        raise InputError(
            f"-m: a sweep is one process; start it with {train}, in SLURM with srun --ntasks=1"
        )
    check_varied(varied)
    if resume not in (None, "auto"):
        raise InputError(
            f"resume={resume}: to continue a sweep, repeat its command without resume="
        )
    for key in varied:
        if key in LAUNCH:
            raise InputError(f"{key}: must have one value for all trials of a sweep")
    directory = RUNS / name
    if "/" in name:
        raise InputError(f"name={name}: the name of a sweep must not contain a slash")
    if (directory / "config.yaml").exists() or (
        os.path.lexists(directory) and not directory.is_dir()
    ):
        raise InputError(f"name={name}: {directory} is not a sweep; use another name")
    check_writable(name)
    return directory


def changed(stored: Config, config: Config) -> list[str]:
    """Return each setting in which `config` differs from that of a run, `stored`, as `key=value (the run has value)`.

    Not compared is what is `auto`, comes with the model of `init_from` or is in `allow`. A larger
    `trainer.max_steps` is not a difference, because it continues the run.
    """
    ours = by_key(config)
    theirs = by_key(stored)
    trained = ("model.", "data.tokenizer") if config.init_from else ()
    steps = config.trainer.max_steps
    longer = (
        steps != "auto" and stored.trainer.max_steps != "auto" and steps > stored.trainer.max_steps
    )
    differing = []
    for key, value in ours.items():
        is_free = KEYS[key].on_resume == "free" and key not in (*PATHS, "trainer.max_steps")
        if is_free or value == theirs[key]:
            continue
        if key in config.allow or key.startswith(trained):
            continue
        if key == "trainer.max_steps" and longer:
            continue
        has_auto = value == "auto"
        if key in PLUGINS:
            has_auto = any("auto" in options.values() for options in value.values())
        if has_auto and key not in PATHS:  # a file may be called auto
            continue
        differing.append(difference(key, value, theirs[key]))
    return differing


def has_finished(run: Run, config: Config) -> bool:
    """Return whether an earlier command has finished a trial; refuse a run with other settings in its directory."""
    if not run.config.exists():
        return False
    old = read_config(run.directory)
    differing = changed(old, config)
    if differing:
        raise InputError(
            f"{run}: is a run with other settings; use another name=…: {'; '.join(differing)}"
        )
    steps = config.trainer.max_steps
    long_enough = steps == "auto" or steps <= old.trainer.max_steps
    return run.summary.status == "finished" and long_enough


def check_inputs(configs: Iterable[Config]) -> list[str]:
    """Check the text, batch size and initial model of each run, and return the SHA-256 of each run's text."""
    texts: dict[str, str] = {}  # by what is checked, because reading a text is slow
    hashes = []
    for config in configs:
        # None, or the initial model and the settings that must fit it
        initial = config.init_from and (config.init_from, config.model)
        inputs = repr((config.data, config.model.context, config.trainer, initial))
        if inputs not in texts:
            texts[inputs] = check_input(config)
        hashes.append(texts[inputs])
    return hashes


def check_input(config: Config) -> str:
    from data.text import open_text

    devices = number_of(config.trainer.devices)
    config.data.rows(devices)  # raises if the batch cannot be shared out
    if config.workers > 1 and config.trainer.devices not in ("auto", 1):
        raise InputError(
            f"trainer.devices={spell(config.trainer.devices)}: needs workers=1, not {config.workers}"
        )
    extra_chars = ""
    if config.init_from is not None:
        extra_chars = load_init_model(config).extra_chars  # of its vocabulary
    return open_text(config.data, config.model.context, extra_chars).sha256


def check_text(trial: Trial, sha256: str) -> None:
    """Refuse a trial that an earlier command has finished on another text."""
    trained_on = trial.run.summary.text_sha256
    if trial.outcome == "finished" and trained_on not in (None, sha256):
        raise InputError(
            f"{trial.run}: its text has changed since it was trained; use another name=…"
        )


@dataclass
class Sweep:
    """The trials of a sweep. A subclass may propose trials from earlier results."""

    name: str
    count: int
    trials: dict[str, Trial]  # by name, in the order of their numbers
    kind: str = "sweep"

    def ask(self) -> Iterator[Trial]:
        # `run_trials` requests the next one when a worker is free.
        yield from [trial for trial in self.trials.values() if trial.outcome is None]

    def tell(self, trial: Trial, outcome: str) -> None:
        trial.outcome = outcome

    def label(self, trial: Trial) -> str:
        return f"trial {list(self.trials).index(trial.name) + 1}/{self.count}"

    def write_table(self) -> list[Row]:
        trials = self.trials.values()
        outcomes = {trial.run: trial.outcome for trial in trials if trial.outcome}
        return write_table(
            RUNS / self.name, {trial.run: trial.varied for trial in trials}, outcomes
        )

    def conclude(self, results: list[Row]) -> int:
        """Log which trials have failed, and return the exit status; not called if a signal stopped the sweep."""
        failed = [trial.name for trial in self.trials.values() if trial.outcome == "failed"]
        if failed:
            log.error(
                f"train.py: {len(failed)} of {self.count} trials failed: {'; '.join(failed)}"
            )
        return 1 if failed else 0


def run_sweep(sweep: Sweep, workers: int) -> int:
    """Run the trials of a sweep, log the results, and return the exit status: 128 + N if the signal N stopped it."""
    directory = RUNS / sweep.name
    log.info(
        f"{sweep.kind:10} {directory}: {count(sweep.count, 'trial')}; output: {directory}/TRIAL/console.log"
    )
    for trial in sweep.trials.values():
        if trial.outcome:
            log.info(f"{sweep.label(trial)}  {trial.title}: {trial.outcome} before")
    results = sweep.write_table()
    received: list[int] = []
    for stop in slurm.STOPS:  # not restored: the process ends with the sweep
        signal.signal(stop, lambda number, _: received.append(number))
    for trial, status in run_trials(sweep, workers, received):
        outcome, line = ending(trial, status, bool(received))
        sweep.tell(trial, outcome)
        results = sweep.write_table()
        log.info(f"{sweep.label(trial)}  {line}")
    if results:
        log.info(f"\n{leaderboard(results)}\n")
        log.info(watch(directory))
    warning = write_page(directory, results)
    log.info(f"report     {directory / 'report.html'}")
    remark = f"; {warning}" if warning else ""
    log.info(f"table      {directory / 'sweep.csv'}{remark}")
    if not received:
        return sweep.conclude(results)
    if slurm.time_is_up(received[0]):
        slurm.requeue()
    else:
        log.info("stopped    the same command continues")
    return 128 + received[0]


def run_trials(sweep: Sweep, workers: int, received: list[int]) -> Iterator[tuple[Trial, int]]:
    """Run the trials of a sweep, at most `workers` at the same time, and yield (trial, exit status) as each trial ends.

    After a signal, whose number a handler appends to `received`, running trials are stopped and no
    trials start.
    """
    waiting = sweep.ask()
    gpus = gpus_for(workers)
    free = list(range(workers))  # numbers of the workers that have no trial
    running = dict[subprocess.Popen, tuple[Trial, int]]()
    passed = 0  # number of signals that were passed on to the trials
    try:
        while True:
            while free and not received:
                trial = next(waiting, None)
                if trial is None:
                    break
                log.info(f"{sweep.label(trial)}  {trial.title}")
                worker = free.pop(0)
                gpu = gpus[worker % len(gpus)] if gpus else None
                running[start(trial, workers, gpu)] = trial, worker
            if not running:
                return
            for number in received[passed:]:
                for process in running:  # a trial exits at once on its second SIGINT
                    process.send_signal(number if number == signal.SIGINT else signal.SIGTERM)
            passed = len(received)
            time.sleep(0.05)
            ended = [process for process in running if process.poll() is not None]
            for process in ended:
                trial, worker = running.pop(process)
                free.append(worker)
                yield trial, process.returncode
    finally:
        for process in running:  # only after an exception
            process.kill()


def combinations(command: Command) -> str:
    """Return the settings of a sweep's runs as text, one run per line."""
    check_varied(varied_keys(command))
    lines = []
    for arguments, _ in composed(command):
        kept = [argument for argument in arguments if key_of(argument) not in LAUNCH]
        lines.append(shlex.join(kept))
    return "\n".join(lines)


def composed(command: Command) -> list[tuple[list[str], Config]]:
    """Return the arguments and the configuration of each run of a sweep; raises if a value is wrong."""
    runs = command.runs()
    configs = []
    with Progress("checking the combinations", len(runs)) as progress:
        for arguments in runs:
            configs.append((arguments, compose(arguments)))
            progress.update(1)
    return configs


def begin_sweep(command: Command) -> int:
    """Check all trials of the sweep that `command` describes, then run it and return its exit status."""
    if "debug" in command.arguments:
        raise InputError("debug: only works for one run, without -m")
    runs = composed(command)
    varied = varied_keys(command)
    _, first = runs[0]
    name = first.name or sweep_name(command.arguments.values())
    directory = check_sweep(name, varied, first.resume)
    trials = []
    for arguments, config in runs:
        trial = make_trial(name, varied, arguments)
        if has_finished(trial.run, config):
            trial.outcome = "finished"
        trials.append(trial)
    hashes = check_inputs(config for _, config in runs)  # of the texts
    for trial, sha256 in zip(trials, hashes, strict=True):
        check_text(trial, sha256)
    directory.mkdir(parents=True, exist_ok=True)
    run_lock.lock(directory)
    by_name = {trial.name: trial for trial in trials}  # equal settings are one trial
    sweep = Sweep(name, len(by_name), by_name)
    return run_sweep(sweep, first.workers)
