"""Compose the configuration of a run with Hydra: of a new run from conf/, of a resumed run from its config.yaml.

Also the way back: the command line that repeats a configuration.
"""

import copy
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any

import hydra
import yaml
from hydra.core.config_store import ConfigStore
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import ConfigAttributeError, ConfigKeyError, OmegaConfBaseException, ValidationError

from base import ranks
from base.errors import InputError, one_line
from base.options import spell, wrong_value
from conf.keys import CONF, FOLDERS, KEYS, groups, has_auto, is_launch, is_verbatim, nearest_key
from conf.overrides import Setting, quoted
from conf.schema import PLUGINS, Config, by_key


def compose(settings: Sequence[Setting], trained: Mapping[str, Any] | None = None) -> Config:
    """Compose the configuration of a new run from the defaults, the presets and the command line.

    `trained` replaces defaults: the settings of the model from which the run starts, as group -> key -> value.
    """
    with _one_line():
        config = _set(_presets("train", settings, trained), settings)
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


def compose_resumed(settings: Sequence[Setting], stored: Config) -> Config:
    """Compose the configuration of a resumed run: the one in its config.yaml, `stored`, changed by the command line.

    A key that the command line, or a preset on it, sets to `auto` keeps the value that the run has chosen.
    """
    base = asdict(stored) | {"resume": None, "allow": []}
    # The present command decides the number of machines and, if torchrun or srun has started it, of devices.
    base["trainer"] |= {"num_nodes": "auto"} | ({"devices": "auto"} if ranks.launched() else {})
    replaced = base | {group: {} for group in PLUGINS if group in {each.key for each in settings}}
    with _one_line():
        config = _set(_presets("resume", settings, replaced), settings)
        for key in KEYS:
            if not is_verbatim(key) and has_auto(OmegaConf.select(config, key)):
                *path, last = key.split(".")
                OmegaConf.update(config, key, escaped(base[path[0]][last] if path else base[key]), merge=False)
        return OmegaConf.to_object(config)  # type: ignore[return-value]


def read_config(run: Path) -> Config:
    """Return the configuration in the config.yaml of the run directory `run`, or raise an `InputError`.

    The file is data: its interpolations are text, and it contains only the names of callbacks and loggers, whose
    classes come from the files of conf/. So it cannot make the program execute other code.
    """
    path = run / "config.yaml"
    try:
        _check_aliases(path)
        with _one_line():
            values: Any = OmegaConf.to_container(OmegaConf.load(path))  # without resolving interpolations
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
    except (OSError, ValueError) as error:  # ValueError: also bytes that are not UTF-8
        raise InputError(f"{path}: {one_line(error)[:300]}") from None


def _check_aliases(path: Path) -> None:
    """Refuse a YAML file with aliases: OmegaConf copies what they stand for, which a stranger can make exponential."""
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    with _one_line(), open(path, "rb") as file:
        for event in yaml.parse(file, loader):
            if isinstance(event, yaml.AliasEvent):
                raise InputError(f"the alias *{event.anchor} is not accepted: a run's file has none")


def show(settings: Sequence[Setting]) -> str:
    """Return the configuration of a run as YAML, like Hydra's `--cfg job --resolve`."""
    with _one_line():
        config = _set(_presets("train", settings), settings)
        return OmegaConf.to_yaml(OmegaConf.create(OmegaConf.to_container(config, resolve=True)))


def differences(config: Config) -> list[tuple[str, str, str]]:
    """Return (key, value, default), as on the command line, for each setting that differs from its default.

    A value that the run has chosen for `auto` is included, unless most runs choose the same value.
    """
    defaults, found = by_key(_plain_presets()), []
    for key, value in by_key(config).items():
        if key not in PLUGINS and value not in (defaults[key], KEYS[key].usual) and not is_launch(key):
            found.append((key, spell(value), spell(defaults[key])))
    chosen = {group: list(getattr(config, group)) for group in PLUGINS}
    named = _plain_presets([Setting(group, names, f"{group}={spell(names)}") for group, names in chosen.items()])
    for group, names in chosen.items():
        usual = [name for name, arguments in defaults[group].items() if "auto" not in arguments.values()]
        if names not in (list(defaults[group]), usual):
            found.append((group, spell(names) if names else "none", spell(usual)))
        for name, arguments in getattr(config, group).items():
            for key, value in arguments.items():
                if value not in (named[group][name][key], "auto"):
                    found.append((f"{group}.{name}.{key}", quoted(value), quoted(named[group][name][key])))
    return found


def overrides(config: Config) -> list[str]:
    """Return the `key=value` arguments that repeat a run: what `minutes=N` has chosen, but not `minutes` itself."""
    return [f"{key}={value}" for key, value, _ in differences(config) if key != "minutes"]


