"""The settings of a run that differ from the defaults, and the command that repeats the run."""

import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from base.options import shown
from conf.keys import HOW, PLUGGED, choice_values, groups, leaves
from conf.resume import untrusted
from conf.schema import Config, from_dict, to_dict


class Difference(NamedTuple):
    """A key with the value of a run and the default, as they are typed."""

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
        Difference(key, shown(value), shown(default))
        for (key, value), (_, default) in zip(leaves(values), leaves(defaults), strict=True)
        if value != default and key not in (*HOW, *PLUGGED)
    ]
    for group in ("callbacks", "logger"):
        found += _plugged(group, values[group], defaults[group])
    return found


def overrides(config: Config) -> list[str]:
    """List the overrides that repeat a run under another name, with what `minutes` chose instead of `minutes`."""
    return [f"{key}={value}" for key, value, _ in differences(config) if key != "minutes"]


def typed_again(config: Config) -> list[str]:
    """List the overrides that a resumed run needs on the command line, because its config.yaml may not set them."""
    again = untrusted(config)
    paths = [f"data.path={config.data.path}"] if "data.path" in again else []
    plugged = [each for group in again if group in PLUGGED for each in _plugged(group, getattr(config, group), {})]
    return paths + [f"{key}={value}" for key, value, _ in plugged]


def _plugged(group: str, entries: dict[str, Any], defaults: dict[str, Any]) -> Iterator[Difference]:
    """Compare the classes of a group, such as callbacks, with the defaults: its files first, then single arguments."""
    chosen, before = ([name for name in names if name in groups()[group]] for names in (entries, defaults))
    if chosen != before:
        yield Difference(group, shown(chosen) if chosen else "none", shown(before))
    for name, entry in entries.items():
        known = dict(leaves(choice_values(group, name).get(name, {}))) if name in chosen else {}
        for key, value in leaves(entry):
            if key not in known or known[key] != value:
                new = "" if key in known else "+"
                yield Difference(f"{new}{group}.{name}.{key}", _quoted(value), _quoted(known.get(key)))


def _quoted(value: Any) -> str:
    """Quote a value for Hydra's grammar."""
    if isinstance(value, str) and not re.fullmatch(r"[A-Za-z_][\w./-]*", value):
        return "'" + re.sub(r"(\\*)'", r"\1\1\\'", value) + "'"
    return shown(value)
