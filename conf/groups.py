"""The configuration groups in conf/, with their presets and plug-ins.

Plug-ins are the callbacks and loggers that a run chooses by name. Each one's class is in conf/<group>/<name>.yaml.
"""

import typing
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import yaml

from base.errors import InputError, one_line
from base.options import check, option

CONF = Path(__file__).parent
FOLDERS: list[Path] = []  # of `--config-dir`; conf/ comes before them


def add_folder(name: str) -> None:
    """Take presets also from a folder with groups like those of conf/, as Hydra does with `--config-dir`."""
    if not name:
        raise InputError("--config-dir: needs a folder of presets, such as --config-dir presets")
    folder = Path(name).absolute()
    if not any(file for group in groups() for file in folder.glob(f"{group}/*.yaml")):
        raise InputError(f"--config-dir {name}: has no preset, such as {Path(name) / 'model/mine.yaml'}")
    if folder not in FOLDERS:
        FOLDERS.append(folder)


def groups() -> dict[str, list[str]]:
    """Map every configuration group to its choices."""
    found = [folder.name for folder in sorted(CONF.iterdir()) if any(folder.glob("*.yaml"))]
    folders = [CONF, *FOLDERS]
    return {group: sorted({file.stem for each in folders for file in each.glob(f"{group}/*.yaml")}) for group in found}


def choice_values(group: str, choice: str) -> dict[str, Any]:
    """Return the settings in conf/<group>/<choice>.yaml, or in that file of a folder of `--config-dir`."""
    files = [folder / group / f"{choice}.yaml" for folder in [CONF, *FOLDERS]]
    file = next((file for file in files if file.exists()), files[0])
    try:
        values = yaml.safe_load(file.read_text("utf-8")) or {}
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise InputError(f"{file}: {one_line(error)}") from None
    if not isinstance(values, dict):
        raise InputError(f"{file}: must be a mapping of keys to values")
    return values


def default_choices() -> dict[str, str]:
    """Map each group to its default choice, as in conf/train.yaml; a group without one is left out."""
    listed = [entry for entry in choice_values("", "train")["defaults"] if isinstance(entry, dict)]
    return {group: choice for entry in listed for group, choice in entry.items() if choice}


@dataclass(frozen=True)
class EarlyStopping:
    """Options of `callbacks=early_stopping`."""

    monitor: str = option("val/loss", "logged value to minimise", choices=("val/loss", "val/bpc", "val/bpb"))
    patience: int = option(5, "validations without improvement before training stops", least=0)
    min_delta: float = option(0.0, "smallest improvement that counts", least=0)


@dataclass(frozen=True)
class Ema:
    """Options of `callbacks=ema`."""

    decay: float = option(0.998, "decay of the moving average per step", least=0, below=1)


@dataclass(frozen=True)
class NoOptions:
    """None, where an option would let the run write outside its directory."""


# The arguments that a run may set, with their ranges. Of a plug-in that is not here, a run may set all in its file.
OPTIONS: dict[str, type] = {
    "callbacks.early_stopping": EarlyStopping, "callbacks.ema": Ema,
    "logger.csv": NoOptions, "logger.tensorboard": NoOptions,
}  # fmt: skip


def entry(group: str, name: str) -> dict[str, Any]:
    """Return the class, as `_target_`, and the arguments of a plug-in in its file."""
    values = choice_values(group, name).get(name) if name in groups()[group] else None
    if not values:
        raise InputError(f"{group}: {name}: there is no conf/{group}/{name}.yaml that says its class")
    return values


def options(group: str, name: str) -> dict[str, Any]:
    """Return the arguments of a plug-in that a run may set, with the values that they have in its file."""
    values, kind = entry(group, name), OPTIONS.get(f"{group}.{name}")
    takes = values.keys() - {"_target_"} if kind is None else typing.get_type_hints(kind).keys()
    return {key: value for key, value in values.items() if key in takes}


def checked(group: str, chosen: Any) -> dict[str, dict[str, Any]]:
    """Check the chosen plug-ins and return the options of each by name, without what only conf/ may set."""
    if not isinstance(chosen, dict):
        raise InputError(f"{group}: must be a mapping")
    found = {}
    for name, arguments in chosen.items():
        takes = options(group, name)
        for key in arguments if isinstance(arguments, dict) else [str(arguments)]:
            if key not in takes and key not in entry(group, name):
                listed = ", ".join(takes) or "none"
                raise InputError(f"{group}.{name}.{key}: no such key; {group}={name} takes {listed}")
        found[name] = takes | {key: arguments[key] for key in takes if key in arguments}
        if kind := OPTIONS.get(f"{group}.{name}"):
            check(kind(**found[name]), f"{group}.{name}")
    return found


def make(group: str, chosen: dict[str, dict[str, Any]], **more: Any) -> list[Any]:
    """Make callbacks or loggers with the arguments of their files, those of the run and `more`; the last one counts."""
    made = []
    for name, arguments in chosen.items():
        values = entry(group, name) | arguments | more
        module, _, kind = values.pop("_target_").rpartition(".")
        try:
            made.append(getattr(import_module(module), kind)(**values))
        except (ImportError, AttributeError, TypeError, ValueError) as error:
            reason = str(error).splitlines()[0]
            extra = "; pip install -c constraints.txt -e '.[wandb]'" if "wandb" in reason else ""
            raise InputError(f"{group}={name}: cannot be created: {reason}{extra}") from None
    return made
