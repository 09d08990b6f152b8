"""Many runs: the trials of a sweep, each a process of its own, and the table of what came of them.

`runs/<sweep>/` holds one run directory for each trial, and `sweep.csv`. What is here starts, stops and counts
processes; it loads neither torch nor the text.
"""

import csv
import hashlib
import io
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser

from base.files import write_text
from conf.fields import InputError, clock, one_line, shown
from conf.overrides import HOW
from conf.progress import Progress, hidden
from conf.resume import changed, read_config
from conf.schema import Config
from gpt import job, runs

TRAIN = Path(__file__).parents[1] / "train.py"
RESULTS = ("status", "val_loss", "val_bpc", "test_loss", "steps", "seconds", "parameters", "directory")
LONGEST = 100  # characters of a trial's name
SHOWN = 20  # trials on the leaderboard
STOPS = ("SIGINT", "SIGTERM", "SIGUSR1", "SIGUSR2")  # the last is submitit's


@dataclass(frozen=True)
class Trial:
    """One run of a sweep.

    Attributes:
        sweep: the sweep's name.
        name: the trial's own.
        overrides: its settings as they are typed.
        varied: those that set it apart from other trials, value by key.
        number: in the study of a search; None in a sweep.
    """

    sweep: str
    name: str
    overrides: tuple[str, ...]
    varied: Mapping[str, str]
    number: int | None = None

    @property
    def directory(self) -> Path:
        """Its run directory."""
        return runs.RUNS / self.sweep / self.name

    @property
    def command(self) -> list[str]:
        """The command that starts it or goes on with it."""
        return [sys.executable, str(TRAIN), *self.overrides, f"name={self.sweep}/{self.name}", "resume=auto"]


def sweep_name(arguments: Iterable[str]) -> str:
    """The name of a sweep that was given none: equal for equal settings, in whatever order they are typed."""
    settings = sorted(argument for argument in arguments if _group(argument) not in HOW)
    return f"sweep-{_hash(settings)}"


def trial_name(varied: Mapping[str, str]) -> str:
    """A name for a directory that says what sets a trial apart, with a hash where not all of it fits into one."""
    parts = [f"{key}={value}" for key, value in varied.items()]
    safe = (re.sub(r"[^\w.=+-]+", "-", re.sub(r"[][{}()'\"]", "", part), flags=re.ASCII).strip("-.") for part in parts)
    name = ",".join(safe)
    if name == ",".join(parts) and len(name) <= LONGEST:
        return name
    return f"{name[:LONGEST]}_{_hash(parts)}"


def _group(argument: str) -> str:
    """`launcher` of `+launcher.qos=x`."""
    return re.split("[.=]", argument.lstrip("+"), maxsplit=1)[0]


def _hash(parts: Iterable[str]) -> str:
    return hashlib.sha256("\0".join(parts).encode("utf-8", "surrogateescape")).hexdigest()[:6]


def varied_keys(arguments: Iterable[str]) -> list[str]:
    """The keys of typed overrides that have several values, as they are typed; all of them where none has."""
    parsed = OverridesParser.create().parse_overrides(list(arguments))
    several = [each.get_key_element() for each in parsed if each.is_sweep_override()]
    return several or [key for each in parsed if _group(key := each.get_key_element()) not in HOW]


def make_trial(sweep: str, varied: Iterable[str], settings: Iterable[str]) -> Trial:
    """Make the trial of a sweep that has these settings; the varied keys set it apart from others."""
    values = dict(setting.partition("=")[::2] for setting in settings)
    apart = {key: values[key] for key in varied}
    own = tuple(setting for setting in settings if _group(setting) not in ("workers", "launcher"))
    return Trial(sweep, trial_name(dict(sorted(apart.items()))), own, apart)  # in whatever order they are typed


def has_finished(trial: Trial, config: Config, keys: list[str]) -> bool:
    """Whether a trial has finished, in an earlier call.

    Raises:
        InputError: it is there with other settings, which are named.
    """
    if not (trial.directory / "config.yaml").exists():
        return False
    old = read_config(trial.directory)
    if differing := changed(old, config, keys):
        raise InputError(f"{trial.directory}: is another run; name=… begins another sweep: {'; '.join(differing)}")
    finished = runs.summary_of(trial.directory).get("status") == "finished"
    return finished and (config.minutes is not None or config.trainer.max_steps <= old.trainer.max_steps)


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
        if _group(key) in HOW:
            raise InputError(f"{key}: is the same for all trials of a sweep")
    given = [f"{key}={shown(value)}" for key, value in literals.items() if key not in HOW]
    sweep = literals.get("name") or sweep_name([*arguments, *given])
    directory = runs.RUNS / sweep
    if "/" in sweep:
        raise InputError(f"name={sweep}: the name of a sweep has no slash")
    if (directory / "config.yaml").exists() or (os.path.lexists(directory) and not directory.is_dir()):
        raise InputError(f"name={sweep}: {directory} is no sweep; another name begins one")
    return sweep, given


