"""The keys of the configuration with their types, defaults and resume rules, and suggestions for misspelled keys."""

import dataclasses
import typing
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from base.errors import most_similar
from base.options import allowed
from conf.groups import choice_values, groups
from conf.schema import Config, SearchConfig
from gpt.config import ModelConfig


@dataclass(frozen=True)
class Key:
    """A key of the configuration, such as `optim.lr`, as the dataclass field that it sets describes it."""

    kind: Any  # the type annotation of the field
    default: Any  # may be `auto`
    usual: Any  # the value that `auto` becomes in most runs
    metadata: Mapping[str, Any]  # from `base.options.option`
    on_resume: str

    @property
    def allowed(self) -> str:
        return allowed(self.kind, self.metadata)


def _keys(kind: type, prefix: str = "", rule: str = "allow", values: Any = None) -> Iterator[tuple[str, Key]]:
    hints = typing.get_type_hints(kind)
    for field in dataclasses.fields(kind):
        name, own = prefix + field.name, field.metadata.get("on_resume") or rule
        value = field.default_factory() if callable(field.default_factory) else field.default
        if dataclasses.is_dataclass(value):
            yield from _keys(type(value), f"{name}.", own, value)
        elif field.metadata:
            default = getattr(values, field.name) if values else value
            yield name, Key(hints[field.name], default, field.default, field.metadata, own)


KEYS = dict(_keys(Config))  # of a run
SEARCH_KEYS = dict(_keys(SearchConfig, "hparams_search."))


def is_plugins(group: str) -> bool:
    """Return whether `group` is `callbacks` or `logger`, whose keys are arguments of classes."""
    return group in KEYS and "plugins" in KEYS[group].metadata


def is_launch(key: str) -> bool:
    """Return whether a key, such as `name`, concerns only how a run is started, not what it computes."""
    return key in KEYS and KEYS[key].metadata.get("launch", False)


def has_auto(value: Any) -> bool:
    """Return whether the value of a key is `auto` or, if the key is `callbacks` or `logger`, has an argument `auto`."""
    return value == "auto" or (isinstance(value, Mapping) and any("auto" in each.values() for each in value.values()))


def leaves(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield (key, value), such as ("optim.lr", 0.003), from nested dicts; `callbacks` and `logger` stay dicts."""
    for key, value in values.items():
        if isinstance(value, dict) and not is_plugins(key):
            yield from leaves(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value


def nearest_key(key: str, others: Iterable[str] = ()) -> str:
    """Return the end of an error line about an unknown key or flag, such as "; nearest: optim.lr" for `LR`.

    Only the last component of a key must be similar. `others` are further names, such as flags.
    """
    names = [*KEYS, *SEARCH_KEYS, *groups(), *others]
    full = {name: name for name in names} | {name.rpartition(".")[2]: name for name in reversed(names)}
    close = most_similar(key.rpartition(".")[2], full)
    return f"; nearest: {full[close]}" if close else ""


def presets() -> list[ModelConfig]:
    """Return the presets of `model=` that set only layers, heads and width, from small to large.

    A run with a time limit (`minutes=N`) chooses among them.
    """
    found = [choice_values("model", name) for name in groups()["model"]]
    sizes = [ModelConfig(**values) for values in found if values.keys() == {"layers", "heads", "dim"}]
    return sorted(sizes, key=lambda size: size.layers * size.dim**2)
