"""Read the command line of `train.py` and check it before anything heavy, such as torch, is loaded."""

import itertools
import math
import os
import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

# undocumented: of hydra-core 1.3
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import (
    Override,
    OverrideType,
    Quote,
    QuotedString,
    Sweep,
    ValueType,
)
from hydra.errors import HydraException

from base.command_line import Parser
from base.errors import InputError, one_line, printable
from base.jobs.run_directory import RUNS
from base.options import spell, wrong_value
from conf.keys import (
    KEYS,
    SEARCH_KEYS,
    add_folder,
    choice_values,
    groups,
    is_launch,
    is_verbatim,
    nearest_key,
)
from conf.schema import PLUGINS, SearchConfig

FLAGS = (
    "-m", "--multirun", "-h", "--help", "--help=all", "-c", "--cfg", "-cd", "--config-dir", "--runs", "--version",
)  # fmt: skip
MAX_RUNS = 10_000  # runs of one sweep, so also the values of one key
# A text that Hydra's grammar reads as itself without quotes.
PLAIN = re.compile(r"(?!(true|false|null|inf|nan)$)[a-z_][\w./-]*", re.ASCII | re.IGNORECASE)
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

    overrides: dict[str, Override]  # by key, in the order of the command line
    sweep: bool = False
    search: SearchConfig | None = None
    show: bool = False  # the settings, instead of training

    def verbatim(self, key: str) -> str | None:
        """Return the value of a key such as `name`, whose value is used verbatim; None if it is not set."""
        if key not in self.overrides:
            return None
        return self.overrides[key].value()  # type: ignore[return-value]

    def runs(self) -> Iterator[list[Setting]]:
        """Yield the settings of each run: in a sweep, of every combination, otherwise a single list."""
        choices = [settings_of(override) for override in self.overrides.values()]
        combinations = math.prod(map(len, choices))
        if combinations > MAX_RUNS:
            raise InputError(
                f"-m: {combinations:,} combinations of values; must be at most {MAX_RUNS:,}"
            )
        yield from map(list, itertools.product(*choices))


def parse(arguments: list[str]) -> list[Override]:
    return OverridesParser.create().parse_overrides(arguments)


def quoted(value: Any) -> str:
    """Return the string that Hydra's grammar reads as `value`."""
    if isinstance(value, str) and not PLAIN.fullmatch(value):
        return QuotedString(value, Quote.single).with_quotes()
    return spell(value)


def settings_of(override: Override) -> list[Setting]:
    """Return a `Setting` for each value of an override: in a sweep, `optim.lr=3e-3,6e-3` has two."""
    key = override.key_or_group
    settings = []
    for single in _single_valued(override):
        value = single.value()
        text = spell(value) if is_verbatim(key) else single.get_value_element_as_str()
        settings.append(Setting(key, value, f"{key}={text}"))
    return settings


def arguments_of(override: Override) -> list[str]:
    """Return the arguments of a command that sets what an override sets: one, or one for each verbatim value.

    A verbatim value is given as the user typed it, because the process of that command quotes it
    (`quote_verbatim`).
    """
    if is_verbatim(override.key_or_group):
        return [setting.text for setting in settings_of(override)]
    return [str(override.input_line)]


def read_command(arguments: list[str]) -> Command:
    """Parse the command line of train.py and check its flags and keys; the values are checked by `conf.compose`."""
    parser = Parser(prog="train.py", add_help=False, allow_abbrev=False)
    parser.add_argument("-m", "--multirun", action="store_true")
    parser.add_argument("-c", "--cfg", choices=["job"])
    parser.add_argument("-cd", "--config-dir", action="append", default=[])
    _check_flags(arguments)
    flags, others = parser.parse_known_args(arguments)
    for folder in flags.config_dir:
        add_folder(folder)  # before keys are checked, because they may be those of its presets
    of_search = [argument for argument in others if re.match(r"\+*hparams_search\b", argument)]
    search = read_search(of_search)
    if search and flags.cfg:
        raise InputError(
            "--cfg=job: shows the settings of one run or the runs of a sweep, not of a search"
        )
    searching = search is not None
    several = flags.multirun or searching
    of_runs = [
        quote_verbatim(argument, several, searching)
        for argument in others
        if argument not in of_search
    ]
    overrides = parse_overrides(of_runs, flags.multirun, searching)
    by_key = {override.key_or_group: override for override in overrides}
    return Command(by_key, flags.multirun, search, flags.cfg is not None)


def _check_flags(arguments: list[str]) -> None:
    for argument in arguments:
        flag = argument.partition("=")[0]
        if argument.startswith("-") and flag not in FLAGS:
            near = nearest_key(flag.lstrip("-").replace("-", "_"), FLAGS)
            allowed = f"must be one of {', '.join(FLAGS)}, or key=value"
            raise InputError(f"{argument}: no such flag, {allowed}{near}")


def quote_verbatim(argument: str, several: bool, searching: bool) -> str:
    """Return `key=value` with its value in Hydra's quotes if the value is a path or a name, used verbatim."""
    key, equals, text = argument.partition("=")
    name = key.lstrip("+")
    if not (equals and is_verbatim(name)):
        return argument
    values = verbatim_values(name, text, several)
    if searching and len(values) > 1:
        alone = f"must be one value in a search; quote a name with a comma: '{key}=\"…\"'"
        raise InputError(f"{printable(argument)}: {alone}")
    return f"{key}={','.join(map(quoted, values))}"


