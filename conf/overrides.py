"""What a person types after `train.py`: read, checked and answered before anything heavy is loaded."""

import dataclasses
import difflib
import itertools
from pathlib import Path
from typing import Any

from hydra.errors import HydraException

from base.errors import InputError, nearest
from base.options import check_value, shown
from conf.hydra_grammar import Override, OverrideType, ValueType, parse
from conf.keys import LITERAL, PLUGGED, PLUGINS, SEARCH, choice_values, fields, groups
from conf.schema import REFUSED

FLAGS = ("-m", "--multirun", "-h", "--help", "--cfg=job", "--cfg=all", "--resolve")
MAX_VALUES = 10_000  # values of one key in a sweep


def check_command(
    arguments: list[str], search: bool = False
) -> tuple[list[str], list[str], dict[str, str | None], bool]:
    """Check a command line before Hydra reads it.

    Args:
        arguments: what was typed.
        search: whether it is a search, whose values may be ranges.

    Returns:
        The flags, the overrides, the literal values by key, and whether it asks for a sweep.

    Raises:
        InputError: what is wrong, in one line.
    """
    flags = [argument for argument in arguments if argument.startswith("-")]
    overrides, literals = split_literals([argument for argument in arguments if not argument.startswith("-")])
    check_flags(flags)
    sweep = bool({"-m", "--multirun"} & set(flags))
    check_overrides(overrides, literals, sweep, search)
    return flags, overrides, literals, sweep


def split_literals(arguments: list[str]) -> tuple[list[str], dict[str, str | None]]:
    """Take the overrides whose values are plain text out of the hands of Hydra's grammar.

    Returns:
        The other arguments, and the literal values by key; `null` is None.
    """
    rest, literals = [], {}
    for argument in arguments:
        key, equals, value = argument.partition("=")
        if equals and key in LITERAL:
            literals[key] = None if value == "null" else value
        else:
            rest.append(argument)
    return rest, literals


def check_flags(flags: list[str]) -> None:
    """Refuse flags of Hydra's that would break what this program promises, and those that are none.

    Raises:
        ValueError: one line with the flag and those that are taken.
    """
    for flag in flags:
        if flag not in FLAGS:
            raise InputError(f"{flag}: is no flag, must be one of {', '.join(FLAGS)}{nearest(flag, FLAGS)}")


def check_overrides(
    arguments: list[str], literals: dict[str, str | None], sweep: bool = False, search: bool = False
) -> None:
    """Refuse what is wrong with single overrides.

    Args:
        arguments: the overrides, without flags and literals.
        literals: values of the literal keys.
        sweep: whether several values for a key are allowed, as with `-m`.
        search: whether intervals are allowed, too, as with `hparams_search=`.

    Raises:
        ValueError: one line with the key, the value, what is allowed and the nearest right name.
    """
    known, choices = fields() | SEARCH, groups()
    for key, value in literals.items():
        check_value(key, value, known[key][0], known[key][1].metadata)
    chosen = {"tensorboard"} | {
        name
        for argument in arguments
        if argument.partition("=")[0] in PLUGGED
        for name in argument.partition("=")[2].strip("[]").split(",")
    }
    typed = [argument.partition("=")[0].lstrip("+") for argument in arguments]
    off = any(argument.partition("=")[::2] == ("minutes", "null") for argument in arguments)
    if "minutes" in typed and not off and "trainer.max_steps" in typed:
        raise InputError("minutes: chooses trainer.max_steps; give one of the two")
    for argument in arguments:
        group, _, name = argument.partition("=")[0].lstrip("+").partition(".")
        if group == "launcher" and name and "launcher" not in typed:
            raise InputError(f"{argument}: goes with launcher=slurm")
        if group in PLUGGED and name and group != "launcher" and name.partition(".")[0] not in chosen:
            raise InputError(f"{argument}: goes with {group}={name.partition('.')[0]}")
        if argument.startswith("=") or ("=" not in argument and not argument.startswith("~")):
            near = nearest(argument, [*known, *choices])
            raise InputError(f"{argument}: must be key=value, such as model.heads=8{near}")
        try:
            override = parse([argument])[0]
        except HydraException as error:
            key = argument.partition("=")[0]
            reason = " ".join(str(error).split("\n")[0].split())
            raise InputError(
                f"{argument}: the value of {key} cannot be read ({reason}); quote it: '{key}=\"…\"'"
            ) from None
        _check_override(override, argument, known, choices, sweep or search, search)
    for experiment in groups()["experiment"] if "trainer.max_steps" in typed and "minutes" not in typed else []:
        minutes = choice_values("experiment", experiment).get("minutes")
        if minutes and f"experiment={experiment}" in arguments:
            raise InputError(
                f"trainer.max_steps: experiment={experiment} has minutes={minutes}, which chooses it; "
                "minutes=null goes by steps"
            )


