"""Read the command line of `train.py` and check it before anything heavy, such as torch, is loaded."""

import itertools
import math
import os
import re
import shlex
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hydra.errors import HydraException

from base.errors import InputError, nearest, one_line, printable
from base.jobs.run_directory import RUNS
from base.options import spell
from conf.groups import add_folder, choice_values, groups
from conf.hydra_grammar import Override, OverrideType, Sweep, ValueType, parse
from conf.keys import ALIASES, HINTS, KEYS, SEARCH_KEYS, is_launch, is_plugins, nearest_key
from conf.schema import REFUSED, SearchConfig
from data.config import TYPOGRAPHIC_QUOTES

SHOW, PARTS = ("-c", "--cfg"), ("job", "hydra", "all")
CONFIG_DIR = ("-cd", "--config-dir")
FLAGS = ("-m", "--multirun", "-h", "--help", "--help=all", *SHOW, "--resolve", "--config-dir", "--runs", "--version")
HYDRA = (
    "-cn", "--config-name", "-cp", "--config-path", "-i", "--info", "-p", "--package", "-r", "--run", "--hydra-help",
)  # fmt: skip
MAX_VALUES = 10_000  # values of one key in a sweep
MAX_RUNS = 10_000  # runs of one sweep
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
        """Whether the setting chooses the preset of a configuration group, as `model=small` does."""
        return self.key in groups()


@dataclass(frozen=True)
class Command:
    """The parsed command line of `train.py`."""

    overrides: list[Override]  # the arguments whose values Hydra parses, as Hydra has parsed them
    # The values that Hydra does not parse, such as paths, by key (see `split_literals`).
    literals: dict[str, str | None]
    # The keys to which a sweep gives several values that Hydra does not parse, each with a setting per value.
    swept: dict[str, list[Setting]]
    sweep: bool = False  # whether the flag `-m` is set
    search: SearchConfig | None = None  # the options of the search (`hparams_search=`), or None without a search
    part: str = ""  # the argument of the flag `--cfg`, or "" without this flag
    resolve: bool = False  # whether the flag `--resolve` is set

    def sets(self, group: str) -> bool:
        """Return whether the command line sets a key of a configuration group, or chooses a preset of the group."""
        keys = [*self.literals, *(each.key_or_group for each in self.overrides)]
        return any(key.partition(".")[0] == group for key in keys)

    def runs(self) -> Iterator[list[Setting]]:
        """Yield the settings of each run: in a sweep, one list for every combination of the values of the keys."""
        choices = {each.key_or_group: settings(each) for each in self.overrides} | self.swept
        if (count := math.prod(map(len, choices.values()))) > MAX_RUNS:
            raise InputError(f"-m: {count:,} combinations of values; must be at most {MAX_RUNS:,}")
        yield from (list(each) for each in itertools.product(*choices.values()))


def settings(override: Override) -> list[Setting]:
    """Return a `Setting` for each value of an override that Hydra has parsed."""
    key = override.key_or_group
    if not override.is_sweep_override():
        return [Setting(key, override.value(), f"{key}={override.get_value_element_as_str()}")]
    texts = [f"{key}={text}" for text in override.sweep_string_iterator()]
    return [Setting(key, each.value(), text) for each, text in zip(parse(texts), texts, strict=True)]


def read_command(arguments: list[str]) -> Command:
    """Parse the command line of train.py, `arguments`, and check its flags and keys."""
    flags, assignments, part = set(), [], ""
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
            assignments.append(argument)
    sweep = bool({"-m", "--multirun"} & flags)
    rest, literals, swept = split_literals(assignments, sweep or search is not None)
    overrides = parse_overrides(rest, sweep, search is not None)
    _check_once(overrides, swept, [each.partition("=")[0].lstrip("+") for each in assignments])
    if part and (search or (sweep and part != "job")):
        raise InputError(f"--cfg={part}: shows the settings of one run; -m --cfg=job lists the runs of a sweep")
    if "--resolve" in flags and not part:
        raise InputError("--resolve: needs --cfg")
    for key, values in swept.items() if search else ():
        given = printable(",".join(each.text.removeprefix(f"{key}=") for each in values))
        raise InputError(f"{key}={given}: must be one value in a search; quote a name with a comma: '{key}=\"…\"'")
    return Command(overrides, literals, swept, sweep, search, part, "--resolve" in flags)


