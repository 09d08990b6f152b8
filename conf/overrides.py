"""Check what was typed after `train.py` before anything heavy is loaded."""

import itertools
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hydra.errors import HydraException

from base.errors import InputError, nearest, one_line
from base.options import spell
from conf.groups import add_folder, choice_values, groups
from conf.hydra_grammar import Override, OverrideType, Sweep, ValueType, parse
from conf.keys import ALIASES, KNOWN, LITERAL, PLUGGED, nearest_key
from conf.plugins import options
from conf.schema import REFUSED, SearchConfig

SHOW, PARTS = ("-c", "--cfg"), ("job", "hydra", "all")
CONFIG_DIR = ("-cd", "--config-dir")
FLAGS = ("-m", "--multirun", "-h", "--help", "--help=all", *SHOW, "--resolve", "--config-dir", "--runs", "--version")
HYDRA = (
    "-cn", "--config-name", "-cp", "--config-path", "-i", "--info", "-p", "--package", "-r", "--run", "--hydra-help",
)  # fmt: skip
MAX_VALUES = 10_000  # values of one key in a sweep


@dataclass(frozen=True)
class Command:
    """What was typed after `train.py`."""

    overrides: list[str]  # what Hydra reads
    literals: dict[str, str | None]  # by key, the values that Hydra does not read: see `split_literals`
    sweep: bool  # -m
    search: SearchConfig | None  # hparams_search
    part: str  # the argument of --cfg; empty without --cfg
    resolve: bool  # --resolve


def read_command(arguments: list[str]) -> Command:
    """Read a command line and check its flags and keys; the values of a search may be ranges."""
    flags, typed, part = set(), [], ""
    search, others = take_search(take_config_dir(arguments))
    left = iter(others)
    for argument in left:
        flag, equals, value = argument.partition("=")
        if flag in SHOW:
            part = value if equals else next(left, "")
            if part not in PARTS:
                raise InputError(f"{flag} {part}: must be {flag} {', '.join(PARTS)}{nearest(part, PARTS)}")
        elif argument in FLAGS:
            flags.add(argument)
        elif flag in HYDRA:
            raise InputError(f"{flag}: train.py has no {flag}; --cfg job prints the settings, --help lists the flags")
        elif argument.startswith("-"):
            raise InputError(f"{argument}: no such flag{_as_setting(argument, others)}")
        else:
            typed.append(argument)
    overrides, literals = split_literals(typed)
    sweep = bool({"-m", "--multirun"} & flags)
    check_overrides(overrides, sweep, search is not None)
    if part and (sweep or search):
        raise InputError(f"--cfg={part}: shows the settings of one run; leave out -m and hparams_search")
    if "--resolve" in flags and not part:
        raise InputError("--resolve: goes with --cfg")
    return Command(overrides, literals, sweep, search, part, "--resolve" in flags)


def take_config_dir(arguments: list[str]) -> list[str]:
    """Add the folders of `--config-dir`; return the other arguments."""
    others, left = [], iter(arguments)
    for argument in left:
        flag, equals, value = argument.partition("=")
        if flag in CONFIG_DIR:
            add_folder(value if equals else next(left, ""))
        else:
            others.append(argument)
    return others


def _as_setting(flag: str, arguments: list[str]) -> str:
    """Suggest the setting that was typed as a flag, as in `--max-steps 10`, or the nearest flag."""
    name, equals, value = flag.lstrip("-").partition("=")
    name = name.replace("-", "_")
    after = arguments[arguments.index(flag) + 1 :][:1]
    if not equals:
        value = after[0] if after and "=" not in after[0] and not after[0].startswith("-") else "…"
    keys = [key for key in KNOWN if name in (key, key.rpartition(".")[2])]
    keys += [here for other, here in ALIASES.items() if name == other]
    if keys:
        return f"; settings have no dashes: {keys[0]}={value}"
    return f", must be one of {', '.join(FLAGS)}{nearest(flag, FLAGS)}"


def split_literals(arguments: list[str]) -> tuple[list[str], dict[str, str | None]]:
    """Return the arguments for Hydra, and by key the values that its grammar must not read, such as paths."""
    rest, literals = [], {}
    for argument in arguments:
        key, equals, value = argument.partition("=")
        if equals and key in LITERAL:
            literals[key] = None if value == "null" else value
        else:
            rest.append(argument)
    return rest, literals


def take_search(arguments: list[str]) -> tuple[SearchConfig | None, list[str]]:
    """Return the configuration of the typed search, or None, and the arguments that do not set its options."""
    own = [argument for argument in arguments if re.match(r"\+*hparams_search\b", argument)]
    others = [argument for argument in arguments if argument not in own]
    check_overrides(own)
    typed = {each.key_or_group: each.value() for each in parse(own)}
    choice = typed.pop("hparams_search", None)
    if choice is None:
        if typed:
            raise InputError(f"{next(iter(typed))}: goes with hparams_search=default")
        return None, others
    options = {key.partition(".")[2]: value for key, value in typed.items()}
    return SearchConfig(**choice_values("hparams_search", str(choice)) | options), others


