"""Read the ranges of a search from its preset and the command line."""

import hashlib
import importlib.util
import json
import math
import typing
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from base import run_directory
from base.errors import InputError
from base.options import allowed, spell
from conf.files import CONF
from conf.hydra_grammar import IntervalSweep, Override, RangeSweep, parse
from conf.keys import HOW, PLUGINS, fields
from conf.overrides import check_overrides
from conf.schema import SearchConfig
from sweeps.grid import check_sweep
from sweeps.trial import Trial

GROUP = "hparams_search"  # the key that chooses the preset of a search; `hparams_search.KEY` sets an option


def take_search(arguments: list[str]) -> tuple[SearchConfig | None, list[str]]:
    """Return the configuration of the typed search, or None, and the arguments that do not set its options."""
    own = [argument for argument in arguments if argument.lstrip("+").partition("=")[0].partition(".")[0] == GROUP]
    check_overrides(own)
    typed = {each.key_or_group: each.value() for each in parse(own)}
    choice = typed.pop(GROUP, None)
    if choice is None:
        if typed:
            raise InputError(f"{next(iter(typed))}: goes with {GROUP}=default")
        return None, [argument for argument in arguments if argument not in own]
    file = CONF / GROUP / f"{choice}.yaml"
    values = yaml.safe_load(file.read_text("utf-8")) | {key.partition(".")[2]: value for key, value in typed.items()}
    try:
        return SearchConfig(**values), [argument for argument in arguments if argument not in own]
    except TypeError as error:
        raise InputError(f"{GROUP}={choice}: {error}") from None


@dataclass(frozen=True)
class Range:
    """The values that a search may choose for one key."""

    text: str  # the override as typed, such as `optim.lr=interval(0.001,0.01)`
    values: tuple[str, ...]  # all choices, or the lowest and the highest value, as one would type them
    kind: str  # name of an Optuna distribution
    arguments: Mapping[str, Any]  # of this distribution


def make_range(override: Override) -> Range:
    """Turn a typed range or choice into a `Range`."""
    key, text, value = override.get_key_element(), str(override.input_line), override.value()
    hint, field = (fields() | PLUGINS).get(override.key_or_group, (Any, None))
    metadata = field.metadata if field else {}
    log = "log" in getattr(value, "tags", ())
    if getattr(value, "shuffle", False):
        raise InputError(
            f"{text}: a search takes interval(a,b), tag(log,interval(a,b)), range(a,b,step) or choice(x,y)"
        )
    if isinstance(value, IntervalSweep):
        numbers = [each for each in (typing.get_args(hint) or (hint,)) if each in (int, float)]
        if not numbers:
            raise InputError(f"{text}: {key} takes {allowed(hint, metadata)}; list the values: {key}=choice(x,y)")
        low, high = typing.cast(float, value.start), typing.cast(float, value.end)
        if numbers == [int]:
            low, high = math.ceil(low), math.floor(high)
        if not low < high:
            raise InputError(f"{text}: has no values: the lower bound must be below the upper")
        kind = "IntDistribution" if numbers == [int] else "FloatDistribution"
        arguments: dict[str, Any] = {"log": log}
    else:
        values: list[Any] = list(override.sweep_iterator())
        if not values:
            raise InputError(f"{text}: has no values")
        texts = list(override.sweep_string_iterator())
        if not isinstance(value, RangeSweep):
            if log:
                raise InputError(f"{text}: tag(log,…) goes around interval(a,b)")
            return Range(text, tuple(texts), "CategoricalDistribution", {"choices": texts})
        low, high = values[0], values[-1]
        kind = "IntDistribution" if isinstance(low, int) and isinstance(value.step, int) else "FloatDistribution"
        arguments = {"step": value.step}
    if log and low <= 0:
        raise InputError(f"{text}: tag(log,…) needs a lower bound above 0")
    return Range(text, (as_typed(low), as_typed(high)), kind, {"low": low, "high": high, **arguments})


