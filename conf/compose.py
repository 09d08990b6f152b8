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
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from base.errors import InputError, one_line
from conf.files import CONF, choice_values, groups
from conf.hydra_grammar import parse
from conf.keys import GLOBAL, PLUGGED, fields, leaves, set_leaf
from conf.schema import Config, from_dict, to_dict

MAX_RUNS = 10_000  # runs of one sweep


@dataclass(frozen=True)
class ParsedRun:
    """One run of a command line."""

    config: Config
    keys: list[str]  # typed, or set by a typed group
    overrides: list[str]  # as typed, without literals


@contextmanager
def _hydra() -> Iterator[None]:
    """Let Hydra read conf/ on top of the defaults of `Config`; turn its errors into an `InputError` of one line."""
    ConfigStore.instance().store("schema", to_dict(Config()))
    try:
        with hydra.initialize_config_dir(str(CONF), version_base="1.3", job_name="train"):
            yield
    except (HydraException, OmegaConfBaseException) as error:
        key = getattr(error, "full_key", None)  # of OmegaConf's errors, which repeat it at the end of their message
        message = str(error).partition("\n    full_key:")[0]
        raise InputError(one_line(f"{key}: {message}" if key else message)) from None


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
    with _hydra():
        return [
            ParsedRun(
                from_dict(_with_literals(hydra.compose("train", overrides), literals, resolve=True)),
                typed_keys(overrides, literals),
                overrides,
            )
            for overrides in runs
        ]


def show(overrides: list[str], literals: Mapping[str, str | None], part: str, resolve: bool) -> str:
    """Return the configuration of one run as YAML, like Hydra's `--cfg`.

    `part` is `job` for the run, `hydra` for Hydra's own settings, or `all`. `resolve` replaces interpolations, such as
    `${seed}`, by their values.
    """
    with _hydra():
        config = hydra.compose("train", overrides, return_hydra_config=True)
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


def typed_keys(arguments: list[str], literals: Mapping[str, str | None]) -> list[str]:
    """List the keys that the overrides and literals set; a group such as `model=` sets the keys in all its files."""
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

    for override in parse(arguments):
        key = override.key_or_group
        if key in choices:
            decided(key, str(override.value()))
        elif key in known:
            keys.append(key)
        elif key.partition(".")[0] in PLUGGED:
            keys.append(key.partition(".")[0])
    return list(dict.fromkeys(keys))
