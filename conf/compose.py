"""Compose the configuration of a run with Hydra: of a new run from conf/, of a resumed run from its config.yaml."""

import copy
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any

import hydra
import yaml
from hydra.core.config_store import ConfigStore
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import ConfigAttributeError, ConfigKeyError, OmegaConfBaseException, ValidationError

from base import ranks
from base.errors import InputError, one_line
from base.options import spell
from conf import yaml_text
from conf.groups import CONF, FOLDERS, groups
from conf.keys import KEYS, has_auto, is_plugins, nearest_key
from conf.overrides import Setting
from conf.schema import Config

PLUGINS = tuple(key for key in KEYS if is_plugins(key))
Literals = Mapping[str, str | None]


def compose(settings: Sequence[Setting], literals: Literals, trained: Mapping[str, Any] | None = None) -> Config:
    """Compose the configuration of a new run from the defaults, the presets and the command line."""
    with _one_line():
        config = _set(_presets("train", settings, trained), settings, literals)
        found: Config = OmegaConf.to_object(config)  # type: ignore[assignment]
    for group in PLUGINS:
        _check_names(group, getattr(found, group))
    if found.minutes is not None:
        _check_minutes(found)
    return found


def _check_minutes(config: Config) -> None:
    minutes, steps = f"minutes={config.minutes:g}", config.trainer.max_steps
    if steps != "auto":
        keep = "set minutes=null to keep these steps, or trainer.max_steps=auto to keep the minutes"
        raise InputError(f"{minutes}: chooses trainer.max_steps, but trainer.max_steps={steps} is set; {keep}")
    if config.optim.schedule != "trapezoid":
        why = "because a cosine depends on the number of steps, which is chosen while the run trains"
        raise InputError(f"{minutes}: needs optim.schedule=trapezoid, {why}; or set trainer.max_steps instead")


def compose_resumed(settings: Sequence[Setting], literals: Literals, stored: Config) -> Config:
    """Compose the configuration of a resumed run: the one in its config.yaml, changed by the command line."""
    base = asdict(stored) | {"resume": None, "allow": []}
    base["trainer"] |= {"num_nodes": "auto"} | ({"devices": "auto"} if ranks.launched() else {})
    replaced = base | {group: {} for group in PLUGINS if group in {each.key for each in settings}}
    with _one_line():
        config = _set(_presets("resume", settings, replaced), settings, literals)
        for key in KEYS.keys() - literals.keys():
            if has_auto(OmegaConf.select(config, key)):
                *path, last = key.split(".")
                OmegaConf.update(config, key, escaped(base[path[0]][last] if path else base[key]), merge=False)
        return OmegaConf.to_object(config)  # type: ignore[return-value]


def read_config(run: Path) -> Config:
    """Return the configuration in the config.yaml of the run directory `run`.

    The file cannot make the program execute other code: it contains only the names of callbacks and loggers, and the
    files of conf/ contain the class for each name.
    """
    path = run / "config.yaml"
    try:
        values = yaml_text.read(path.read_text("utf-8"))
        if not isinstance(values, dict):
            raise InputError("must be a mapping of keys to values")
        for group, default in asdict(Config()).items():
            if isinstance(default, dict) and not isinstance(values.get(group, {}), dict):
                raise InputError(f"{group}={spell(values[group])}: must be a mapping")
        chosen = []
        for group in PLUGINS:
            plugins = values.get(group, {})
            if not all(isinstance(each, dict) for each in plugins.values()):
                raise InputError(f"{group}: must be a mapping")
            _check_names(group, plugins)
            if any("_target_" in each for each in plugins.values()):
                raise InputError(f"{group}: _target_ is not accepted: a file of conf/{group} names the class")
            chosen.append(Setting(group, list(plugins), f"{group}=[{','.join(plugins)}]"))
        with _one_line():
            merged = OmegaConf.merge(_presets("resume", chosen), escaped(values))
            config: Config = OmegaConf.to_object(merged)  # type: ignore[assignment]
        if missing := asdict(config).keys() - values.keys():
            raise InputError(f"lacks {', '.join(sorted(missing))}: the file was cut or edited")
        return config
    except RecursionError:
        raise InputError(f"{path}: is nested too deeply") from None
    except (OSError, ValueError, yaml.YAMLError) as error:  # ValueError: also a date that does not exist
        raise InputError(f"{path}: {one_line(error)[:300]}") from None


def composed_presets(settings: Sequence[Setting] = ()) -> dict[str, Any]:
    """Return the configuration that results from the defaults and the presets in `settings`, as nested dicts."""
    return OmegaConf.to_container(_presets("train", settings))  # type: ignore[return-value]


def show(settings: Sequence[Setting], literals: Literals, part: str, resolve: bool) -> str:
    """Return the configuration of a run as YAML, like Hydra's flag `--cfg`."""
    with _one_line(), _hydra():
        whole = hydra.compose("train", [*(each.text for each in settings), _search_path()], return_hydra_config=True)
        HydraConfig.instance().set_config(whole)  # interpolations of `${hydra:…}` read this
        values: dict[str, Any] = OmegaConf.to_container(whole, resolve=resolve, enum_to_str=True)  # type: ignore[assignment]
    for key, value in literals.items():
        *path, last = key.split(".")
        (values[path[0]] if path else values)[last] = value
    own = values.pop("hydra")
    if part == "hydra":  # Hydra leaves its help texts out
        values = {}
        del own["help"], own["hydra_help"]
    return yaml_text.write(values if part == "job" else values | {"hydra": own})


