"""Declare and check the options of a configuration: dataclass fields with a help text, a range and a resume rule."""

import dataclasses
import operator
import re
import sys
import types
import typing
from collections.abc import Iterable
from copy import copy
from typing import Any

from base.errors import InputError, nearest

NAMES = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    str: "text",
    dict: "a mapping",
}
LIMITS = {
    "least": ("at least", operator.ge), "above": ("above", operator.gt),
    "most": ("at most", operator.le), "below": ("below", operator.lt),
}  # fmt: skip


def option(
    default: Any, meaning: str, *, on_resume: str = "", launch: bool = False, **rules: Any
) -> Any:
    """Declare a dataclass field as an option; `meaning` is its line in `--help`.

    Args:
        on_resume: whether a resumed run may change the value: `free` (yes), `allow` (only with
            allow=) or `fixed` (never); by default the rule of the config group, such as `data`, or
            `allow` if the group has none.
        launch: whether the option says where and how a run is started, and not what it computes;
            it is then `free`.
        rules: which values are allowed. `choices` lists them. `least` and `most` (inclusive),
            `above` and `below` are bounds of the value, or of each item of a list. `auto` is the
            type of all values but the word auto, for a field that is annotated with `Any`. With
            `verbatim`, the value is used verbatim, without Hydra's grammar.
    """
    assert rules.keys() <= {"choices", "auto", "verbatim", *LIMITS}
    metadata = {"help": meaning, "choices": (), "auto": None, "launch": launch, **rules}
    metadata["on_resume"] = "free" if launch else on_resume
    if isinstance(default, list | dict):
        return dataclasses.field(default_factory=lambda: copy(default), metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


def allowed(hint: Any, metadata: typing.Mapping[str, Any]) -> str:
    """Describe the values that an option of type `hint` accepts, such as 'a whole number, at least 1'."""
    kind, item, optional = _unpack(metadata.get("auto") or hint)
    if metadata.get("choices"):
        return f"one of {', '.join(metadata['choices'])}{', null' if optional else ''}"
    limits = [f"{word} {metadata[key]}" for key, (word, _) in LIMITS.items() if key in metadata]
    bounds = " and ".join(limits)
    words = NAMES.get(kind, "number, text or list")
    if kind is list:
        words = f"a list of {NAMES[item].removeprefix('a ')}s"
        bounds = bounds and f"each {bounds}"
    if bounds:
        words += f", {bounds}"
    if metadata.get("auto"):
        words = f"auto or {words}"
    return f"{words}, or null" if optional else words


def _unpack(hint: Any) -> tuple[Any, Any, bool]:
    """Return (type without None, type of its items if it is a list, whether it allows None)."""
    optional = typing.get_origin(hint) in (types.UnionType, typing.Union)  # only `X | None`
    if optional:
        hint = typing.get_args(hint)[0]
    kind = dict if typing.is_typeddict(hint) else typing.get_origin(hint) or hint
    item = typing.get_args(hint)[0] if kind is list else None
    return kind, item, optional


def fits(value: Any, hint: Any, metadata: typing.Mapping[str, Any]) -> bool:
    """Return whether `value` has the type `hint` and satisfies the choices and limits in `metadata`.

    A hint is a class, `list[X]` or `X | None`; the entries of a TypedDict or `dict[...]` are not checked.
    """
    choices = metadata.get("choices")
    kind, item, optional = _unpack(metadata.get("auto") or hint)
    if kind is Any:
        optional = not choices
        kind = object
    if value is None:
        return optional
    if metadata.get("auto") and value == "auto":
        return True
    if kind is list:
        return isinstance(value, list | tuple) and all(
            fits(entry, item, metadata) for entry in value
        )
    if isinstance(value, bool) and kind in (int, float):  # bool is a subclass of int
        return False
    if kind is float:  # an int is allowed; NaN and infinity are not
        kind = int | float
        metadata = {"most": sys.float_info.max, "least": -sys.float_info.max, **metadata}
    if not isinstance(value, kind):
        return False
    if choices:
        return spell(value) in choices
    return all(
        holds(value, metadata[key]) for key, (_, holds) in LIMITS.items() if key in metadata
    )


def spell(value: Any) -> str:
    """Return a value as text that the command line accepts, such as null, true, 0.1 or [1,2]."""
    if isinstance(value, list | tuple):
        return "[" + ",".join(spell(item) for item in value) + "]"
    if isinstance(value, dict):
        return "{" + ",".join(f"{key}:{spell(item)}" for key, item in value.items()) + "}"
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return str(value)


def wrong_value(key: str, value: Any, needed: str, names: Iterable[str] = ()) -> InputError:
    return InputError(f"{key}={spell(value)}: must be {needed}{nearest(spell(value), names)}")


def check_value(key: str, value: Any, hint: Any, metadata: typing.Mapping[str, Any]) -> None:
    """Raise an `InputError` unless `value` fits the type `hint` and `metadata` (see `fits`)."""
    if not fits(value, hint, metadata):
        raise wrong_value(key, value, allowed(hint, metadata), metadata.get("choices", ()))


def check(config: Any, group: str = "") -> None:
    """Check the value of each option of the dataclass `config` with `check_value`."""
    hints = typing.get_type_hints(type(config))
    for field in dataclasses.fields(config):
        if "help" in field.metadata:
            key = f"{group}.{field.name}" if group else field.name
            check_value(key, getattr(config, field.name), hints[field.name], field.metadata)


def unescaped(text: str) -> str:
    r"""Return `text` with a line break for `\n`, a tab for `\t` and a backslash for two."""
    escapes = {r"\n": "\n", r"\t": "\t", r"\\": "\\"}
    return re.sub(r"\\[nt\\]", lambda escape: escapes[escape[0]], text)