def _check_override(
    override: Override,
    argument: str,
    known: dict[str, tuple[Any, dataclasses.Field]],
    choices: dict[str, list[str]],
    sweep: bool,
    search: bool,
) -> None:
    key = override.key_or_group
    if override.value_type == ValueType.GLOB_CHOICE_SWEEP:
        raise InputError(f"{argument}: list the values: {key}=a,b,c")
    if key.startswith("hydra"):
        raise InputError(f"{key}: is not taken: runs are kept in runs/<name>, and nothing of Hydra's own is written")
    names = [*known, *choices]
    if override.type == OverrideType.DEL:
        raise InputError(f"{argument}: keys cannot be taken away; give {key} a value")
    plain = key.partition("@")[0]
    if key in choices:
        given = _values(override)
    elif plain in PLUGINS:
        known, given = known | PLUGINS, _values(override)
    elif plain.startswith("launcher."):
        return
    elif plain.partition(".")[0] in PLUGGED:
        group, _, name = plain.partition(".")
        name = name.partition(".")[0]
        if name in choices[group] and name != "wandb":
            takes = [each.rpartition(".")[2] for each in PLUGINS if each.startswith(f"{group}.{name}.")]
            raise InputError(f"{key}: no such key; {group}={name} takes {', '.join(takes) or 'none'}")
        return  # an argument of someone else's class
    elif key.removeprefix("trainer.") in REFUSED and key.startswith("trainer."):
        raise InputError(f"{key}: is not taken: {REFUSED[key.removeprefix('trainer.')]}")
    elif key not in known:
        raise InputError(f"{key}: no such key{_nearest_key(key, names)}")
    elif override.type == OverrideType.ADD:
        raise InputError(f"{argument}: {key} exists; write {key}=… without +")
    else:
        given = _values(override)
    if override.value_type == ValueType.INTERVAL_SWEEP and not search:
        raise InputError(f"{argument}: names no values to try; write {key}=a,b,c or {key}=range(a,b)")
    if override.value_type not in (ValueType.ELEMENT, None) and not sweep:
        raise InputError(f"{argument}: several values for {key}; -m tries each: python train.py -m {argument}")
    for value in given:
        if isinstance(value, str) and "${" in value:
            continue
        if key in choices:
            several = isinstance(value, list) and key in ("callbacks", "logger")
            for choice in value if several else [value]:
                if choice is not None and choice not in choices[key]:  # null leaves a group out
                    text = shown(choice)
                    hint = nearest(text, choices[key])
                    if key == "data" and not hint and ("." in text or "/" in text or Path(text).exists()):
                        hint = f"; for your own text: data.path={text}"
                    raise InputError(f"{key}={text}: must be one of {', '.join(choices[key])}{hint}")
        else:
            hint, field = known[key]
            check_value(key, value, hint, field.metadata)


def _values(override: Override) -> list[Any]:
    if override.is_sweep_override():
        values = override.sweep_iterator() if override.is_discrete_sweep() else iter(())
        given = list(itertools.islice(values, MAX_VALUES + 1))
        if len(given) > MAX_VALUES:
            raise InputError(f"{override.input_line}: more than {MAX_VALUES:,} values")
        return given
    return [override.value()]


def _nearest_key(key: str, names: list[str]) -> str:
    """Name the most similar key; a right name in the wrong place, as in `lr=1`, counts as most similar."""
    last = key.rpartition(".")[2]
    same = [name for name in names if name.rpartition(".")[2] == last]
    if same:
        return f"; nearest: {same[0]}"
    by_last = {name.rpartition(".")[2]: name for name in names}
    close = [by_last[name] for name in difflib.get_close_matches(last, list(by_last), 1, 0.6)]
    return f"; nearest: {close[0]}" if close else nearest(key, names)