def _set(config: DictConfig, settings: Sequence[Setting], literals: Literals) -> DictConfig:
    """Return a copy of `config` in which each key on the command line has the value from the command line."""
    config = copy.deepcopy(config)
    for each in settings:
        group, _, rest = each.key.partition(".")
        if each.is_group:
            continue
        if is_plugins(group):
            name, _, argument = rest.partition(".")
            if name not in config[group]:
                raise InputError(f"{each.text}: needs {group}={name}")
            accepted = [key for key in config[group][name] if key != "_target_"]
            if argument not in accepted:
                listed = ", ".join(accepted) or "none"
                raise InputError(f"{each.key}: no such key; {group}={name} accepts {listed}")
        literal = each.key in KEYS and KEYS[each.key].metadata.get("literal")
        OmegaConf.update(config, each.key, escaped(each.value) if literal else each.value)
    for key, value in literals.items():
        OmegaConf.update(config, key, escaped(value))
    return config


def _presets(primary: str, settings: Sequence[Setting], base: Mapping[str, Any] | None = None) -> DictConfig:
    """Return the configuration that Hydra composes from the defaults and the presets on the command line."""
    chosen = tuple(each.text for each in settings if each.is_group)
    if not base:
        return _cached(primary, chosen, tuple(FOLDERS))
    with _hydra(base):
        return hydra.compose(primary, [*chosen, _search_path()])


@cache
def _cached(primary: str, chosen: tuple[str, ...], folders: tuple[Path, ...]) -> DictConfig:
    """Return the result of `_presets` without `base`, from a cache."""
    with _hydra():
        return hydra.compose(primary, [*chosen, _search_path()])


@contextmanager
def _hydra(base: Mapping[str, Any] | None = None) -> Iterator[None]:
    """Context manager in which Hydra reads the folder conf/ and uses `Config` as its schema."""
    schema = OmegaConf.structured(Config)
    _unlock(schema)
    ConfigStore.instance().store("schema", OmegaConf.merge(schema, escaped(base or {})))
    load = OmegaConf.load  # Hydra reads presets with it, and has no option for another loader
    OmegaConf.load = lambda file: OmegaConf.create(yaml_text.read(file) or {})  # type: ignore[assignment, arg-type]
    try:
        with hydra.initialize_config_dir(str(CONF), version_base="1.3", job_name="train"):
            yield
    finally:
        OmegaConf.load = load  # type: ignore[method-assign]


def _unlock(config: DictConfig) -> None:
    """Make `config`, which OmegaConf created from frozen dataclasses, writable."""
    OmegaConf.set_readonly(config, None)
    for key in config:
        if isinstance(config[key], DictConfig):
            _unlock(config[key])


def _search_path() -> str:
    """Return the override `hydra.searchpath=[…]`, with which Hydra also finds the presets of `--config-dir`."""
    return f"hydra.searchpath={[f'file://{folder}' for folder in FOLDERS]}"


def _check_names(group: str, plugins: Mapping[str, Any]) -> None:
    for name in plugins:
        if name not in groups()[group]:
            raise InputError(f"{group}: {name}: there is no conf/{group}/{name}.yaml that names its class")


def escaped(value: Any) -> Any:
    """Return a copy of `value`, plain data, in which each `${…}` in a string is escaped."""
    if isinstance(value, str):
        return re.sub(r"(\\*)\$\{", r"\1\1\\${", value)
    if isinstance(value, dict):
        return {key: escaped(each) for key, each in value.items()}
    return [escaped(each) for each in value] if isinstance(value, list) else value


@contextmanager
def _one_line() -> Iterator[None]:
    """Turn an error of Hydra, OmegaConf or YAML into an `InputError` of one line."""
    try:
        yield
    except (HydraException, OmegaConfBaseException, yaml.YAMLError, OverflowError) as error:
        cause: BaseException = error
        place = re.match("In '.+?': ", str(error))  # how Hydra names a preset; it does not chain its error
        if place and isinstance(error.__context__, OmegaConfBaseException):
            cause = error.__context__
        while not isinstance(cause, OmegaConfBaseException) and cause.__cause__:
            cause = cause.__cause__
        message, _, rest = str(cause).partition("\n    full_key: ")  # OmegaConf appends this line
        key = re.sub(r"\[\d+\]$", "", str(getattr(cause, "full_key", None) or rest.partition("\n")[0]))
        if isinstance(cause, OverflowError) and key in KEYS:  # a whole number that is too large for a float
            message = f"{key}: must be {KEYS[key].allowed}"
        elif isinstance(cause, ValidationError) and key in KEYS:
            message = f"{key}={spell(cause.value)}: must be {KEYS[key].allowed}"
            if KEYS[key].kind == list[str]:
                message = f"{key}={spell(cause.value)}: must be a list: {shlex.quote(f'{key}=[{cause.value}]')}"
        elif isinstance(cause, ConfigAttributeError | ConfigKeyError):
            message = f"{key}: no such key{nearest_key(key, list(KEYS))}"
        elif key:
            message = f"{key}: {message}"
        raise InputError(one_line(message if cause is error or not place else place[0] + message)) from None
