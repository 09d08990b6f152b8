"""Read the command line of `train.py` and check it before anything heavy, such as torch, is loaded."""

import itertools
import math
import os
import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# undocumented: of hydra-core 1.3
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, OverrideType, Quote, QuotedString, Sweep, ValueType
from hydra.errors import HydraException

from base.command_line import Parser
from base.errors import InputError, one_line, printable
from base.jobs.run_directory import RUNS
from base.options import spell, wrong_value
from conf.keys import KEYS, SEARCH_KEYS, add_folder, choice_values, groups, is_launch, is_literal, nearest_key
from conf.schema import PLUGINS, SearchConfig

FLAGS = (
    "-m", "--multirun", "-h", "--help", "--help=all", "-c", "--cfg", "-cd", "--config-dir", "--runs", "--version",
)  # fmt: skip
MAX_RUNS = 10_000  # runs of one sweep, so also the values of one key
# Group 1 is a value up to the next comma outside brackets, group 2 its quote, if it has one.
VALUE = re.compile(r"""((["']).*?\2(?=,)|(?:\[[^]]*\]|\([^)]*\)|\{[^}]*\}|[^,])*),""", re.DOTALL)


@dataclass(frozen=True)
class Setting:
    """A parsed `key=value` or `group=preset` from the command line."""

    key: str
    value: Any
    text: str  # key=value

    @property
    def is_group(self) -> bool:
        return self.key in groups()


@dataclass(frozen=True)
class Command:
    """The parsed command line of `train.py`. A key that is set twice has its last value."""

    overrides: dict[str, Override]  # by key, the arguments whose values Hydra parses
    literals: dict[str, list[Setting]]  # by key, those whose values it does not parse, such as paths
    sweep: bool = False
    search: SearchConfig | None = None
    show: bool = False  # the settings, instead of training

    def literal(self, key: str) -> str | None:
        return self.literals[key][0].value if key in self.literals else None

    def sets(self, group: str) -> bool:
        return any(key.partition(".")[0] == group for key in (*self.literals, *self.overrides))

    def runs(self) -> Iterator[list[Setting]]:
        """Yield the settings of each run: in a sweep, of every combination, otherwise a single list."""
        choices = [*map(settings, self.overrides.values()), *self.literals.values()]
        if (count := math.prod(map(len, choices))) > MAX_RUNS:
            raise InputError(f"-m: {count:,} combinations of values; must be at most {MAX_RUNS:,}")
        yield from map(list, itertools.product(*choices))


def parse(arguments: list[str]) -> list[Override]:
    return OverridesParser.create().parse_overrides(arguments)


def quoted(value: Any) -> str:
    """Return the string that Hydra's grammar reads as `value`."""
    if isinstance(value, str) and not re.fullmatch(r"[A-Za-z_][\w./-]*", value):
        return QuotedString(value, Quote.single).with_quotes()
    return spell(value)


def settings(override: Override) -> list[Setting]:
    """Return a `Setting` for each value of an override: in a sweep, `optim.lr=3e-3,6e-3` has two."""
    key = override.key_or_group
    if not override.is_sweep_override():
        return [Setting(key, override.value(), f"{key}={override.get_value_element_as_str()}")]
    texts = [f"{key}={text}" for text in override.sweep_string_iterator()]
    return [Setting(key, each.value(), text) for each, text in zip(parse(texts), texts, strict=True)]


def read_command(arguments: list[str]) -> Command:
    """Parse the command line of train.py and check its flags and keys; the values are checked by `conf.compose`."""
    parser = Parser(prog="train.py", add_help=False, allow_abbrev=False)
    parser.add_argument("-m", "--multirun", action="store_true")
    parser.add_argument("-c", "--cfg", choices=["job"])
    parser.add_argument("-cd", "--config-dir", action="append", default=[])
    for each in arguments:
        if each.startswith("-") and each.partition("=")[0] not in FLAGS:
            near = nearest_key(each.partition("=")[0].lstrip("-").replace("-", "_"), FLAGS)
            raise InputError(f"{each}: no such flag, must be one of {', '.join(FLAGS)}, or key=value{near}")
    flags, others = parser.parse_known_args(arguments)
    for folder in flags.config_dir:
        add_folder(folder)
    own = [each for each in others if re.match(r"\+*hparams_search\b", each)]
    search, sweep = read_search(own), flags.multirun
    if search and flags.cfg:
        raise InputError("--cfg=job: shows the settings of one run or the runs of a sweep, not of a search")
    rest, literals = list[str](), dict[str, list[Setting]]()
    for argument in (each for each in others if each not in own):
        key, equals, value = argument.partition("=")
        if not (equals and is_literal(key)):
            rest.append(argument)
            continue
        literals[key] = literal_settings(key, value, sweep or search is not None)
        if search and len(literals[key]) > 1:
            alone = f"must be one value in a search; quote a name with a comma: '{key}=\"…\"'"
            raise InputError(f"{printable(argument)}: {alone}")
    overrides = {each.key_or_group: each for each in parse_overrides(rest, sweep, search is not None)}
    return Command(overrides, literals, sweep, search, flags.cfg is not None)


