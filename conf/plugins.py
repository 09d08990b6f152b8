"""The callbacks and loggers that a run chooses by name; the class of each is in conf/<group>/<name>.yaml."""

import typing
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from base.errors import InputError
from base.options import check, option
from conf.groups import choice_values, groups


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