def verbatim_values(key: str, text: str, several: bool) -> list[str | None]:
    """Return the values of a path or a name.

    There is only one unless `several` is true: then commas separate values, but the name of an
    existing file or run, and text in brackets or quotes, is a single value.
    """
    is_file = os.path.exists(os.path.expanduser(text)) or os.path.exists(RUNS / text)
    if is_file or is_launch(key) or not several:
        values = [text]
    else:
        values = [value[1:-1] if quote else value for value, quote in VALUE.findall(f"{text},")]
    if text and "" in values:
        whole = shlex.quote(f'{key}="{printable(text)}"')
        advice = f"if the comma is part of the name: {whole}"
        raise InputError(f"{key}={printable(text)}: a value is empty; {advice}")
    return [None if value == "null" else value for value in values]


def read_search(arguments: list[str]) -> SearchConfig | None:
    """Return the options of a search from its arguments, such as `hparams_search=default`; None if there are none."""
    settings = {override.key_or_group: override.value() for override in parse_overrides(arguments)}
    preset = settings.pop("hparams_search", None)
    if preset is None:
        if settings:
            raise InputError(f"{next(iter(settings))}: only works with hparams_search=default")
        return None
    options = {key.partition(".")[2]: value for key, value in settings.items()}
    return SearchConfig(**choice_values("hparams_search", str(preset)) | options)


def parse_overrides(
    arguments: Sequence[str], sweep: bool = False, search: bool = False
) -> list[Override]:
    """Parse arguments such as `optim.lr=0.01` with Hydra's grammar, and check that their keys and presets exist.

    With `sweep`, a key may have several values, and with `search` also an interval.
    """
    overrides = []
    for argument in arguments:
        # `~key` would remove a key, which `_check_override` refuses
        if argument.startswith("=") or ("=" not in argument and not argument.startswith("~")):
            near = _to_train_on(argument) or nearest_key(argument)
            raise InputError(f"{argument}: must be key=value, such as model.heads=8{near}")
        try:
            (override,) = parse([argument])
        except HydraException as error:
            key = argument.partition("=")[0]
            reason = one_line(str(error).split("\n")[0])
            advice = f"quote it: '{key}=\"…\"'"
            raise InputError(
                f"{argument}: cannot read the value of {key} ({reason}); {advice}"
            ) from None
        _check_override(override, argument, sweep or search, search)
        overrides.append(override)
    return overrides


def _to_train_on(word: str) -> str:
    """Return a hint for the end of an error line if `word` looks like a file, otherwise ""."""
    names = (*KEYS, *SEARCH_KEYS, *groups())
    is_file = "/" in word or Path(word).suffix or os.path.exists(word)
    if not is_file or word in names:
        return ""
    return f"; to train on a text: data.path={word}"


def _check_override(override: Override, argument: str, sweep: bool, search: bool) -> None:
    key = override.key_or_group
    _check_key(key, sweep)
    if override.type == OverrideType.DEL:
        raise InputError(f"{argument}: keys cannot be removed; give {key} a value")
    if override.value_type == ValueType.GLOB_CHOICE_SWEEP:
        raise InputError(f"{argument}: list the values: {key}=a,b,c")
    if override.value_type == ValueType.INTERVAL_SWEEP and not search:
        advice = f"write {key}=a,b,c or {key}=range(a,b)"
        raise InputError(f"{argument}: an interval is for a search; {advice}")
    if override.is_sweep_override() and not sweep:
        advice = "for a run with each: add -m"
        if key in KEYS and KEYS[key].may_be_list:
            as_list = shlex.quote(f"{key}=[{argument.partition('=')[2]}]")
            advice = f"for one run with a list: {as_list}; {advice}"
        raise InputError(f"{argument}: several values for {key}; {advice}")
    values = _values(override)
    if any(map(_has_mapping, values)):
        raise InputError(f"{argument}: must be a value or a list; set each key by itself")
    if key in groups():
        for value in values:
            _check_preset(key, value)


def _check_key(key: str, sweep: bool) -> None:
    group, _, rest = key.partition(".")
    if key == "workers" and not sweep:
        raise InputError("workers: only works with -m or hparams_search=default, for several runs")
    if group in PLUGINS and rest:  # a plug-in's keys are those in its file
        return
    if key not in (*groups(), *KEYS, *SEARCH_KEYS):
        raise InputError(f"{key}: no such key{nearest_key(key)}")


def _check_preset(group: str, value: Any) -> None:
    """Check that the preset `value` of a group exists; plug-ins may be a list of presets."""
    presets = groups()[group]
    names = value if isinstance(value, list) and group in PLUGINS else [value]
    for name in names:
        if name not in presets:
            message = str(wrong_value(group, name, f"one of {', '.join(presets)}", presets))
            if group == "data":
                message += _to_train_on(spell(name))
            raise InputError(message)


def _has_mapping(value: Any) -> bool:
    if isinstance(value, list):
        return any(map(_has_mapping, value))
    return isinstance(value, dict)


def _single_valued(override: Override) -> list[Override]:
    """Return an override for each value; an interval has none."""
    if not override.is_sweep_override():
        return [override]
    if not override.is_discrete_sweep():
        return []
    # A range may be huge: one value too many is enough for `_values` to refuse it.
    elements = itertools.islice(override.sweep_iterator(), MAX_RUNS + 1)
    return [
        replace(override, value_type=ValueType.ELEMENT, _value=element) for element in elements
    ]


def _values(override: Override) -> list[Any]:
    values = [single.value() for single in _single_valued(override)]
    if len(values) > MAX_RUNS:
        raise InputError(f"{override.input_line}: more than {MAX_RUNS:,} values")
    if any(isinstance(value, Sweep) for value in values):
        raise InputError(f"{override.input_line}: give either single values or one range")
    if not values and override.is_discrete_sweep():
        raise InputError(f"{override.input_line}: has no values")
    return values
