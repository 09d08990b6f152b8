"""Name the trials of a sweep, make their commands and check their inputs."""

import hashlib
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from base import run_directory
from base.errors import InputError
from conf.hydra_grammar import parse
from conf.keys import HOW
from conf.merge import changed, merge_started, read_config
from conf.schema import Config
from training.devices import rows_per_device

TRAIN = Path(__file__).parents[1] / "train.py"
MAX_NAME = 100  # characters of a trial's name


@dataclass(frozen=True)
class Trial:
    """One run of a sweep or search."""

    sweep: str  # name of the sweep or search
    name: str  # name within the sweep
    overrides: tuple[str, ...]  # the settings as typed, such as `optim.lr=0.01`
    varied: Mapping[str, str]  # values of the keys that differ between trials, by key
    number: int | None = None  # number in the study of a search; None in a sweep

    @property
    def directory(self) -> Path:
        """Return the run directory."""
        return run_directory.RUNS / self.sweep / self.name

    @property
    def command(self) -> list[str]:
        """Return the command that starts or resumes the trial."""
        return [sys.executable, str(TRAIN), *self.overrides, f"name={self.sweep}/{self.name}", "resume=auto"]


def sweep_name(arguments: Iterable[str]) -> str:
    """Return the default name of a sweep: a hash of the settings, the same in any order."""
    settings = sorted(argument for argument in arguments if group(argument) not in HOW)
    return f"sweep-{_hash(settings)}"


def trial_name(varied: Mapping[str, str]) -> str:
    """Name a trial by its varied settings; add a hash if the name is too long or unsafe for a file system."""
    parts = [f"{key}={value}" for key, value in varied.items()]
    safe = (re.sub(r"[^\w.=+-]+", "-", re.sub(r"[][{}()'\"]", "", part), flags=re.ASCII).strip("-.") for part in parts)
    name = ",".join(safe)
    if name == ",".join(parts) and len(name) <= MAX_NAME:
        return name
    return f"{name[:MAX_NAME]}_{_hash(parts)}"


def group(argument: str) -> str:
    """Return the first part of a key, such as `launcher` of `+launcher.qos=x`."""
    return re.split("[.=]", argument.lstrip("+"), maxsplit=1)[0]


def _hash(parts: Iterable[str]) -> str:
    return hashlib.sha256("\0".join(parts).encode("utf-8", "surrogateescape")).hexdigest()[:6]


def varied_keys(arguments: Iterable[str]) -> list[str]:
    """Return the keys that were typed with several values; if there are none, all typed settings of the run."""
    parsed = parse(list(arguments))
    several = [override.get_key_element() for override in parsed if override.is_sweep_override()]
    return several or [key for override in parsed if group(key := override.get_key_element()) not in HOW]


def make_trial(sweep: str, varied: Iterable[str], settings: Iterable[str]) -> Trial:
    """Make a trial with these settings, named by its varied keys in alphabetical order."""
    values = dict(setting.partition("=")[::2] for setting in settings)
    differing = {key: values[key] for key in varied}
    own = tuple(setting for setting in settings if group(setting) not in ("workers", "launcher"))
    return Trial(sweep, trial_name(dict(sorted(differing.items()))), own, differing)


def has_finished(trial: Trial, config: Config, keys: list[str]) -> bool:
    """Whether an earlier command has finished a trial; raise an `InputError` if it had other settings."""
    if not (trial.directory / "config.yaml").exists():
        return False
    old = read_config(trial.directory)
    if differing := changed(old, config, keys):
        raise InputError(f"{trial.directory}: is a run with other settings; use another name=…: {'; '.join(differing)}")
    finished = run_directory.summary_of(trial.directory).get("status") == "finished"
    return finished and (config.minutes is not None or config.trainer.max_steps <= old.trainer.max_steps)


@dataclass(frozen=True)
class Outcome:
    """How a trial has ended."""

    status: str  # as in summary.json, `failed` for a failed process, or `interrupted` for a stopped one
    reason: str = ""  # why the trial failed, in one line


# Runs the trials and calls a function with the outcome of each; returns the signal that stopped them, or None.
Runner = Callable[[Iterator[Trial], Callable[[Trial, Outcome], None]], int | None]


def check_inputs(config: Config, keys: Sequence[str] = ()) -> str | None:
    """Check the text, the batch size and the model of `init_from` of a run whose `keys` were typed.

    Return the fingerprint of the text, or None with `init_from`: the context, which it depends on, may be that model's.
    """
    from data.open_text import open_text
    from data.sources import open_corpus

    if isinstance(config.trainer.devices, int):
        rows_per_device(config, config.trainer.devices)
    if config.init_from is not None:
        from gpt import model_file

        model, _, meta = model_file.read(run_directory.find_model(config.init_from))
        merge_started(config, list(keys), vars(model), meta["vocabulary"]["kind"])
        open_corpus(config.data)
        return None
    return open_text(config.data, config.model.context).fingerprint