def _check_once(overrides: list[Override], swept: dict[str, list[Setting]], given: list[str]) -> None:
    """Raise an `InputError` if a key with several values is set twice, or if one of its values is listed twice."""
    several = {key: [each.text.removeprefix(f"{key}=") for each in values] for key, values in swept.items()}
    for each in filter(Override.is_sweep_override, overrides):
        several[each.key_or_group] = list(each.sweep_string_iterator()) if each.is_discrete_sweep() else []
    for key, texts in several.items():
        if given.count(key) > 1:
            raise InputError(f"{key}: is set {given.count(key)} times; a key with several values must be set once")
        if len(texts) > len(set(texts)):
            text, times = Counter(texts).most_common(1)[0]
            raise InputError(f"{key}={printable(text)}: is one of the values {times} times; list it once")


def take_config_dir(arguments: list[str]) -> list[str]:
    """Make the presets in the folder of each `--config-dir FOLDER` available, and return the other arguments."""
    others, left = [], iter(arguments)
    for argument in left:
        flag, equals, value = argument.partition("=")
        if flag in CONFIG_DIR:
            add_folder(value if equals else next(left, ""))
        else:
            others.append(argument)
    return others


def _as_setting(flag: str, arguments: list[str]) -> str:
    """Return the end of the error message about an unknown flag."""
    name, equals, value = flag.lstrip("-").partition("=")
    name = name.replace("-", "_")
    after = arguments[arguments.index(flag) + 1 :][:1]
    if not equals:
        value = after[0] if after and "=" not in after[0] and not after[0].startswith("-") else "…"
    keys = [key for key in KEYS | SEARCH_KEYS if name in (key, key.rpartition(".")[2])]
    keys += [here for other, here in ALIASES.items() if name.rpartition(".")[2] == other]
    if keys:
        return f"; settings have no dashes: {keys[0]}={value}"
    if name in HINTS:
        return f"; {HINTS[name]}"
    return f", must be one of {', '.join(FLAGS)}{nearest(flag, FLAGS)}"


def split_literals(
    arguments: list[str], sweep: bool = False
) -> tuple[list[str], dict[str, str | None], dict[str, list[Setting]]]:
    """Separate the arguments whose values Hydra parses from literal arguments, whose values are used verbatim.

    Paths and names are literal. In a sweep, commas separate the values of a literal key. However, the name of an
    existing file or run, and text in brackets or quotes, is a single value even if it contains commas.
    """
    rest, literals, swept = [], dict[str, str | None](), dict[str, list[Setting]]()
    for argument in arguments:
        key, equals, value = argument.partition("=")
        if not equals or key not in KEYS or not KEYS[key].metadata.get("literal"):
            rest.append(argument)
            continue
        whole = not sweep or is_launch(key) or os.path.exists(os.path.expanduser(value)) or os.path.exists(RUNS / value)
        values = [value] if whole else [text[1:-1] if quote else text for text, quote in VALUE.findall(f"{value},")]
        if "" in values[1:] or values[0] == "" != value:
            quoted = shlex.quote(f'{key}="{printable(value)}"')
            raise InputError(f"{printable(argument)}: a value is empty; if the comma is part of the name: {quoted}")
        found = [Setting(key, None if text == "null" else text, f"{key}={text}") for text in values]
        if len(found) > 1:
            swept[key] = found
        else:
            literals[key] = found[0].value
    return rest, literals, swept


def take_search(arguments: list[str]) -> tuple[SearchConfig | None, list[str]]:
    """Separate the options of a hyper-parameter search from the other arguments of the command line."""
    own = [argument for argument in arguments if re.match(r"\+*hparams_search\b", argument)]
    others = [argument for argument in arguments if argument not in own]
    given = {each.key_or_group: each.value() for each in parse_overrides(own)}
    choice = given.pop("hparams_search", None)
    if choice is None:
        if given:
            raise InputError(f"{next(iter(given))}: only works with hparams_search=default")
        return None, others
    options = {key.partition(".")[2]: value for key, value in given.items()}
    return SearchConfig(**choice_values("hparams_search", str(choice)) | options), others


