"""Run a sweep (`-m`): check all combinations, then train each in a process of its own and compare the results."""

import hashlib
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
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
from sweeps.table import Table, as_text, compare_runs, write_csv
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
    # by key, in alphabetical order, the printable values that differ between trials
    varied: dict[str, str]
    outcome: str | None = None  # how it ended in this or an earlier command, such as `finished`

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
    sweep: str, varied: Iterable[str], settings: Iterable[str], name: str = ""
) -> Trial:
    """Return a trial with these settings, `key=value`, of which the keys `varied` differ between the trials."""
    values = {key_of(setting): setting for setting in settings}
    # any order of the keys gives the same name
    differing = {key: values[key].partition("=")[2] for key in sorted(varied)}
    # A trial has a name and `resume` of its own, from `Trial.command`.
    of_sweep = ("name", "resume", "workers")
    arguments = [setting for key, setting in values.items() if key not in of_sweep]
    run = Run(RUNS / sweep / (name or trial_name(differing)))
    return Trial(run, arguments, {key: printable(value) for key, value in differing.items()})


def gpus_for(workers: int) -> list[str | None]:
    """Return the id of the GPU of each of several workers; None where they have at most one GPU."""
    if workers == 1:
        return [None]
    import torch  # takes a second, which is little beside a sweep

    num_gpus = torch.cuda.device_count()
    if num_gpus < 2:
        return [None] * workers
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    ids = visible.split(",") if visible else list(map(str, range(num_gpus)))
    return [ids[worker % num_gpus] for worker in range(workers)]


def start(trial: Trial, workers: int, gpu: str | None) -> subprocess.Popen:
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


def ending(run: Run, status: int, stopped: bool) -> tuple[str, str]:
    """Return how a trial has ended, such as `failed` or its status in summary.json, and a log line about it.

    `status` is the exit status of its process, and `stopped` says whether a signal has stopped the
    sweep. Of a trial that has failed, summary.json says so, because its process may have had no time.
    """
    summary = run.summary
    if status and not stopped:
        console = run.directory / "console.log"
        lines = console.read_text("utf-8", "replace").strip().split("\n")
        reason = one_line(lines[-1]).removeprefix("train.py: ") or f"exit status {status}"
        if status < 0:
            reason = f"killed by {signal.Signals(-status).name}"
        if summary.status in (None, "running"):
            run.write_summary(replace(summary, status="failed"))
        return "failed", f"failed: {reason} ({console})"
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
    keys = several or [key for key in command.arguments if key not in LAUNCH | VERBATIM]
    if not keys:
        raise InputError("-m: needs several values of a key, such as optim.lr=3e-3,6e-3")
    return keys


def check_sweep(name: str, varied: list[str], resume: str | None) -> Path:
    """Return the directory of a sweep after checking that the sweep can be started."""
    if ranks.launched():
        train = command("python", "train.py")
        raise InputError(
            f"-m: a sweep is one process; start it with {train}, in SLURM with srun --ntasks=1"
        )
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
    theirs = by_key(stored)
    trained = ("model.", "data.tokenizer") if config.init_from else ()
    differing = []
    for key, value in by_key(config).items():
        before = theirs[key]
        is_free = KEYS[key].on_resume == "free" and key not in (*PATHS, "trainer.max_steps")
        if is_free or value == before or key in config.allow or key.startswith(trained):
            continue
        if key == "trainer.max_steps" and "auto" not in (value, before) and value > before:
            continue
        has_auto = value == "auto"
        if key in PLUGINS:
            has_auto = any("auto" in options.values() for options in value.values())
        if has_auto and key not in PATHS:  # a file may be called auto
            continue
        differing.append(difference(key, value, before))
    return differing


def check_inputs(configs: Iterable[Config]) -> list[str]:
    """Check the text, batch size and initial model of each run, and return the SHA-256 of each run's text."""
    from data.text import open_text

    texts: dict[str, str] = {}  # by what is checked, because reading a text is slow
    hashes = []
    for config in configs:
        devices = config.trainer.devices
        # None, or the initial model and the settings that must fit it
        initial = config.init_from and (config.init_from, config.model)
        inputs = repr((config.data, config.model.context, config.trainer, initial))
        if inputs not in texts:
            config.data.rows(number_of(devices))  # raises if the batch cannot be shared out
            if config.workers > 1 and devices not in ("auto", 1):
                raise InputError(
                    f"trainer.devices={spell(devices)}: needs workers=1, not {config.workers}"
                )
            # of the initial model's vocabulary
            extra_chars = load_init_model(config).extra_chars if config.init_from else ""
            text = open_text(config.data, config.model.context, extra_chars)
            texts[inputs] = text.sha256
        hashes.append(texts[inputs])
    return hashes


