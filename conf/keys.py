"""The keys of the configuration: their types, special kinds, and the nearest one to a mistyped key."""

import dataclasses
import difflib
import typing
from collections.abc import Iterator
from typing import Any

from base.errors import nearest
from conf.groups import choice_values, groups
from conf.schema import Config, SearchConfig
from gpt.config import ModelConfig

GLOBAL = ("experiment", "debug")  # groups whose files set keys of the whole configuration
PLUGGED = ("callbacks", "logger")  # groups whose keys are arguments of other libraries' classes
SHAPE = {"layers", "heads", "dim"}  # `minutes` chooses among the `model=` presets that set only these keys


def leaves(values: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every `(dotted key, value)` of nested dicts; a group in `PLUGGED` counts as one value."""
    for key, value in values.items():
        if isinstance(value, dict) and key not in PLUGGED:
            yield from leaves(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value


def fields(config: type = Config, prefix: str = "") -> dict[str, tuple[Any, dataclasses.Field]]:
    """Map every dotted key of a dataclass to its type and field."""
    found: dict[str, tuple[Any, dataclasses.Field]] = {}
    for name, hint in typing.get_type_hints(config).items():
        inner = dataclasses.is_dataclass(hint)
        own = {prefix + name: (hint, config.__dataclass_fields__[name])}  # type: ignore[attr-defined]
        found |= fields(typing.cast(type, hint), f"{prefix}{name}.") if inner else own
    return found


SEARCH = {key: each for key, each in fields(SearchConfig, "hparams_search.").items() if "help" in each[1].metadata}
KNOWN = fields() | SEARCH
# Keys whose values Hydra's grammar must not read: a path may have commas, quotes, brackets or `=`.
LITERAL = {key for key, (_, field) in fields().items() if field.metadata.get("literal")}
# Keys that say where and how a run or the trials of a sweep run, not what they compute.
HOW = {"name", "resume", "allow", "workers"}
# What people type who know nanoGPT, Lightning or Hugging Face, and the settings here.
ALIASES = {
    "ckpt_path": "resume", "learning_rate": "optim.lr", "batch_size": "data.batch",
    "epochs": "trainer.max_steps", "max_epochs": "trainer.max_steps", "max_iters": "trainer.max_steps",
    "out_dir": "name", "block_size": "model.context", "n_layer": "model.layers", "n_head": "model.heads",
    "n_embd": "model.dim", "dataset": "data.path", "corpus": "data", "eval_interval": "trainer.val_check_interval",
}  # fmt: skip


def nearest_key(key: str, names: list[str]) -> str:
    """Suggest a key, first one whose last component is similar, such as `optim.lr` for `lr=1`."""
    if key == "ckpt_path":
        return "; resume=RUN continues a run, init_from=RUN starts from its model"
    if key.rpartition(".")[2] in ALIASES:
        return f"; it is {ALIASES[key.rpartition('.')[2]]} here"
    by_last = {name.rpartition(".")[2]: name for name in reversed(names)}
    close = difflib.get_close_matches(key.rpartition(".")[2], by_last, 1, 0.6)
    return f"; nearest: {by_last[close[0]]}" if close else nearest(key, names)


def presets() -> list[ModelConfig]:
    """Return the presets of `model=` that set nothing but the shape, from small to large."""
    found = [values for name in groups()["model"] if (values := choice_values("model", name)).keys() <= SHAPE]
    return sorted((ModelConfig(**each) for each in found), key=lambda preset: preset.layers * preset.dim**2)


def set_leaf(values: dict[str, Any], key: str, value: Any) -> None:
    """Set the value of a dotted key in nested dicts."""
    *path, last = key.split(".")
    for name in path:
        values = values[name]
    values[last] = value