def literal_settings(key: str, given: str, several: bool) -> list[Setting]:
    """Return a `Setting` for each value of a path or a name, which is used verbatim.

    There is only one unless `several` is true: then commas separate values, but the name of an existing file or run,
    and text in brackets or quotes, is a single value.
    """
    whole = not several or is_launch(key) or os.path.exists(os.path.expanduser(given)) or os.path.exists(RUNS / given)
    values = [given] if whole else [text[1:-1] if quote else text for text, quote in VALUE.findall(f"{given},")]
    if "" in values[1:] or values[0] == "" != given:
        quoted = shlex.quote(f'{key}="{printable(given)}"')
        raise InputError(f"{key}={printable(given)}: a value is empty; if the comma is part of the name: {quoted}")
    return [Setting(key, None if text == "null" else text, f"{key}={text}") for text in values]


def read_search(arguments: list[str]) -> SearchConfig | None:
    """Return the options of a search from its arguments, such as `hparams_search=default`; None if there are none."""
    given = {each.key_or_group: each.value() for each in parse_overrides(arguments)}
    choice = given.pop("hparams_search", None)
    if choice is None and given:
        raise InputError(f"{next(iter(given))}: only works with hparams_search=default")
    options = {key.partition(".")[2]: value for key, value in given.items()}
    return None if choice is None else SearchConfig(**choice_values("hparams_search", str(choice)) | options)


def parse_overrides(arguments: Sequence[str], sweep: bool = False, search: bool = False) -> list[Override]:
    """Parse arguments such as `optim.lr=0.01` with Hydra's grammar, and check that their keys and presets exist.

    With `sweep`, a key may have several values, and with `search` also an interval.
    """
    parsed = []
    for argument in arguments:
        if argument.startswith("=") or ("=" not in argument and not argument.startswith("~")):
            near = _to_train_on(argument) or nearest_key(argument)
            raise InputError(f"{argument}: must be key=value, such as model.heads=8{near}")
        try:
            (override,) = parse([argument])
        except HydraException as error:
            key, reason = argument.partition("=")[0], one_line(str(error).split("\n")[0])
            quoted = f"'{key}=\"…\"'"
            raise InputError(f"{argument}: cannot read the value of {key} ({reason}); quote it: {quoted}") from None
        _check_override(override, argument, sweep or search, search)
        parsed.append(override)
    return parsed


def _to_train_on(word: str) -> str:
    names = (*KEYS, *SEARCH_KEYS, *groups())
    is_file = "/" in word or Path(word).suffix or os.path.exists(word)
    return f"; to train on a text: data.path={word}" if is_file and word not in names else ""


def _check_override(override: Override, argument: str, sweep: bool, search: bool) -> None:
    key, choices = override.key_or_group, groups()
    group, _, rest = key.partition(".")
    allowed = KEYS[key].allowed if key in KEYS else ""
    if key == "workers" and not sweep:
        raise InputError("workers: only works with -m or hparams_search=default, for several runs")
    # A plug-in's keys are those in its file.
    if key not in choices and key not in KEYS | SEARCH_KEYS and not (group in PLUGINS and rest):
        raise InputError(f"{key}: no such key{nearest_key(key)}")
    if override.type == OverrideType.DEL:
        raise InputError(f"{argument}: keys cannot be removed; give {key} a value")
    if override.value_type == ValueType.GLOB_CHOICE_SWEEP:
        raise InputError(f"{argument}: list the values: {key}=a,b,c")
    if override.value_type == ValueType.INTERVAL_SWEEP and not search:
        raise InputError(f"{argument}: an interval is for a search; write {key}=a,b,c or {key}=range(a,b)")
    if override.value_type not in (ValueType.ELEMENT, None) and not sweep:
        one = shlex.quote(f"{key}=[{argument.partition('=')[2]}]")
        listed = f"for one run with a list: {one}; " if "list" in allowed else ""
        raise InputError(f"{argument}: several values for {key}; {listed}for a run with each: add -m")
    values = _values(override)
    if any(map(_has_mapping, values)):
        raise InputError(f"{argument}: must be a value or a list; set each key by itself")
    for value in values if key in choices else ():
        for choice in value if isinstance(value, list) and key in PLUGINS else [value]:
            if choice not in choices[key]:
                wrong = wrong_value(key, choice, f"one of {', '.join(choices[key])}", choices[key])
                raise InputError(f"{wrong}{_to_train_on(spell(choice)) if key == 'data' else ''}")


def _has_mapping(value: Any) -> bool:
    return isinstance(value, dict) or (isinstance(value, list) and any(map(_has_mapping, value)))


def _values(override: Override) -> list[Any]:
    if not override.is_sweep_override():
        return [override.value()]
    values = override.sweep_iterator() if override.is_discrete_sweep() else iter(())
    given = list(itertools.islice(values, MAX_RUNS + 1))
    if len(given) > MAX_RUNS:
        raise InputError(f"{override.input_line}: more than {MAX_RUNS:,} values")
    if any(isinstance(each, Sweep) for each in given):
        raise InputError(f"{override.input_line}: give either single values or one range")
    if not given and override.is_discrete_sweep():
        raise InputError(f"{override.input_line}: has no values")
    return given
