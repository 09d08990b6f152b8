"""Declare, check and describe the options of a configuration.

A field is declared with `option(...)`. `check` enforces the declaration, `train.py --help` prints it,
and error messages quote it.
"""

import dataclasses
import sys
import types
import typing
from collections.abc import Sequence
from typing import Any

from base.errors import InputError, nearest

NAMES = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}


def option(
    default: Any,
    meaning: str,
    *,
    choices: Sequence[str] = (),
    on_resume: str = "",
    literal: bool = False,
    per_trial: bool = True,
    **limits: float | None,
) -> Any:
    """Declare a dataclass field together with its meaning, its range and where it may change.

    Args:
        default: value when nothing is given; lists are copied per instance.
        meaning: one line, shown by `--help`.
        choices: allowed values, for text.
        on_resume: whether a resumed run may have another value: `free`, `allow` (with allow=) or `fixed` (never);
            empty for what the field of the whole group says, or `allow`.
        literal: whether the value is taken as it is typed, without Hydra's grammar.
        per_trial: whether it may differ between the trials of a sweep; else it says where and how they run, and is
            free on resume.
        limits: `least` and `most` allowed value, or what it must be `above` and `below`; of each item, for a list.
    """
    assert limits.keys() <= {"least", "most", "above", "below"}
    metadata = {"help": meaning, "choices": tuple(choices), "on_resume": on_resume, "literal": literal}
    metadata |= {"per_trial": per_trial, **limits}
    if isinstance(default, list):
        return dataclasses.field(default_factory=lambda: list(default), metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


def allowed(hint: Any, metadata: typing.Mapping[str, Any]) -> str:
    """Say in words which values a field of type `hint` takes, as in 'a whole number, at least 1'."""
    if metadata.get("choices"):
        return "one of " + ", ".join(metadata["choices"])
    kind, item, optional = _unpack(hint)
    bounds = [
        f"{word} {metadata[key]}"
        for key, word in (("least", "at least"), ("above", "above"), ("most", "at most"), ("below", "below"))
        if metadata.get(key) is not None
    ]
    words = f"a list of {NAMES[item].removeprefix('a ')}s" if kind is list else NAMES.get(kind, "any value")
    if kind is list and bounds:
        bounds[0] = "each " + bounds[0]
    return (
        words
        + ("".join(f", {bound}" for bound in bounds[:1]) + "".join(f" and {b}" for b in bounds[1:]))
        + (", or null" if optional else "")
    )


def _unpack(hint: Any) -> tuple[Any, Any, bool]:
    """Split a type into (kind, kind of the items of a list, whether None is allowed)."""
    optional = False
    if typing.get_origin(hint) in (types.UnionType, typing.Union):
        members = typing.get_args(hint)
        optional = type(None) in members
        hint = next(member for member in members if member is not type(None))
    if typing.get_origin(hint) is list:
        return list, typing.get_args(hint)[0], optional
    return hint, None, optional


def _is_a(value: Any, kind: Any) -> bool:
    """Whether `value` is a `kind` as people mean it: true is not a number, 3 is a float, nan is nothing."""
    if kind is Any:
        return True
    if kind is float:
        return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max
    if kind is int:
        return isinstance(value, int) and not isinstance(value, bool)
    return isinstance(value, kind)


def fits(value: Any, hint: Any, metadata: typing.Mapping[str, Any]) -> bool:
    """Whether `value` has the type `hint` and lies in the range given by `metadata`."""
    kind, item, optional = _unpack(hint)
    if value is None:
        return optional or (kind is Any and not metadata.get("choices"))
    if kind is list:
        return isinstance(value, list | tuple) and all(fits(entry, item, metadata) for entry in value)
    if not _is_a(value, kind):
        return False
    if metadata.get("choices"):
        return shown(value) in metadata["choices"]
    return (
        (metadata.get("least") is None or value >= metadata["least"])
        and (metadata.get("most") is None or value <= metadata["most"])
        and (metadata.get("above") is None or value > metadata["above"])
        and (metadata.get("below") is None or value < metadata["below"])
    )


def shown(value: Any) -> str:
    """Write a value as one would type it: null, true, 0.1, [1,2], text."""
    if isinstance(value, list | tuple):
        return "[" + ",".join(shown(item) for item in value) + "]"
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return str(value)


def check_value(key: str, value: Any, hint: Any, metadata: typing.Mapping[str, Any]) -> None:
    """Raise `ValueError` in one line unless `value` is one that the field `key` takes."""
    if not fits(value, hint, metadata):
        near = nearest(str(value), metadata.get("choices", ()))
        raise InputError(f"{key}={shown(value)}: must be {allowed(hint, metadata)}{near}")


def check(config: Any, group: str = "") -> None:
    """Check every field of a dataclass made with `option`.

    Raises:
        ValueError: one line with the key, the value and what is allowed.
    """
    hints = typing.get_type_hints(type(config))
    for field in dataclasses.fields(config):
        if "help" in field.metadata:
            key = f"{group}.{field.name}" if group else field.name
            check_value(key, getattr(config, field.name), hints[field.name], field.metadata)
