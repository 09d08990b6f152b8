"""One trial of a sweep: its name, its command, its process and its outcome."""

import hashlib
import re
import signal
import subprocess
import sys
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from base.errors import one_line, printable
from base.jobs.run_directory import RUNS, Run
from base.processes import cores
from base.progress import clock
from base.ranks import child_environment
from conf.keys import FOLDERS, is_launch

TRAIN = Path(__file__).parents[1] / "train.py"
MAX_NAME = 100  # maximum characters of a trial's name


@dataclass(frozen=True)
class Trial:
    """One run of a sweep."""

    sweep: str  # name of the sweep
    name: str  # name within the sweep
    overrides: tuple[str, ...]  # the settings as on the command line, such as `optim.lr=0.01`
    varied: Mapping[str, str]  # by key, the printable values that differ between trials

    @property
    def directory(self) -> Path:
        return RUNS / self.sweep / self.name

    @property
    def title(self) -> str:
        """The name of the trial in log lines: `name` or, for `trial-N`, the settings that differ between trials."""
        if not self.name.startswith("trial-"):
            return self.name
        return ",".join(f"{key}={value}" for key, value in sorted(self.varied.items()))

    @property
    def command(self) -> list[str]:
        """The command that starts the trial or, if the trial has begun, resumes it."""
        presets = [f"--config-dir={folder}" for folder in FOLDERS]
        return [sys.executable, str(TRAIN), *presets, *self.overrides, f"name={self.sweep}/{self.name}", "resume=auto"]


def sweep_name(arguments: Iterable[str], kind: str = "sweep") -> str:
    """Return the default name of a sweep: `kind` and a hash of its settings, in any order."""
    return f"{kind}-{_hash(sorted(each for each in arguments if not is_launch(each.partition('=')[0])))}"


def trial_name(varied: Mapping[str, str]) -> str:
    """Return the varied settings as a name; if too long or unsafe for a file system, it is changed and has a hash."""
    parts = [f"{key}={value}" for key, value in varied.items()]
    safe = (re.sub(r"[][{}()'\"]", "", printable(part)) for part in parts)
    name = ",".join(re.sub(r"[^\w.=+-]+", "-", part, flags=re.ASCII).strip("-.") for part in safe)
    if name == ",".join(parts) and len(name) <= MAX_NAME:
        return name
    return f"{name[:MAX_NAME]}_{_hash(parts)}"


def _hash(parts: Iterable[str]) -> str:
    return hashlib.sha256("\0".join(parts).encode("utf-8", "surrogateescape")).hexdigest()[:6]


def make_trial(sweep: str, varied: Iterable[str], settings: Collection[str], name: str = "") -> Trial:
    """Return a trial with these settings, `key=value`, of which the keys `varied` differ between the trials."""
    values = dict(setting.partition("=")[::2] for setting in settings)
    differing = {key: values[key] for key in varied}
    own = tuple(f"{key}={value}" for key, value in values.items() if key not in ("name", "resume", "workers"))
    shown = {key: printable(value) for key, value in differing.items()}
    return Trial(sweep, name or trial_name(dict(sorted(differing.items()))), own, shown)


def start(trial: Trial, workers: int) -> subprocess.Popen:
    """Start the process of a trial with its share of the CPU cores among `workers`; it prints to console.log."""
    # Hide the SLURM job from the trial: only the sweep may requeue it, and the trial starts its own ranks.
    environment = {key: value for key, value in child_environment().items() if not key.startswith("SLURM_")}
    if workers > 1 and "OMP_NUM_THREADS" not in environment:
        environment["OMP_NUM_THREADS"] = str(max(1, cores() // workers))
    trial.directory.mkdir(parents=True, exist_ok=True)
    with open(trial.directory / "console.log", "ab") as console:
        return subprocess.Popen(
            trial.command,
            stdin=subprocess.DEVNULL,
            stdout=console,
            stderr=subprocess.STDOUT,
            env=environment,
            process_group=0,  # Ctrl-C in the terminal reaches the sweep only, which passes it on
        )


def ending(trial: Trial, status: int, stopped: bool) -> tuple[str, str]:
    """Return how a trial has ended, such as `failed` or its status in summary.json, and a log line about it.

    `status` is the exit status of its process, and `stopped` says whether a signal has stopped the sweep.
    """
    console = trial.directory / "console.log"
    if status and not stopped:
        lines = console.read_text("utf-8", "replace").split("\n")
        last = next((one_line(line) for line in reversed(lines) if line.strip()), f"exit status {status}")
        reason = f"killed by {signal.Signals(-status).name}" if status < 0 else last.removeprefix("train.py: ")
        return "failed", f"failed: {reason} ({console})"
    summary = Run(trial.directory).summary
    how = "interrupted" if status else str(summary.status)
    loss, bits, seconds = summary.val_loss, summary.val_bpc, summary.seconds
    if loss is None or seconds is None:
        return how, how
    return how, f"{how} in {clock(seconds)}, validation loss {loss:.4f}, {bits:.4f} bits per character"
