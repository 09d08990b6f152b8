"""Read the command line of `train.py`: the arguments of each run that it asks for, which `conf.compose` composes."""

import itertools
import math
import os
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

# Hydra has no documented function that expands the values of a sweep.
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from omegaconf.errors import OmegaConfBaseException

from base.command_line import Parser
from base.errors import InputError
from conf.keys import CONF, FOLDERS, KEYS, LAUNCH, SEARCH_KEYS, VERBATIM, groups, nearest_key
from conf.schema import MORE

FLAGS = (
    "-m", "--multirun", "-h", "--help", "--help=all", "-c", "--cfg", "-cd", "--config-dir", "--runs", "--version",
)  # fmt: skip
MAX_RUNS = 10_000  # runs of one sweep, so also the values of one key
# Group 1 is a value up to the next comma outside brackets, group 2 its quote, if it has one.
VALUE = re.compile(r"""((["']).*?\2(?=,)|(?:\[[^]]*\]|\([^)]*\)|\{[^}]*\}|[^,])*),""", re.DOTALL)
OF_PLUGINS = ("callbacks.", "logger.")  # the files of conf/ have the rest of these keys
# The option of a plug-in, but not its class, and not the plug-in as a whole: an interpolation
# such as ${oc.create:…} could bring a class.
PLUGIN_KEY = re.compile(r"\w+\.[\w-]+(\.(?!_target_\b)\w+)+", re.ASCII)


@dataclass(frozen=True)
class Command:
    """The command line of `train.py`. An argument is `key=value` or `group=preset`, as the user typed it."""

    arguments: dict[str, str]  # by key; of a key that is set twice, the last
    search: list[str]  # arguments of a search, such as hparams_search=default
    sweep: bool
    show: bool  # the settings, instead of training

    def runs(self) -> list[list[str]]:
        """Return the arguments of each run: in a sweep, of every combination, otherwise a single list."""
        if not self.sweep:
            return [list(self.arguments.values())]
        choices = list(map(values_of, self.arguments.values()))
        combinations = math.prod(map(len, choices))
        if combinations > MAX_RUNS:
            raise InputError(f"-m: {combinations:,} combinations; must be at most {MAX_RUNS:,}")
        return list(map(list, itertools.product(*choices)))


def key_of(argument: str) -> str:
    return argument.partition("=")[0]


def read_command(arguments: Sequence[str]) -> Command:
    """Parse the command line of train.py and check its flags and keys; `conf.compose` checks the values."""
    parser = Parser(prog="train.py", add_help=False, allow_abbrev=False)
    parser.add_argument("-m", "--multirun", action="store_true")
    parser.add_argument("-c", "--cfg", choices=["job"])
    parser.add_argument("-cd", "--config-dir", action="append", default=[])
    flags, others = parser.parse_known_args(arguments)
    # Before keys are checked, because they may be those of the presets in these folders.
    for name in flags.config_dir:
        folder = Path(name).absolute()
        files = list(folder.glob("*/*.yaml"))
        if not files:
            raise InputError(f"--config-dir {name}: has no preset, such as model/mine.yaml")
        for file in files:
            if (CONF / file.relative_to(folder)).exists():  # which Hydra would use instead
                raise InputError(f"{file}: conf/ has a preset of this name; rename the file")
        if folder not in FOLDERS:
            FOLDERS.append(folder)
    by_key = dict[str, str]()
    for argument in others:
        setting = checked(argument)
        by_key.pop(key_of(setting), None)  # so that it moves to the end
        by_key[key_of(setting)] = setting
    of_search = [key for key in by_key if key == "hparams_search" or key in SEARCH_KEYS]
    search = [by_key.pop(key) for key in of_search]
    if search and "hparams_search" not in of_search:
        raise InputError(f"{of_search[0]}: only works with hparams_search=default")
    if search and (flags.multirun or flags.cfg):
        raise InputError("hparams_search=: cannot be combined with -m or --cfg")
    if "workers" in by_key and not (search or flags.multirun):
        raise InputError("workers: only works with -m or hparams_search=default, for several runs")
    return Command(by_key, search, flags.multirun, flags.cfg is not None)


