"""Compose the configurations that a command line asks for, with Hydra."""

import io
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, redirect_stderr
from dataclasses import dataclass

from base.errors import InputError, one_line
from conf.files import CONF, choice_values, groups
from conf.hydra_grammar import parse
from conf.keys import GLOBAL, PLUGGED, fields, leaves, set_leaf
from conf.schema import Config, from_dict, to_dict


@dataclass(frozen=True)
class ParsedRun:
    """One run of a command line.

    Attributes:
        config: its configuration.
        keys: the keys that were typed, or that a typed group sets.
        overrides: the typed overrides, without literals.
    """

    config: Config
    keys: list[str]
    overrides: list[str]


def store_schema() -> None:
    """Have Hydra check and convert values by the fields of `Config`."""
    from hydra.core.config_store import ConfigStore
    from omegaconf import OmegaConf

    schema = OmegaConf.structured(Config)
    for node in (schema, *filter(OmegaConf.is_config, schema.values())):
        OmegaConf.set_readonly(node, None)  # OmegaConf takes a frozen dataclass for one that nothing may override
    ConfigStore.instance().store("schema", node=schema)


@contextmanager
def hydra_errors(where: str = "") -> Iterator[None]:
    """Turn errors of Hydra and OmegaConf into an `InputError` of one line that begins with `where`."""
    from hydra.errors import HydraException
    from omegaconf.errors import OmegaConfBaseException

    os.environ["HYDRA_FULL_ERROR"] = "1"  # Hydra then raises errors instead of printing them
    store_schema()
    try:
        yield
    except (HydraException, OmegaConfBaseException, InputError) as error:
        raise InputError(where + one_line(error)) from None


def compose_command(
    arguments: list[str], flags: list[str], rest: list[str], literals: dict[str, str | None], sweep: bool
) -> list[ParsedRun]:
    """Compose each run of a command line; none if Hydra only shows the configuration (`--cfg`).

    Args:
        arguments: the whole command line; sys.argv has it again afterwards.
        flags: its flags, as `conf.overrides.check_command` returns them, and so on.
        rest: its overrides.
        literals: its literal values, by key.
        sweep: whether it asks for several runs.

    Raises:
        InputError: an override is wrong.
    """
    import hydra
    from hydra.core.hydra_config import HydraConfig
    from omegaconf import DictConfig, OmegaConf

    composed: list[tuple[DictConfig, list[str]]] = []

    @hydra.main(version_base="1.3", config_path=str(CONF), config_name="train")
    def compose(config: DictConfig) -> None:
        composed.append((config, list(HydraConfig.get().overrides.task)))

    with hydra_errors():
        # For a sweep, Hydra writes a file of its own.
        with tempfile.TemporaryDirectory() if sweep else nullcontext() as folder:
            sys.argv[1:] = [*flags, *rest, *([f"hydra.sweep.dir='{folder}'"] if sweep else [])]
            with redirect_stderr(io.StringIO()):  # Hydra prints errors, too
                compose()
        sys.argv[1:] = arguments  # Lightning starts the other ranks with this command
        typed = [
            ParsedRun(apply_literals(OmegaConf.to_object(config), literals), typed_keys(given, literals), given)  # type: ignore[arg-type]
            for config, given in composed
        ]
        for key in ("workers", "launcher"):
            if not sweep and any(key in each.keys for each in typed):
                also = " or hparams_search=default" if key == "workers" else ""
                raise InputError(f"{key}: goes with -m{also}, for several runs")
    return typed


def compose_configs(commands: list[list[str]], literals: dict[str, str | None]) -> list[Config]:
    """Compose one configuration for each list of overrides.

    Raises:
        HydraException, OmegaConfBaseException, InputError: an override is wrong; see `hydra_errors`.
    """
    import hydra
    from omegaconf import OmegaConf

    with hydra.initialize_config_dir(str(CONF), version_base="1.3"):
        composed = [hydra.compose("train", overrides) for overrides in commands]
    return [apply_literals(OmegaConf.to_object(each), literals) for each in composed]  # type: ignore[arg-type]


def apply_literals(config: Config, literals: dict[str, str | None]) -> Config:
    """Return the configuration with the literal values."""
    values = to_dict(config)
    for key, value in literals.items():
        set_leaf(values, key, value)
    return from_dict(values)


def typed_keys(arguments: list[str], literals: dict[str, str | None]) -> list[str]:
    """List the keys that the overrides set; a group counts for each key that any of its files sets."""
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