def parse_overrides(arguments: Sequence[str], sweep: bool = False, search: bool = False) -> list[Override]:
    """Parse arguments such as `optim.lr=0.01` with Hydra's grammar, and check that their keys and presets exist."""
    parsed = []
    for argument in arguments:
        if argument.startswith("=") or ("=" not in argument and not argument.startswith("~")):
            end = next((each[-1] for each in arguments if each.endswith(TYPOGRAPHIC_QUOTES)), None)
            near = f"; {end} is a typographic quote; a shell needs '" if end else _about_word(argument)
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


def _about_word(word: str) -> str:
    """Return a hint about `word`, an argument without `=`, or "" if there is none."""
    names = [*KEYS, *SEARCH_KEYS, *groups()]
    if os.path.exists(word) and word not in names:
        return f"; to train on this text: data.path={word}"
    if "/" in word or re.search(r"\.(txt|text|md|csv|jsonl?|gz|html?|tex|py)$", word):
        return f"; there is no file {word} here; data.path=FILE trains on a text"
    return "" if word in names else nearest_key(word, names)


def _check_override(override: Override, argument: str, sweep: bool, search: bool) -> None:
    """Refuse a key that does not exist, cannot be set, or has a wrong number of values."""
    key, choices = override.key_or_group, groups()
    group, _, rest = key.partition(".")
    if override.value_type == ValueType.GLOB_CHOICE_SWEEP:
        raise InputError(f"{argument}: list the values: {key}=a,b,c")
    if key.startswith("hydra"):
        raise InputError(f"{key}: is not accepted: runs are stored in runs/<name>, and Hydra writes no files")
    if override.type == OverrideType.DEL:
        raise InputError(f"{argument}: keys cannot be removed; give {key} a value")
    if key == "workers" and not sweep:
        raise InputError("workers: only works with -m or hparams_search=default, for several runs")
    if group == "trainer" and rest in REFUSED:
        presets = "|".join(groups().get(rest, ()))  # of the groups callbacks and logger
        raise InputError(f"{key}: is not accepted: {REFUSED[rest]}{presets}")
    known = key in choices or key in KEYS | SEARCH_KEYS
    if not known and not (is_plugins(group) and rest):  # a plug-in's keys are those in its file
        raise InputError(f"{key}: no such key{nearest_key(key, [*KEYS, *SEARCH_KEYS, *choices])}")
    if key not in choices and override.type == OverrideType.ADD and not is_plugins(group):
        raise InputError(f"{argument}: {key} exists; write {key}=… without +")
    if override.value_type == ValueType.INTERVAL_SWEEP and not search:
        raise InputError(f"{argument}: an interval is for a search; write {key}=a,b,c or {key}=range(a,b)")
    text, allowed = argument.partition("=")[2], KEYS[key].allowed if key in KEYS else ""
    if override.value_type not in (ValueType.ELEMENT, None) and not sweep:
        way = "add -m to the command to try each"
        if "list" in allowed or re.fullmatch(r"\d{1,3}(,\d{3})+", text):
            one = f"[{text}]" if "list" in allowed else text.replace(",", "")
            way = f"for one run: {shlex.quote(f'{key}={one}')}; for a run with each: add -m"
        raise InputError(f"{argument}: several values for {key}; {way}")
    if "a whole number" in allowed and (ends := re.fullmatch(r"(\d+)(?:-|\.\.)(\d+)", text)):
        low, high = sorted(map(int, ends.groups()))
        each = shlex.quote(f"{key}=range({low},{high + 1})")
        raise InputError(f"{argument}: must be {allowed}; for a run with each: {'' if sweep else '-m '}{each}")
    values = _values(override)
    if any(map(_has_mapping, values)):
        raise InputError(f"{argument}: must be a value or a list; set each key by itself")
    for value in values if key in choices else ():
        for choice in value if isinstance(value, list) and is_plugins(key) else [value]:
            if choice not in choices[key]:
                text = spell(choice)
                hint = nearest(text, choices[key])
                if key == "data" and not hint and ("." in text or "/" in text or Path(text).exists()):
                    hint = f"; for your own text: data.path={text}"
                raise InputError(f"{key}={text}: must be one of {', '.join(choices[key])}{hint}")


def _has_mapping(value: Any) -> bool:
    return isinstance(value, dict) or (isinstance(value, list) and any(map(_has_mapping, value)))


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