def run_sweep(
    directory: Path,
    trials: list[Trial],
    proposals: Iterator[Trial],
    total: int,
    workers: int,
    tell: Callable[[Trial], object] | None = None,
) -> int:
    """Run the trials that `proposals` yields, at most `workers` at the same time, and log and compare the results.

    `proposals` is asked for a trial when a worker is free, and adds new ones to `trials`; `tell` is
    called with each trial that has ended. After a signal, running trials are stopped and no trials
    start. Returns 128 + N if the signal N has stopped the sweep, otherwise 0.
    """

    def compare() -> Table:
        compared = compare_runs(Run(directory).trials, {each.run: each.varied for each in trials})
        write_csv(directory, compared)
        return compared

    def label(trial: Trial) -> str:
        # without the name, which may be a number or a hash
        settings = ",".join(f"{key}={value}" for key, value in trial.varied.items())
        return f"trial {trials.index(trial) + 1}/{total}  {settings}"

    log.info(
        f"sweep      {directory}: {count(total, 'trial')}; output: {directory}/TRIAL/console.log"
    )
    for trial in trials:
        if trial.outcome:
            log.info(f"{label(trial)}: {trial.outcome} before")
    compared = compare()
    received: list[int] = []
    for stop in slurm.stops():  # not restored: the process ends with the sweep
        signal.signal(stop, lambda number, _: received.append(number))
    passed = 0  # number of signals that were passed on to the trials
    free = gpus_for(workers)  # the GPU of each worker that has no trial
    running = dict[subprocess.Popen, tuple[Trial, str | None]]()
    try:
        while True:
            while free and not received:
                proposed = next(proposals, None)
                if proposed is None:
                    break
                log.info(label(proposed))
                gpu = free.pop(0)
                running[start(proposed, workers, gpu)] = proposed, gpu
            if not running:
                break
            for number in received[passed:]:
                for process in running:  # a trial exits at once on its second SIGINT
                    process.send_signal(number if number == signal.SIGINT else signal.SIGTERM)
            passed = len(received)
            time.sleep(0.05)
            ended = [process for process in running if process.poll() is not None]
            for process in ended:
                trial, gpu = running.pop(process)
                free.append(gpu)
                trial.outcome, line = ending(trial.run, process.returncode, bool(received))
                if tell:
                    tell(trial)
                compared = compare()
                log.info(f"{label(trial)}: {line}")
    finally:
        for process in running:  # only after an exception
            process.kill()
    log.info(f"\n{as_text(compared)}\n")
    log.info(watch(directory))
    log.info(f"table      {directory / 'sweep.csv'}")
    if not received:
        return 0
    if slurm.time_is_up(received[0]):
        slurm.requeue()
    else:
        log.info("stopped    the same command continues")
    return 128 + received[0]


def combinations(command: Command) -> str:
    """Return the settings of a sweep's runs as text, one run per line."""
    varied_keys(command)  # raises if there is nothing to vary
    lines = []
    for arguments, _ in composed(command):
        lines.append(shlex.join(text for text in arguments if key_of(text) not in LAUNCH))
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
        trials.append(trial)
        if not trial.run.config.exists():
            continue
        stored = read_config(trial.run.directory)
        differing = changed(stored, config)
        if differing:
            raise InputError(
                f"{trial.run}: is a run with other settings; use another name=…: {'; '.join(differing)}"
            )
        steps = config.trainer.max_steps
        long_enough = steps == "auto" or steps <= stored.trainer.max_steps
        if trial.run.summary.status == "finished" and long_enough:
            trial.outcome = "finished"
    hashes = check_inputs(config for _, config in runs)  # of the texts
    for trial, sha256 in zip(trials, hashes, strict=True):
        if trial.outcome and trial.run.summary.text_sha256 not in (None, sha256):
            raise InputError(
                f"{trial.run}: its text has changed since it was trained; use another name=…"
            )
    trials = list({trial.run: trial for trial in trials}.values())  # equal settings are one trial
    directory.mkdir(parents=True, exist_ok=True)
    run_lock.lock(directory)
    waiting = [trial for trial in trials if trial.outcome is None]
    status = run_sweep(directory, trials, iter(waiting), len(trials), first.workers)
    failed = [trial.run.directory.name for trial in trials if trial.outcome == "failed"]
    if status == 0 and failed:
        log.error(f"train.py: {len(failed)} of {len(trials)} trials failed: {'; '.join(failed)}")
        return 1
    return status
