"""The names that a command line may set: keys with their types, defaults and resume rules, and groups of presets."""

import dataclasses
import typing
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from base.errors import InputError, most_similar, one_line
from base.options import allowed
from conf.schema import Config, SearchConfig
from gpt.config import ModelConfig

CONF = Path(__file__).parent
FOLDERS: list[Path] = []  # of `--config-dir`; a preset in conf/ takes precedence over theirs


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

    @property
    def may_be_list(self) -> bool:
        return "list" in self.allowed  # `a list of numbers`, or `number, text or list`


def _keys(
    kind: type, prefix: str = "", rule: str = "allow", values: Any = None
) -> Iterator[tuple[str, Key]]:
    """Yield (name, key) for each option in the dataclass `kind` and in those that it contains.

    `rule` applies to options without `on_resume`, and `values`, an instance of `kind`, has the
    defaults if they are not those of the fields.
    """
    hints = typing.get_type_hints(kind)
    for field in dataclasses.fields(kind):
        name = prefix + field.name
        on_resume = field.metadata.get("on_resume") or rule
        value = field.default_factory() if callable(field.default_factory) else field.default
        if dataclasses.is_dataclass(value):
            yield from _keys(type(value), f"{name}.", on_resume, value)
        elif field.metadata:  # a field without is no option: `space` of a search
            default = getattr(values, field.name) if values else value
            yield name, Key(hints[field.name], default, field.default, field.metadata, on_resume)


KEYS = dict(_keys(Config))  # of a run
SEARCH_KEYS = dict(_keys(SearchConfig, "hparams_search."))


def is_launch(key: str) -> bool:
    return key in KEYS and KEYS[key].metadata.get("launch", False)


def is_verbatim(key: str) -> bool:
    return key in KEYS and KEYS[key].metadata.get("verbatim", False)


def has_auto(value: Any) -> bool:
    """Return whether a value, or an argument of a plug-in, is `auto`."""
    if isinstance(value, Mapping):
        return any("auto" in arguments.values() for arguments in value.values())
    return value == "auto"


def add_folder(name: str) -> None:
    """Make the presets in the folder `name`, which has a folder for each group as conf/ has, available."""
    folder = Path(name).absolute()
    if not name or not folder.is_dir():
        raise InputError(f"--config-dir {name}: no such folder")
    if not any(file for group in groups() for file in folder.glob(f"{group}/*.yaml")):
        raise InputError(
            f"--config-dir {name}: contains no preset, such as {Path(name) / 'model/mine.yaml'}"
        )
    if folder not in FOLDERS:
        FOLDERS.append(folder)


def groups() -> dict[str, list[str]]:
    return _groups((CONF, *FOLDERS))


@cache  # a sweep calls it for each of its runs
def _groups(folders: tuple[Path, ...]) -> dict[str, list[str]]:
    presets = dict[str, list[str]]()
    for group in sorted(folders[0].iterdir()):
        if any(group.glob("*.yaml")):
            names = {
                file.stem for folder in folders for file in folder.glob(f"{group.name}/*.yaml")
            }
            presets[group.name] = sorted(names)
    return presets


def choice_values(group: str, choice: str) -> dict[str, Any]:
    """Return the settings in the file of the preset `choice`, or raise an `InputError`."""
    files = [folder / group / f"{choice}.yaml" for folder in [CONF, *FOLDERS]]
    # if there is none, the error names that of conf/
    file = next((file for file in files if file.exists()), files[0])
    try:
        values = OmegaConf.to_container(OmegaConf.load(file))
    except (OSError, ValueError, yaml.YAMLError, OmegaConfBaseException) as error:
        raise InputError(f"{file}: {one_line(error)}") from None
    if not isinstance(values, dict):
        raise InputError(f"{file}: must be a mapping of keys to values")
    return values  # type: ignore[return-value]


def nearest_key(key: str, others: Iterable[str] = ()) -> str:
    """Return the end of an error line, such as "; nearest: optim.lr" for `LR`: the last component must be similar."""
    names = [*KEYS, *SEARCH_KEYS, *groups(), *others]
    full = {name: name for name in names}
    # reversed: of the keys with the same last component, the first one counts
    for name in reversed(names):
        _, _, last = name.rpartition(".")
        full[last] = name
    close = most_similar(key.rpartition(".")[2], full)
    return f"; nearest: {full[close]}" if close else ""


def presets() -> list[ModelConfig]:
    """Return the presets of `model=` that set only layers, heads and width, from small to large."""
    files = [choice_values("model", name) for name in groups()["model"]]
    sizes = [
        ModelConfig(**values) for values in files if values.keys() == {"layers", "heads", "dim"}
    ]
    return sorted(sizes, key=lambda size: size.layers * size.dim**2)