def checked(argument: str) -> str:
    """Return an argument after checking its form and its key; `+trainer.NAME` becomes `trainer.more.NAME`."""
    name, equals, value = argument.partition("=")
    if name.startswith("-"):
        near = nearest_key(name.lstrip("-"), FLAGS)
        raise InputError(
            f"{argument}: no such flag{near}; must be key=value or one of {', '.join(FLAGS)}"
        )
    key = name.lstrip("+")
    if key != name and key not in KEYS:
        key = re.sub(r"^trainer\.(?!more\.)", "trainer.more.", key)
    is_passed_on = key.startswith("trainer.more.")
    if is_passed_on:
        is_known = key.removeprefix("trainer.more.") in MORE
    else:
        is_known = key in (*groups(), *KEYS, *SEARCH_KEYS) or key.startswith(OF_PLUGINS)
    if not (equals and key):
        if argument == "=" or is_known:
            hint = "; without spaces around ="
        elif argument.endswith((".yaml", ".yml")):
            hint = "; for FOLDER/experiment/NAME.yaml: --config-dir=FOLDER experiment=NAME"
        elif "/" in argument or argument.endswith(".txt") or os.path.exists(argument):
            hint = f"; to train on a text: data.path={argument}"
        else:
            hint = nearest_key(argument)
        raise InputError(f"{argument}: must be key=value, such as model.heads=8{hint}")
    if key.endswith(" ") or not (value or key in VERBATIM):
        raise InputError(f"{argument}: must be key=value, without spaces around =")
    if not is_known:
        near = nearest_key(key)
        if is_passed_on:
            raise InputError(f"{argument}: is not accepted{near.replace('nearest:', 'use')}")
        raise InputError(f"{key}: no such key{near}")
    if key.startswith(OF_PLUGINS) and not PLUGIN_KEY.fullmatch(key):
        raise InputError(
            f"{argument}: must be the option of a preset, such as callbacks.ema.share=0.1"
        )
    return f"{key}={value}"


def values_of(argument: str) -> list[str]:
    """Return an argument for each value of one in a sweep: for `optim.lr=3e-3,6e-3` two.

    Commas separate paths and names, too, but an existing file, and what is in brackets or
    quotes, is a single value.
    """
    key, _, text = argument.partition("=")
    if key in VERBATIM:
        if key in LAUNCH or os.path.exists(os.path.expanduser(text)):
            return [argument]
        values = [value[1:-1] if quote else value for value, quote in VALUE.findall(f"{text},")]
        return [f"{key}={value}" for value in values]
    override = parse(argument)
    if not override.is_sweep_override():
        return [argument]
    try:
        # A range may be huge: one value too many is enough to refuse it.
        values = list(itertools.islice(override.sweep_string_iterator(), MAX_RUNS + 1))
    except (HydraException, ValueError):  # an interval, a glob, or values beside a range
        raise InputError(f"{argument}: write {key}=a,b,c or {key}=range(a,b)") from None
    if not 0 < len(values) <= MAX_RUNS:
        raise InputError(f"{argument}: must have 1 to {MAX_RUNS:,} values")
    return [f"{key}={value}" for value in values]


def check_classless(setting: str, value: object) -> None:
    """Raise an `InputError` if `value`, plain data, contains the key `_target_`, which names a class to create."""
    if isinstance(value, dict):
        if "_target_" in value:
            raise InputError(f"{setting}: only a file of conf/ or --config-dir names a class")
        value = list(value.values())
    if isinstance(value, list):
        for item in value:
            check_classless(setting, item)


def parse(argument: str) -> Override:
    """Parse the argument of a sweep or a search, which may have several values or a range, with Hydra's grammar."""
    try:
        (override,) = OverridesParser.create().parse_overrides([argument])
    except (HydraException, OmegaConfBaseException):
        key, _, value = argument.partition("=")
        quoted = shlex.quote(f'{key}="{value}"')
        raise InputError(
            f"{argument}: cannot be read as a value; put text in quotes: {quoted}"
        ) from None
    return override