def _plain_presets(settings: Sequence[Setting] = ()) -> dict[str, Any]:
    return OmegaConf.to_container(_presets("train", settings))  # type: ignore[return-value]


def instantiate(group: str, plugins: Mapping[str, Mapping[str, Any]], **more: Any) -> list[Any]:
    """Create the plug-ins of `group`, `callbacks` or `logger`; each constructor also receives `more`.

    Unlike in Hydra's `instantiate`, `${…}` in an argument is text.
    """
    instances = []
    for name, arguments in plugins.items():
        try:
            create = hydra.utils.instantiate({"_target_": arguments["_target_"], "_partial_": True})
            instances.append(create(**{key: value for key, value in arguments.items() if key != "_target_"} | more))
        except Exception as error:
            cause = error.__cause__ or error
            reason = one_line(cause)[:300] or type(cause).__name__
            if isinstance(cause, ModuleNotFoundError) and "wandb" in reason:
                reason = "needs wandb: pip install -c constraints.txt -e '.[wandb]'"
            raise InputError(f"{group}={name}: cannot be created: {reason}") from None
    return instances


def _set(config: DictConfig, settings: Sequence[Setting]) -> DictConfig:
    """Return a copy of `config`, which contains the presets, with the values of the command line."""
    config = copy.deepcopy(config)
    for each in settings:
        group, _, rest = each.key.partition(".")
        if each.is_group:
            continue
        if group in PLUGINS:
            name, _, argument = rest.partition(".")
            if name not in config[group]:
                raise InputError(f"{each.text}: needs {group}={name}")
            if argument == "_target_" or argument not in config[group][name]:
                listed = ", ".join(key for key in config[group][name] if key != "_target_") or "none"
                raise InputError(f"{each.key}: no such key; {group}={name} accepts {listed}")
        if is_verbatim(each.key) and each.value:
            OmegaConf.create({each.key: each.value})  # raises for an unfinished `${`, which config.yaml cannot contain
        OmegaConf.update(config, each.key, escaped(each.value) if is_verbatim(each.key) else each.value)
    return config


def _presets(primary: str, settings: Sequence[Setting], trained: Mapping[str, Any] | None = None) -> DictConfig:
    """Compose conf/`primary`.yaml with the presets in `settings`; `trained` replaces the defaults of `Config`."""
    chosen = tuple(each.text for each in settings if each.is_group)
    if trained:
        return _with_hydra(primary, chosen, tuple(FOLDERS), trained)
    return _cached(primary, chosen, tuple(FOLDERS))


def _with_hydra(
    primary: str, chosen: tuple[str, ...], folders: tuple[Path, ...], trained: Mapping[str, Any] | None = None
) -> DictConfig:
    schema = OmegaConf.structured(Config)
    for node in (schema, *(schema[key] for key in schema)):
        if isinstance(node, DictConfig):
            OmegaConf.set_readonly(node, None)  # the dataclasses are frozen
    ConfigStore.instance().store("schema", OmegaConf.merge(schema, escaped(trained or {})))
    with hydra.initialize_config_dir(str(CONF), version_base="1.3", job_name="train"):
        return hydra.compose(primary, [*chosen, f"hydra.searchpath={[f'file://{folder}' for folder in folders]}"])


_cached = cache(_with_hydra)  # reading conf/ is slow, and each run of a sweep needs the result


def _check_names(group: str, plugins: Mapping[str, Any]) -> None:
    for name in plugins:
        if name not in groups()[group]:
            raise InputError(f"{group}: {name}: there is no conf/{group}/{name}.yaml that names its class")


def escaped(value: Any) -> Any:
    """Return a copy of `value`, plain data, in which each `${…}` in a string is text for OmegaConf."""
    if isinstance(value, str):
        return re.sub(r"(\\*)\$\{", r"\1\1\\${", value)
    if isinstance(value, dict):
        return {key: escaped(each) for key, each in value.items()}
    return [escaped(each) for each in value] if isinstance(value, list) else value


@contextmanager
def _one_line() -> Iterator[None]:
    """Turn an error of Hydra, OmegaConf or YAML into an `InputError` that names the key, its value and what is allowed.

    An error in a preset begins with the preset's name.
    """
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
        if isinstance(cause, ValidationError) and key in KEYS:
            message = str(wrong_value(key, cause.value, KEYS[key].allowed))
        elif isinstance(cause, ConfigAttributeError | ConfigKeyError):
            message = f"{key}: no such key{nearest_key(key)}"
        elif key:
            message = f"{key}: {message}"
        raise InputError(one_line(message if cause is error or not place else place[0] + message)) from None