def check_overrides(arguments: list[str], sweep: bool = False, search: bool = False) -> None:
    """Check the keys of overrides and the choices of groups; `Config` checks the values of other keys.

    With `sweep` (`-m`) a key may have several values, with `search` (`hparams_search=`) also an interval.
    """
    typed = {key.lstrip("+"): value for key, _, value in (argument.partition("=") for argument in arguments)}
    plugged = {"tensorboard"}.union(*(re.findall(r"\w+", typed.get(group, "")) for group in PLUGGED))
    if typed.get("minutes", "null") != "null" and "trainer.max_steps" in typed:
        raise InputError("minutes: chooses trainer.max_steps; give one of the two")
    for argument in arguments:
        group, _, rest = argument.partition("=")[0].lstrip("+").partition(".")
        name = rest.partition(".")[0]
        if group in PLUGGED and name and name not in plugged:
            raise InputError(f"{argument}: needs {group}={name}")
        if argument.startswith("=") or ("=" not in argument and not argument.startswith("~")):
            names = [*KNOWN, *groups()]
            near = "" if argument in KNOWN else nearest_key(argument, names)
            if os.path.exists(argument) and argument not in names:
                near = f"; to train on this text: data.path={argument}"
            elif "/" in argument or re.search(r"\.(txt|text|md|csv|jsonl?|gz|html?|tex|py)$", argument):
                near = f"; there is no file {argument} here; data.path=FILE trains on a text"
            raise InputError(f"{argument}: must be key=value, such as model.heads=8{near}")
        try:
            override = parse([argument])[0]
        except HydraException as error:
            key, reason = argument.partition("=")[0], one_line(str(error).split("\n")[0])
            quoted = f"'{key}=\"…\"'"
            raise InputError(f"{argument}: cannot read the value of {key} ({reason}); quote it: {quoted}") from None
        _check_override(override, argument, sweep or search, search)
    for experiment in groups()["experiment"] if "trainer.max_steps" in typed and "minutes" not in typed else []:
        minutes = choice_values("experiment", experiment).get("minutes")
        if minutes and experiment in re.findall(r"\w+", typed.get("experiment", "")):
            cause = f"experiment={experiment} has minutes={minutes}, which chooses it"
            raise InputError(f"trainer.max_steps: {cause}; add minutes=null to set the steps")


def _check_override(override: Override, argument: str, sweep: bool, search: bool) -> None:
    """Check a parsed override: what it does with its key, that the key exists, its number of values, its choices."""
    key, choices = override.key_or_group, groups()
    group, _, rest = key.partition(".")
    name = rest.partition(".")[0]
    if override.value_type == ValueType.GLOB_CHOICE_SWEEP:
        raise InputError(f"{argument}: list the values: {key}=a,b,c")
    if key.startswith("hydra"):
        raise InputError(f"{key}: is not accepted: runs are stored in runs/<name>, and Hydra writes no files")
    if override.type == OverrideType.DEL:
        raise InputError(f"{argument}: keys cannot be removed; give {key} a value")
    if key == "workers" and not sweep:
        raise InputError("workers: goes with -m or hparams_search=default, for several runs")
    if key not in choices:
        if group in PLUGGED:
            takes = options(group, name)
            if rest not in [f"{name}.{each}" for each in takes]:
                raise InputError(f"{key}: no such key; {group}={name} takes {', '.join(takes) or 'none'}")
        elif group == "trainer" and rest in REFUSED:
            raise InputError(f"{key}: is not accepted: {REFUSED[rest]}")
        elif key not in KNOWN:
            raise InputError(f"{key}: no such key{nearest_key(key, [*KNOWN, *choices])}")
        elif override.type == OverrideType.ADD:
            raise InputError(f"{argument}: {key} exists; write {key}=… without +")
    if override.value_type == ValueType.INTERVAL_SWEEP and not search:
        raise InputError(f"{argument}: an interval is for a search; write {key}=a,b,c or {key}=range(a,b)")
    if override.value_type not in (ValueType.ELEMENT, None) and not sweep:
        raise InputError(f"{argument}: several values for {key}; add -m to the command to try each")
    values = _values(override)
    for value in values if key in choices else ():
        several = isinstance(value, list) and key in ("callbacks", "logger")
        for choice in value if several else [value]:
            if choice not in choices[key]:
                text = spell(choice)
                hint = nearest(text, choices[key])
                if key == "data" and not hint and ("." in text or "/" in text or Path(text).exists()):
                    hint = f"; for your own text: data.path={text}"
                raise InputError(f"{key}={text}: must be one of {', '.join(choices[key])}{hint}")


def _values(override: Override) -> list[Any]:
    if override.is_sweep_override():
        values = override.sweep_iterator() if override.is_discrete_sweep() else iter(())
        given = list(itertools.islice(values, MAX_VALUES + 1))
        if len(given) > MAX_VALUES:
            raise InputError(f"{override.input_line}: more than {MAX_VALUES:,} values")
        if any(isinstance(each, Sweep) for each in given):
            raise InputError(f"{override.input_line}: give either single values or one range")
        if not given and override.is_discrete_sweep():
            raise InputError(f"{override.input_line}: has no values")
        return given
    return [override.value()]
