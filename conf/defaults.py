"""What a run has otherwise than a plain `python train.py`, and the command that makes it again."""

import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from base.options import shown
from conf.keys import HOW, PLUGGED, choice_values, groups, leaves
from conf.resume import untrusted
from conf.schema import Config, from_dict, to_dict


class Difference(NamedTuple):
    """A setting as one would type it: what the run has, and what a plain `python train.py` does."""

    key: str
    value: str
    default: str


def plain() -> Config:
    """The configuration of `python train.py` without a word."""
    values = to_dict(Config())
    for entry in choice_values("", "train")["defaults"]:
        for group, choice in entry.items() if isinstance(entry, dict) else ():
            if group in values and isinstance(choice, str):
                values[group] |= choice_values(group, choice)
    return from_dict(values)


def differences(config: Config) -> list[Difference]:
    """What a run has otherwise, whether it was typed or chosen automatically."""
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
    """What to type after `train.py` for the same run under another name, on any machine.

    What `minutes` has settled is typed instead of it.
    """
    return [f"{key}={value}" for key, value, _ in differences(config) if key != "minutes"]


def typed_again(config: Config) -> list[str]:
    """What to type after `resume=`: of what a run has, that which its config.yaml may not decide."""
    again = untrusted(config)
    paths = [f"data.path={config.data.path}"] if "data.path" in again else []
    groups = [each for group in again if group in PLUGGED for each in _plugged(group, getattr(config, group), {})]
    return paths + [f"{key}={value}" for key, value, _ in groups]


def _plugged(group: str, entries: dict[str, Any], defaults: dict[str, Any]) -> Iterator[Difference]:
    """Someone else's classes: which files of the group name them, and what is otherwise than there."""
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
    """A value of someone else's, which may be any text, as Hydra's grammar reads it back."""
    if isinstance(value, str) and not re.fullmatch(r"[A-Za-z_][\w./-]*", value):
        return "'" + re.sub(r"(\\*)'", r"\1\1\\'", value) + "'"
    return shown(value)