def as_typed(value: Any) -> str:
    """Return a value as one would type it: a float with six digits."""
    return f"{value:.6g}" if isinstance(value, float) else str(value)


@dataclass(frozen=True)
class Search:
    """A search that has been checked."""

    name: str  # of its directory
    config: SearchConfig
    space: Mapping[str, Range]  # by key
    fixed: tuple[str, ...]  # overrides of every trial
    literal: tuple[str, ...]  # those whose values Hydra does not parse, such as `data.path=a b.txt`
    workers: int  # max trials that run at the same time

    @property
    def directory(self) -> Path:
        """The directory of the search."""
        return run_directory.RUNS / self.name

    def corners(self) -> list[list[str]]:
        """Return Hydra overrides of a few trials in which each choice and both ends of each range occur."""
        count = max(len(each.values) for each in self.space.values())
        common = [*self.fixed, f"workers={self.workers}"]
        return [
            [*common, *(f"{key}={each.values[min(index, len(each.values) - 1)]}" for key, each in self.space.items())]
            for index in range(count)
        ]

    def trial(self, number: int, proposed: Mapping[str, Any]) -> Trial:
        """Make trial `number` from the values that Optuna proposes."""
        values = {key: as_typed(value) for key, value in proposed.items()}
        overrides = (*self.fixed, *(f"{key}={value}" for key, value in values.items()), *self.literal)
        return Trial(self.name, f"trial-{number:03}", overrides, values, number)


def plan_search(config: SearchConfig, arguments: list[str], literals: Mapping[str, str | None]) -> Search:
    """Combine the typed overrides with the ranges of the preset; a typed key replaces the range of that key."""
    given = {override.key_or_group: override for override in parse(arguments)}
    if "launcher" in given:  # jobs on other machines may be unable to lock the study's file
        raise InputError("launcher: not with hparams_search, whose trials are processes of this machine; see workers=N")
    for key in set(given) & HOW:
        if given[key].is_sweep_override():
            raise InputError(f"{key}: must have one value for all trials of a search")
    workers = typing.cast(int, given.pop("workers").value()) if "workers" in given else 1
    ranges = [f"{key}={value}" for key, value in config.space.items() if key not in given and key not in literals]
    check_overrides(ranges, search=True)
    swept = [*parse(ranges), *(each for each in given.values() if each.is_sweep_override())]
    for override in swept:
        if not override.is_sweep_override():
            raise InputError(f"{GROUP}: {override.input_line} is no range such as interval(a,b) or choice(x,y)")
    space = {each.get_key_element(): make_range(each) for each in swept}
    if not space:
        raise InputError(f"{GROUP}: nothing is left to search: the command fixes every key that has a range")
    fixed = tuple(str(each.input_line) for each in given.values() if not each.is_sweep_override())
    literal = tuple(f"{key}={spell(value)}" for key, value in literals.items() if key not in HOW)
    if importlib.util.find_spec("optuna") is None:
        raise InputError(f"{GROUP}: needs optuna: pip install -c constraints.txt -e '.[search]'")
    search = Search(literals.get("name") or "", config, space, fixed, literal, workers)
    if not search.name:
        digest = hashlib.sha256(json.dumps(fingerprint(search, None)).encode("utf-8", "surrogateescape")).hexdigest()
        search = replace(search, name=f"search-{digest[:6]}")
    check_sweep([each.text for each in space.values()], {**literals, "name": search.name})
    return search


def fingerprint(search: Search, text: str | None) -> dict[str, Any]:
    """Return the settings that a resumed search must repeat; `text` is the fingerprint of the training text."""
    how = {key: value for key, value in asdict(search.config).items() if key not in ("trials", "space")}
    fixed = sorted(each for each in (*search.fixed, *search.literal) if each.partition("=")[0] not in HOW)
    return how | {"space": sorted(each.text for each in search.space.values()), "fixed": fixed, "text": text}
