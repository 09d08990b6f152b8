"""The keys of the configuration with their types, defaults and resume rules, and suggestions for misspelled keys."""

import dataclasses
import typing
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from base.errors import most_similar
from base.options import allowed
from conf.groups import choice_values, groups
from conf.schema import Config, SearchConfig
from gpt.config import ModelConfig

# Names from nanoGPT, Lightning and Hugging Face, and likely guesses, with the key that has this meaning here.
ALIASES = {
    "learning_rate": "optim.lr", "batch_size": "data.batch", "steps": "trainer.max_steps",
    "max_iters": "trainer.max_steps", "n": "name", "out_dir": "name", "block_size": "model.context",
    "n_layer": "model.layers", "n_head": "model.heads", "n_embd": "model.dim", "embed": "model.dim",
    "d_model": "model.dim", "warmup_steps": "optim.warmup", "dataset": "data.path", "val": "data.validation",
    "valid": "data.validation", "text": "data.path", "file": "data.path", "dev": "data.validation",
    "val_path": "data.validation", "valid_path": "data.validation", "test_path": "data.test", "corpus": "data",
    "eval_interval": "trainer.val_check_interval", "eval": "data.validation",
}  # fmt: skip
_STEPS = "the length of training is set in steps: trainer.max_steps=1000"
HINTS = dict.fromkeys(("epochs", "max_epochs", "num_epochs"), _STEPS)  # names that no single key stands for
HINTS["ckpt_path"] = "resume=RUN continues a run, init_from=RUN starts from its model"


@dataclass(frozen=True)
class Key:
    """The properties of a key of the configuration, such as `optim.lr`, read from the dataclass field that it sets."""

    kind: Any  # the type annotation of the field
    default: Any  # the default value, which may be `auto`
    usual: Any  # the value that `auto` becomes in most runs
    # What `base.options.option` stores about the field, such as its help text and its range.
    metadata: Mapping[str, Any]
    # Whether a resumed run may change the key: `free` (always), `allow` (if the key `allow` lists it) or `fixed`
    # (never).
    on_resume: str

    @property
    def allowed(self) -> str:
        """A description of the values that the key accepts, for error messages and help texts."""
        return allowed(self.kind, self.metadata)


def _keys(kind: type, prefix: str = "", rule: str = "allow", values: Any = None) -> Iterator[tuple[str, Key]]:
    """Yield (key, `Key`) for each field of the dataclass `kind` and of the dataclasses in it."""
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
    """Return whether a key, such as `name` or `workers`, concerns only how a run is started, not what it computes."""
    return key in KEYS and KEYS[key].metadata.get("launch", False)


def has_auto(value: Any) -> bool:
    """Return whether `value`, the value of a key, is `auto`."""
    return value == "auto" or (isinstance(value, Mapping) and any("auto" in each.values() for each in value.values()))


def leaves(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield (key, value) for each value in nested dicts that is not a dict itself, such as ("optim.lr", 0.003).

    The dicts `callbacks` and `logger` are exceptions: each of them is yielded as a single value.
    """
    for key, value in values.items():
        if isinstance(value, dict) and not is_plugins(key):
            yield from leaves(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value


def nearest_key(key: str, names: list[str]) -> str:
    """Return a hint for an unknown key, such as "; nearest: optim.lr" for `LR`, or "" if no known key is similar."""
    last = key.lower().rpartition(".")[2]
    if last in HINTS:
        return f"; {HINTS[last]}"
    if last in ALIASES:
        return f"; use {ALIASES[last]}"
    full = {name: name for name in names} | {name.rpartition(".")[2]: name for name in reversed(names)}
    close = most_similar(last, full)
    return f"; nearest: {full[close]}" if close else ""


def presets() -> list[ModelConfig]:
    """Return the models among which `minutes=` chooses, from small to large."""
    found = [choice_values("model", name) for name in groups()["model"]]
    sizes = [ModelConfig(**values) for values in found if values.keys() == {"layers", "heads", "dim"}]
    return sorted(sizes, key=lambda size: size.layers * size.dim**2)
