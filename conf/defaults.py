"""The settings of a run that differ from the defaults, and the command that repeats the run."""

import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from base.options import spell
from conf.files import choice_values
from conf.keys import HOW, PLUGGED, leaves
from conf.plugins import options
from conf.schema import Config, from_dict, to_dict


class Difference(NamedTuple):
    """A key with a run's value and the default value, spelled as on the command line."""

    key: str
    value: str
    default: str


def plain() -> Config:
    """Return the configuration of `python train.py` without arguments."""
    values = to_dict(Config())
    for entry in choice_values("", "train")["defaults"]:
        for group, choice in entry.items() if isinstance(entry, dict) else ():
            if group in values and isinstance(choice, str):
                values[group] |= choice_values(group, choice)
    return from_dict(values)


def differences(config: Config) -> list[Difference]:
    """List the settings that differ from the defaults, whether they were typed or chosen automatically."""
    values, defaults = to_dict(config), to_dict(plain())
    found = [
        Difference(key, spell(value), spell(default))
        for (key, value), (_, default) in zip(leaves(values), leaves(defaults), strict=True)
        if value != default and key not in (*HOW, *PLUGGED)
    ]
    for group in ("callbacks", "logger"):
        found += _plugged(group, values[group], defaults[group])
    return found


def overrides(config: Config) -> list[str]:
    """List the overrides that repeat a run under another name. Give what `minutes` chose, not `minutes` itself."""
    return [f"{key}={value}" for key, value, _ in differences(config) if key != "minutes"]


def _plugged(group: str, chosen: dict[str, Any], default: dict[str, Any]) -> Iterator[Difference]:
    """Compare a run's callbacks or loggers with the defaults: first their names, then the options of each."""
    if list(chosen) != list(default):
        yield Difference(group, spell(list(chosen)) if chosen else "none", spell(list(default)))
    for name, arguments in chosen.items():
        own = options(group, name)
        for key in own:
            if arguments[key] != own[key]:
                yield Difference(f"{group}.{name}.{key}", _quoted(arguments[key]), _quoted(own[key]))


def _quoted(value: Any) -> str:
    """Quote a value for Hydra's grammar."""
    if isinstance(value, str) and not re.fullmatch(r"[A-Za-z_][\w./-]*", value):
        return "'" + re.sub(r"(\\*)'", r"\1\1\\'", value) + "'"
    return spell(value)
