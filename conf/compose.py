"""Compose the configurations that a command line asks for, with Hydra."""

import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import product
from typing import Any

import hydra
from hydra.core.config_store import ConfigStore
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException
from omegaconf import OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from base.errors import InputError, one_line
from conf.groups import CONF, FOLDERS, choice_values, default_choices, groups
from conf.hydra_grammar import parse
from conf.keys import GLOBAL, leaves, set_leaf
from conf.schema import Config, from_dict, to_dict

MAX_RUNS = 10_000  # runs of one sweep


@dataclass(frozen=True)
class ParsedRun:
    """One run of a command line."""

    config: Config
    typed: dict[str, Any]  # the typed layer: keys that were typed or set by a typed group, with their values
    overrides: list[str]  # as typed, without literals


@contextmanager
def _hydra() -> Iterator[None]:
    """Let Hydra read conf/ on top of the defaults of `Config`; turn its errors into an `InputError` of one line."""
    ConfigStore.instance().store("schema", to_dict(Config()))
    try:
        with hydra.initialize_config_dir(str(CONF), version_base="1.3", job_name="train"):
            yield
    except (HydraException, OmegaConfBaseException, YAMLError) as error:
        key = getattr(error, "full_key", None)  # of OmegaConf's errors, which repeat it at the end of their message
        message = str(error).partition("\n    full_key:")[0]
        raise InputError(one_line(f"{key}: {message}" if key else message)) from None


def _search_path() -> str:
    """Return the override that has Hydra look for presets in the folders of `--config-dir`, too."""
    return f"hydra.searchpath={[f'file://{folder}' for folder in FOLDERS]}"


def combinations(overrides: list[str]) -> list[list[str]]:
    """Return the overrides of each run: every combination of the values that were typed."""
    choices = {}
    for each in parse(overrides):
        key = each.get_key_element()
        values = each.sweep_string_iterator() if each.is_sweep_override() else [each.get_value_element_as_str()]
        choices[key] = [f"{key}={value}" for value in values]
    count = math.prod(map(len, choices.values()))
    if count > MAX_RUNS:
        raise InputError(f"-m: {count:,} combinations of values; must be at most {MAX_RUNS:,}")
    return [list(each) for each in product(*choices.values())]


def compose(runs: Iterable[list[str]], literals: Mapping[str, str | None]) -> list[ParsedRun]:
    """Compose each run from its overrides and from the literal values by key, which all runs share."""
    parsed = []
    with _hydra():
        for overrides in runs:
            composed = hydra.compose("train", [*overrides, _search_path()], return_hydra_config=True)
            choices = composed.hydra.runtime.choices
            with open_dict(composed):
                del composed["hydra"]
            values = _with_literals(composed, literals, resolve=True)
            keys = _typed_keys(overrides, literals, choices)
            keys |= {"callbacks"} if values["callbacks"] else set()  # Hydra lists no choice of several
            layer = {key: value for key, value in leaves(values) if key in keys}
            parsed.append(ParsedRun(from_dict(values), layer, overrides))
    return parsed


def show(overrides: list[str], literals: Mapping[str, str | None], part: str, resolve: bool) -> str:
    """Return the configuration of one run as YAML, like Hydra's `--cfg`.

    `part` is `job` for the run, `hydra` for Hydra's own settings, or `all`. `resolve` replaces interpolations, such as
    `${seed}`, by their values.
    """
    with _hydra():
        config = hydra.compose("train", [*overrides, _search_path()], return_hydra_config=True)
        HydraConfig.instance().set_config(config)  # interpolations of `${hydra:…}` read this
        values = _with_literals(config, literals, resolve)
    own = values.pop("hydra")
    if part == "hydra":  # Hydra leaves its help texts out
        values = {}
        del own["help"], own["hydra_help"]
    return OmegaConf.to_yaml(values if part == "job" else values | {"hydra": own})


def _with_literals(config: Any, literals: Mapping[str, str | None], resolve: bool) -> dict[str, Any]:
    """Return Hydra's configuration as nested dicts with the literal values."""
    values: dict[str, Any] = OmegaConf.to_container(config, resolve=resolve, enum_to_str=True)  # type: ignore[assignment]
    for key, value in literals.items():
        set_leaf(values, key, value)
    return values


def _typed_keys(overrides: list[str], literals: Mapping[str, str | None], choices: Mapping[str, Any]) -> set[str]:
    """Return the keys that overrides and literals set; `model=small` sets every key that a preset of `model` has.

    `choices` are Hydra's, by group: an experiment may choose for other groups. Names of groups are among the keys.
    """
    typed, defaults = {each.key_or_group for each in parse(overrides)}, default_choices()
    keys = {*literals, *typed, *(key.partition(".")[0] for key in typed)}
    for group, files in groups().items():
        choice = choices.get(group)
        if group in GLOBAL and choice:
            keys |= {key for key, _ in leaves(choice_values(group, choice))}
        elif group in typed or choice != defaults.get(group):
            keys |= {group, *(key for file in files for key, _ in leaves(choice_values(group, file), f"{group}."))}
    return keys
