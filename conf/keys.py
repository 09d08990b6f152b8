"""Every key of the configuration, every group and its presets."""

import dataclasses
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from conf.schema import Config, EarlyStopping, Ema, SearchConfig
from gpt.config import ModelConfig

CONF = Path(__file__).parent
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


def set_leaf(values: dict[str, Any], key: str, value: Any) -> None:
    """Set the value of a dotted key in nested dicts."""
    *path, last = key.split(".")
    for name in path:
        values = values[name]
    values[last] = value