@dataclass(frozen=True)
class Outcome:
    """How a trial has ended.

    Attributes:
        status: as in summary.json; `failed` where the process failed, `interrupted` where it was asked to stop.
        reason: of a failure, in one line.
        by_settings: whether it failed for its settings, and would again.
    """

    status: str
    reason: str = ""
    by_settings: bool = False


Runner = Callable[[Iterator[Trial], Callable[[Trial, Outcome], None]], int | None]


def start(trial: Trial, workers: int = 1) -> subprocess.Popen:
    """Start the process of a trial, which is ended with this one. All that it prints is in its `console.log`.

    The CPU's threads are divided among `workers` trials.
    """
    # To SLURM the sweep is the job: it asks for more time, and a trial starts its own further processes.
    environment = {key: value for key, value in os.environ.items() if not key.startswith("SLURM_")}
    environment["CHARGPT_SWEEP"] = str(os.getpid())
    if trial.number is not None:
        environment["CHARGPT_TRIAL"] = str(trial.number)
    if workers > 1:
        environment.setdefault("OMP_NUM_THREADS", str(max(1, cpus() // workers)))
    trial.directory.mkdir(parents=True, exist_ok=True)
    with open(trial.directory / "console.log", "ab") as console:
        return subprocess.Popen(
            trial.command,
            stdin=subprocess.DEVNULL,
            stdout=console,
            stderr=subprocess.STDOUT,
            env=environment,
            process_group=0,  # Ctrl-C in a terminal is for this process, which passes it on
        )


def cpus() -> int:
    """How many CPUs this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def outcome(trial: Trial, status: int, stopped: bool) -> Outcome:
    """How a trial has ended: by the exit status of its process and whether it was asked to stop."""
    if status == 0:
        return Outcome(str(runs.summary_of(trial.directory).get("status")))
    if stopped:
        return Outcome("interrupted")
    if status < 0:
        return Outcome("failed", f"killed by {signal.Signals(-status).name}")
    lines = (trial.directory / "console.log").read_text("utf-8", "replace").split("\n")
    said = next((one_line(line) for line in reversed(lines) if line.strip()), f"exit status {status}")
    refused = status == 2 and not list(trial.directory.glob("checkpoints/*.ckpt"))  # else it could be run before
    diverged = runs.summary_of(trial.directory).get("status") == "diverged"
    return Outcome("failed", said.removeprefix("train.py: "), by_settings=refused or diverged)


def run_trials(trials: Iterator[Trial], workers: int, ended: Callable[[Trial, Outcome], None]) -> int | None:
    """Run trials to their end, so many at a time; a signal stops those that run and starts no more.

    Args:
        trials: asked for the next one only when a process is free for it, so that it may depend on what has ended. One
            that another process has in hand is left to that.
        workers: how many at a time.
        ended: told of each end.

    Returns:
        The signal that was received, if any.
    """
    running: dict[subprocess.Popen, tuple[Trial, Any]] = {}
    passed = 0
    with receiving() as received:
        try:
            while True:
                while not received and len(running) < workers and (trial := next(trials, None)):
                    trial.directory.mkdir(parents=True, exist_ok=True)
                    if claim := runs.claim(trial.directory):
                        running[start(trial, workers)] = trial, claim
                    else:
                        say(f"{trial.directory}: another process has it in hand")
                if not running:
                    return received[0] if received else None
                for number in received[passed:]:
                    for process in running:  # a second Ctrl-C means more than a first
                        process.send_signal(number if number == signal.SIGINT else signal.SIGTERM)
                passed = len(received)
                time.sleep(0.05)
                for process in [each for each in running if each.poll() is not None]:
                    trial, claim = running.pop(process)
                    result = outcome(trial, process.returncode, bool(received))
                    claim.release()
                    ended(trial, result)
        finally:
            for process in running:  # after an error here
                process.kill()


@contextmanager
def receiving() -> Iterator[list[int]]:
    """Take over the signals that stop a sweep; those that come are in the list."""
    received: list[int] = []
    numbers = [getattr(signal, name) for name in STOPS if hasattr(signal, name)]
    before = {number: signal.signal(number, lambda number, _: received.append(number)) for number in numbers}
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def rows(sweep: str, trials: Iterable[Trial], outcomes: Mapping[str, Outcome]) -> list[dict[str, str]]:
    """The table of a sweep, the best trial first: those of this command, and those that are there from before."""
    directory = runs.RUNS / sweep
    try:
        with open(directory / "sweep.csv", encoding="utf-8", newline="") as file:
            before = [row for row in csv.DictReader(file) if Path(row.get("directory", "")).is_dir()]
    except OSError:
        before = []
    varied = {row["directory"]: {key: value for key, value in row.items() if key not in RESULTS} for row in before}
    varied |= {str(trial.directory): dict(trial.varied) for trial in trials}
    table = []
    for path, settings in varied.items():
        summary = runs.summary_of(Path(path))
        ended = outcomes.get(Path(path).name)
        status = ended.status if ended else summary.get("status", "waiting")
        results = {key: "" if summary.get(key) is None else str(summary[key]) for key in RESULTS}
        table.append(settings | results | {"status": str(status), "directory": path})
    return sorted(table, key=lambda row: runs.rank_of(Path(row["directory"])))


def write_table(sweep: str, table: list[dict[str, str]]) -> None:
    """Write `sweep.csv`."""
    settings = dict.fromkeys(key for row in table for key in row if key not in RESULTS)
    text = io.StringIO()
    writer = csv.DictWriter(text, [*settings, *RESULTS], restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(table)
    write_text(runs.RUNS / sweep / "sweep.csv", text.getvalue())


def leaderboard(table: list[dict[str, str]]) -> str:
    """The table for people: the best trials, with what sets them apart and what came of them."""
    settings = list(dict.fromkeys(key for row in table for key in row if key not in RESULTS))
    lines = [[*settings, "loss", "bpc", "test loss", "parameters", "time"]]
    for row in table[:SHOWN]:
        losses = [f"{float(row[key]):.4f}" if row[key] else "" for key in ("val_loss", "val_bpc", "test_loss")]
        if not losses[0]:
            losses[0] = row["status"]
        weights = f"{int(row['parameters']):,}" if row["parameters"] else ""
        seconds = clock(float(row["seconds"])) if row["seconds"] else ""
        lines.append([*(row.get(key, "") for key in settings), *losses, weights, seconds])
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    shown = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines]
    more = [f"and {len(table) - SHOWN} more"] if len(table) > SHOWN else []
    return "\n".join([*shown, *more])


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
    table = runs.RUNS / sweep / "sweep.csv"
    outcomes: dict[str, Outcome] = {}
    number = {trial.name: f"trial {place}/{len(trials)}" for place, trial in enumerate(trials, start=1)}
    before = {trial.name: runs.summary_of(trial.directory) for trial in trials}

    def unfinished() -> Iterator[Trial]:
        for trial in trials:
            now = runs.summary_of(trial.directory)  # of another command with the same sweep, too
            done = trial.name in finished or (now.get("status") == "finished" and now != before[trial.name])
            say(f"{number[trial.name]}  {trial.name}{': finished before' * done}")
            if not done:
                yield trial

    def ended(trial: Trial, result: Outcome) -> None:
        outcomes[trial.name] = result
        write_table(sweep, rows(sweep, trials, outcomes))
        progress.update(1)
        say(f"{number[trial.name]}  {describe(trial, result)}")

    say(f"sweep      {runs.RUNS / sweep}: {len(trials)} trials; what each says is in {table.parent}/TRIAL/console.log")
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


def conclude(results: list[dict[str, str]], failed: list[str], count: int, table: Path, received: int | None) -> int:
    """Show what came of several trials.

    Returns:
        The exit status: 0, 1 where a trial has failed, 128 and its number for a signal.
    """
    if results:
        say(f"\n{leaderboard(results)}\n")
        if results[0]["val_loss"]:
            say(f"more text  python sample.py {shlex.quote(results[0]['directory'])}")
        say(f"watch      tensorboard --logdir {shlex.quote(str(table.parent))}")
    say(f"table      {table}")
    if received is not None:
        if received == getattr(signal, "SIGUSR1", None) and "SLURM_JOB_ID" in os.environ:
            job.requeue()
        else:
            say("stopped    the same command goes on")
        return 128 + received
    if failed:
        print(f"train.py: {len(failed)} of {count} trials failed: {'; '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


def say(line: str) -> None:
    """Print a line, for as long as somebody reads."""
    try:
        with hidden():
            print(line, flush=True)
    except BrokenPipeError:  # such as `head`, which has seen enough; the trials go on
        sys.stdout = open(os.devnull, "w")


def describe(trial: Trial, result: Outcome) -> str:
    """How a trial has ended, in one line."""
    if result.status == "failed":
        return f"failed: {result.reason} ({trial.directory / 'console.log'})"
    summary = runs.summary_of(trial.directory)
    if summary.get("val_loss") is None:
        return result.status
    loss, bits = summary["val_loss"], summary["val_bpc"]
    return f"{result.status} in {clock(summary['seconds'])}, validation loss {loss:.4f}, {bits:.4f} bits per character"
