"""What a person types after `train.py`: read, checked and answered before anything heavy is loaded."""

import dataclasses
import difflib
import itertools
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, OverrideType, ValueType
from hydra.errors import HydraException

from conf.fields import allowed, check_value, nearest, shown
from conf.schema import REFUSED, Config, EarlyStopping, Ema, SearchConfig, from_dict, to_dict
from gpt.config import ModelConfig

CONF = Path(__file__).parent
FLAGS = ("-m", "--multirun", "-h", "--help", "--cfg=job", "--cfg=all", "--resolve")
MOST_TRIALS = 10_000  # values of one key in a sweep
# Groups whose files set keys of the whole configuration.
GLOBAL = ("experiment", "debug")
PLUGGED = ("callbacks", "logger", "launcher")  # groups whose keys are those of someone else's classes
SHAPE = {"layers", "heads", "dim"}  # what presets that `minutes` chooses from differ in


def leaves(values: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every `(dotted key, value)` of nested dicts; each of `PLUGGED` counts as one value."""
    for key, value in values.items():
        if isinstance(value, dict) and key not in PLUGGED:
            yield from leaves(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value


def fields(config: type = Config, prefix: str = "") -> dict[str, tuple[Any, dataclasses.Field]]:
    """Every key of a configuration with its type and its field."""
    found: dict[str, tuple[Any, dataclasses.Field]] = {}
    for name, hint in typing.get_type_hints(config).items():
        inner = dataclasses.is_dataclass(hint)
        own = {prefix + name: (hint, config.__dataclass_fields__[name])}  # type: ignore[attr-defined]
        found |= fields(typing.cast(type, hint), f"{prefix}{name}.") if inner else own
    return found


# Their values are text in which Hydra's grammar would give commas, quotes, brackets or `=` a meaning.
LITERAL = {key for key, (_, field) in fields().items() if field.metadata.get("literal")}
# They say where and how the trials of a sweep run, not what they are.
HOW = {key for key, (_, field) in fields().items() if not field.metadata.get("per_trial", True)}
PLUGINS = fields(EarlyStopping, "callbacks.early_stopping.") | fields(Ema, "callbacks.ema.")
SEARCH = {key: each for key, each in fields(SearchConfig, "hparams_search.").items() if "help" in each[1].metadata}


def groups() -> dict[str, list[str]]:
    """Every configuration group with its choices."""
    return {
        folder.name: sorted(file.stem for file in folder.glob("*.yaml"))
        for folder in sorted(CONF.iterdir())
        if any(folder.glob("*.yaml"))
    }


def choice_values(group: str, choice: str) -> dict[str, Any]:
    """What a file of conf/ sets."""
    return yaml.safe_load((CONF / group / f"{choice}.yaml").read_text("utf-8")) or {}


def presets() -> list[ModelConfig]:
    """The presets of `model=` that differ in their shape alone, from small to large."""
    found = [values for name in groups()["model"] if (values := choice_values("model", name)).keys() <= SHAPE]
    return sorted((ModelConfig(**each) for each in found), key=lambda preset: preset.layers * preset.dim**2)


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
            raise ValueError(f"{flag}: is no flag, must be one of {', '.join(FLAGS)}{nearest(flag, FLAGS)}")


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
        raise ValueError("minutes: chooses trainer.max_steps; give one of the two")
    for argument in arguments:
        group, _, name = argument.partition("=")[0].lstrip("+").partition(".")
        if group == "launcher" and name and "launcher" not in typed:
            raise ValueError(f"{argument}: goes with launcher=slurm")
        if group in PLUGGED and name and group != "launcher" and name.partition(".")[0] not in chosen:
            raise ValueError(f"{argument}: goes with {group}={name.partition('.')[0]}")
        if argument.startswith("=") or ("=" not in argument and not argument.startswith("~")):
            near = nearest(argument, [*known, *choices])
            raise ValueError(f"{argument}: must be key=value, such as model.heads=8{near}")
        try:
            override = OverridesParser.create().parse_override(argument)
        except HydraException as error:
            key = argument.partition("=")[0]
            reason = " ".join(str(error).split("\n")[0].split())
            raise ValueError(
                f"{argument}: the value of {key} cannot be read ({reason}); quote it: '{key}=\"…\"'"
            ) from None
        _check_override(override, argument, known, choices, sweep or search, search)
    for experiment in groups()["experiment"] if "trainer.max_steps" in typed and "minutes" not in typed else []:
        minutes = choice_values("experiment", experiment).get("minutes")
        if minutes and f"experiment={experiment}" in arguments:
            raise ValueError(
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
        raise ValueError(f"{argument}: list the values: {key}=a,b,c")
    if key.startswith("hydra"):
        raise ValueError(f"{key}: is not taken: runs are kept in runs/<name>, and nothing of Hydra's own is written")
    names = [*known, *choices]
    if override.type == OverrideType.DEL:
        raise ValueError(f"{argument}: keys cannot be taken away; give {key} a value")
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
            raise ValueError(f"{key}: no such key; {group}={name} takes {', '.join(takes) or 'none'}")
        return  # an argument of someone else's class
    elif key.removeprefix("trainer.") in REFUSED and key.startswith("trainer."):
        raise ValueError(f"{key}: is not taken: {REFUSED[key.removeprefix('trainer.')]}")
    elif key not in known:
        raise ValueError(f"{key}: no such key{_nearest_key(key, names)}")
    elif override.type == OverrideType.ADD:
        raise ValueError(f"{argument}: {key} exists; write {key}=… without +")
    else:
        given = _values(override)
    if override.value_type == ValueType.INTERVAL_SWEEP and not search:
        raise ValueError(f"{argument}: names no values to try; write {key}=a,b,c or {key}=range(a,b)")
    if override.value_type not in (ValueType.ELEMENT, None) and not sweep:
        raise ValueError(f"{argument}: several values for {key}; -m tries each: python train.py -m {argument}")
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
                    raise ValueError(f"{key}={text}: must be one of {', '.join(choices[key])}{hint}")
        else:
            hint, field = known[key]
            check_value(key, value, hint, field.metadata)


def _values(override: Override) -> list[Any]:
    if override.is_sweep_override():
        values = override.sweep_iterator() if override.is_discrete_sweep() else iter(())
        given = list(itertools.islice(values, MOST_TRIALS + 1))
        if len(given) > MOST_TRIALS:
            raise ValueError(f"{override.input_line}: more than {MOST_TRIALS:,} values")
        return given
    return [override.value()]


def _nearest_key(key: str, names: list[str]) -> str:
    """Name the most similar key; a right name in the wrong place, as in `lr=1`, counts as most similar."""
    last = key.rpartition(".")[2]
    same = [name for name in names if name.rpartition(".")[2] == last]
    if same:
        return f"; nearest: {same[0]}"
    inside = [name for name in names if name.partition(".")[0] == key.partition(".")[0]]
    close = difflib.get_close_matches(key, inside, 1, 0.5)
    by_last = {name.rpartition(".")[2]: name for name in names}
    close = close or [by_last[name] for name in difflib.get_close_matches(last, list(by_last), 1, 0.6)]
    return f"; nearest: {close[0]}" if close else nearest(key, names)


def apply_literals(config: Config, literals: dict[str, str | None]) -> Config:
    """The configuration with the literal values in place."""
    values = to_dict(config)
    for key, value in literals.items():
        set_leaf(values, key, value)
    return from_dict(values)


def typed_keys(arguments: list[str], literals: dict[str, str | None]) -> list[str]:
    """The keys that the typed overrides decide: a group decides whatever any of its files sets."""
    known, choices = fields(), groups()
    keys = list(literals)

    def decided(group: str, choice: str) -> None:
        if group in PLUGGED:
            keys.append(group)
            return
        for name in [choice] if group in GLOBAL else choices[group]:
            content = choice_values(group, name)
            for entry in content.pop("defaults", []):
                if isinstance(entry, dict):
                    for other, value in entry.items():
                        decided(other.removeprefix("override ").strip("/ "), value)
            prefix = "" if group in GLOBAL else f"{group}."
            keys.extend(key for key, _ in leaves(content, prefix) if key in known)

    for argument in arguments:
        override = OverridesParser.create().parse_override(argument)
        key = override.key_or_group
        if key in choices:
            decided(key, str(override.value()))
        elif key in known:
            keys.append(key)
        elif key.partition(".")[0] in PLUGGED:
            keys.append(key.partition(".")[0])
    return list(dict.fromkeys(keys))


def set_leaf(values: dict[str, Any], key: str, value: Any) -> None:
    """Set the value of a dotted key in nested dicts."""
    *path, last = key.split(".")
    for name in path:
        values = values[name]
    values[last] = value


def usage() -> str:
    """The text of `train.py --help`: every group and every key with its meaning, default and range."""
    lines = [
        "usage: python train.py [group=choice ...] [key=value ...]",
        "",
        "Train a character-level GPT. Without arguments: a small model on Python's standard library.",
        "  python train.py data.path=book.txt         your own text",
        "  python train.py model.heads=8              another shape",
        "  python train.py resume=auto                go on with the newest unfinished run",
        "  python train.py init_from=runs/first       start from a trained model",
        "  python train.py -m optim.lr=1e-3,3e-3      a sweep: a run for each, and a table",
        "",
        "groups (a named set of values; single keys go on top)",
    ]
    lines += [f"  {name + '=':13}{'|'.join(choices)}" for name, choices in groups().items()]
    section = None
    for key, (hint, field) in (fields() | SEARCH).items():
        if "help" not in field.metadata:
            continue
        group = key.rpartition(".")[0]
        if group != section:
            section = group
            lines += ["", f"{group or 'run'}"]
        default = field.default_factory() if callable(field.default_factory) else field.default
        lines.append(f"  {f'{key}={shown(default)}':34} {field.metadata['help']} ({allowed(hint, field.metadata)})")
    return "\n".join(lines)
