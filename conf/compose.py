"""Compose the configuration of a run with Hydra: of a new run from conf/, of a resumed run from its config.yaml.

Also the way back: the command line that repeats a configuration.
"""

import copy
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import hydra
import yaml
from hydra.core.config_store import ConfigStore
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import (
    ConfigAttributeError,
    ConfigKeyError,
    OmegaConfBaseException,
    ValidationError,
)

from base import ranks
from base.errors import InputError, one_line
from base.jobs.run_directory import find_model
from base.options import spell, wrong_value
from conf.keys import CONF, FOLDERS, KEYS, groups, has_auto, is_launch, is_verbatim, nearest_key
from conf.overrides import Setting, quoted
from conf.resume_rules import trained_groups
from conf.schema import PLUGINS, Config, by_key, number_of

PRESET = re.compile("In '.+?': ")  # how an error of Hydra names a preset


def compose(settings: Sequence[Setting]) -> Config:
    """Compose the configuration of a new run from the defaults, the presets and the command line."""
    with _as_input_error():
        config: Config = OmegaConf.to_object(_compose_new(settings))  # type: ignore[assignment]
    for group in PLUGINS:
        _check_names(group, getattr(config, group))
    if config.minutes is not None:
        _check_minutes(config)
    return config


def _compose_new(settings: Sequence[Setting]) -> DictConfig:
    """Compose a new run; the settings of the model that `init_from` names replace the defaults."""
    config = _set(_presets("train", settings), settings)
    if config.init_from is None:
        return config
    from gpt.model_file import read_description  # loads NumPy

    try:
        model, meta = read_description(find_model(config.init_from))
    except InputError:
        # Reported when the model is loaded: a run that resumes from its checkpoint needs no
        # model.
        return config
    return _set(_presets("train", settings, trained_groups(model, meta)), settings)


def _check_minutes(config: Config) -> None:
    minutes = f"minutes={config.minutes:g}"
    steps = config.trainer.max_steps
    if steps != "auto":
        keep = (
            "set minutes=null to keep these steps, or trainer.max_steps=auto to keep the minutes"
        )
        raise InputError(
            f"{minutes}: chooses trainer.max_steps, but trainer.max_steps={steps} is set; {keep}"
        )
    if config.optim.schedule != "trapezoid":
        why = (
            "because a cosine depends on the number of steps, which is chosen while the run trains"
        )
        raise InputError(
            f"{minutes}: needs optim.schedule=trapezoid, {why}; or set trainer.max_steps instead"
        )


def compose_resumed(settings: Sequence[Setting], stored: Config) -> Config:
    """Compose the configuration of a resumed run: the one in its config.yaml, `stored`, changed by the command line.

    A key that the command line, or a preset on it, sets to `auto` keeps the value that the run has
    chosen.
    """
    base = asdict(stored) | {"resume": None, "allow": []}  # without those of the earlier command
    # The present command decides the number of machines and, if it was started as several
    # processes, of devices.
    base["trainer"]["num_nodes"] = "auto"
    launched = ranks.launched()  # (ranks on this machine, machines), or None
    if launched and number_of(stored.trainer.devices) != launched[0]:
        base["trainer"]["devices"] = "auto"
    keys = {setting.key for setting in settings}
    # callbacks= and logger= replace the plug-ins of the run, rather than adding to them
    replaced = base | {group: {} for group in PLUGINS if group in keys}
    stored_values = by_key(base)
    with _as_input_error():
        config = _set(_presets("resume", settings, replaced), settings)
        for key in KEYS:
            # a verbatim value may be a file that is called auto
            if not is_verbatim(key) and has_auto(OmegaConf.select(config, key)):
                OmegaConf.update(config, key, escaped(stored_values[key]), merge=False)
        return OmegaConf.to_object(config)  # type: ignore[return-value]


def read_config(run: Path) -> Config:
    """Return the configuration in the config.yaml of the run directory `run`, or raise an `InputError`.

    The file is data: its interpolations are text, and it contains only the names of callbacks and
    loggers, whose classes come from the files of conf/. So it cannot make the program execute
    other code.
    """
    path = run / "config.yaml"
    try:
        _check_aliases(path)
        with _as_input_error():
            # without resolving interpolations
            values: Any = OmegaConf.to_container(OmegaConf.load(path))
        if not isinstance(values, dict):
            raise InputError("must be a mapping of keys to values")
        for group, default in asdict(Config()).items():
            if isinstance(default, dict) and not isinstance(values.get(group, {}), dict):
                raise InputError(f"{group}={spell(values[group])}: must be a mapping")
        chosen = []
        for group in PLUGINS:
            plugins = values.get(group, {})
            if not all(isinstance(arguments, dict) for arguments in plugins.values()):
                raise InputError(f"{group}: must be a mapping")
            _check_names(group, plugins)
            if any("_target_" in arguments for arguments in plugins.values()):
                raise InputError(
                    f"{group}: _target_ is not accepted: a file of conf/{group} names the class"
                )
            chosen.append(_plugins_setting(group, plugins))
        with _as_input_error():
            merged = OmegaConf.merge(_presets("resume", chosen), escaped(values))
            config: Config = OmegaConf.to_object(merged)  # type: ignore[assignment]
        missing = asdict(config).keys() - values.keys()
        if missing:
            raise InputError(f"lacks {', '.join(sorted(missing))}: the file was cut or edited")
        return config
    except RecursionError:
        raise InputError(f"{path}: is nested too deeply") from None
    except (OSError, ValueError) as error:  # ValueError: also bytes that are not UTF-8
        raise InputError(f"{path}: {one_line(error)[:300]}") from None


def _check_aliases(path: Path) -> None:
    """Refuse a YAML file with aliases: OmegaConf copies what they stand for, which a stranger can make exponential."""
    with _as_input_error(), open(path, "rb") as file:
        for event in yaml.parse(file, yaml.SafeLoader):
            if isinstance(event, yaml.AliasEvent):
                raise InputError(
                    f"the alias *{event.anchor} is not accepted: a run's file has none"
                )


def show(settings: Sequence[Setting]) -> str:
    """Return the configuration of a run as YAML, like Hydra's `--cfg job --resolve`."""
    with _as_input_error():
        config = _compose_new(settings)
        return OmegaConf.to_yaml(OmegaConf.create(OmegaConf.to_container(config, resolve=True)))


def differences(config: Config) -> list[tuple[str, str, str]]:
    """Return (key, value, default), as on the command line, for each setting that differs from its default.

    A value that the run has chosen for `auto` is included, unless most runs choose the same value.
    """
    defaults = by_key(_plain_presets())
    values = by_key(config)
    differing = []
    for key, value in values.items():
        if (
            key not in PLUGINS
            and not is_launch(key)
            and value not in (defaults[key], KEYS[key].usual)
        ):
            differing.append((key, spell(value), spell(defaults[key])))
    # the same plug-ins, with the arguments in their files
    files = _plain_presets([_plugins_setting(group, values[group]) for group in PLUGINS])
    for group in PLUGINS:
        differing += _differing_plugins(
            group, getattr(config, group), defaults[group], files[group]
        )
    return differing


def _differing_plugins(
    group: str, plugins: Mapping[str, Any], defaults: Mapping[str, Any], files: Mapping[str, Any]
) -> list[tuple[str, str, str]]:
    """Do as `differences` for the plug-ins of a group; `files` has the arguments in their files, by plug-in."""
    differing = []
    names = list(plugins)
    # most runs leave out a plug-in with an argument `auto`
    usual = [name for name, arguments in defaults.items() if "auto" not in arguments.values()]
    if names not in (list(defaults), usual):
        chosen = spell(names) if names else "none"
        differing.append((group, chosen, spell(usual)))
    for name, arguments in plugins.items():
        for argument, value in arguments.items():
            default = files[name][argument]
            if value not in (default, "auto"):
                differing.append((f"{group}.{name}.{argument}", quoted(value), quoted(default)))
    return differing


def overrides(config: Config) -> list[str]:
    """Return the `key=value` arguments that repeat a run: what `minutes=N` has chosen, but not `minutes` itself."""
    return [f"{key}={value}" for key, value, _ in differences(config) if key != "minutes"]


def _plugins_setting(group: str, plugins: Mapping[str, Any]) -> Setting:
    names = list(plugins)
    return Setting(group, names, f"{group}={spell(names)}")


def _plain_presets(settings: Sequence[Setting] = ()) -> dict[str, Any]:
    return OmegaConf.to_container(_presets("train", settings))  # type: ignore[return-value]


def instantiate(group: str, plugins: Mapping[str, Mapping[str, Any]], **more: Any) -> list[Any]:
    """Create the plug-ins of `group`, `callbacks` or `logger`; each constructor also receives `more`.

    Unlike in Hydra's `instantiate`, `${…}` in an argument is text.
    """
    instances = []
    for name, arguments in plugins.items():
        try:
            options = {**arguments, **more}
            target = options.pop("_target_")
            create = hydra.utils.instantiate({"_target_": target, "_partial_": True})
            instances.append(create(**options))
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
    for setting in settings:
        if setting.is_group:
            continue
        key = setting.key
        group, _, rest = key.partition(".")
        if group in PLUGINS:
            name, _, argument = rest.partition(".")
            if name not in config[group]:
                raise InputError(f"{setting.text}: needs {group}={name}")
            accepted = [option for option in config[group][name] if option != "_target_"]
            if argument not in accepted:
                listed = ", ".join(accepted) or "none"
                raise InputError(f"{key}: no such key; {group}={name} accepts {listed}")
        if is_verbatim(key) and setting.value:
            # Raises for an unfinished `${`, which config.yaml cannot contain.
            OmegaConf.create({key: setting.value})
            OmegaConf.update(config, key, escaped(setting.value))
        else:
            OmegaConf.update(config, key, setting.value)
    return config


# reading conf/ is slow, and each run of a sweep needs the result
_composed: dict[str, DictConfig] = {}


def _presets(
    primary: str, settings: Sequence[Setting], defaults: Mapping[str, Any] | None = None
) -> DictConfig:
    """Compose conf/`primary`.yaml with the presets in `settings`; `defaults` replaces the defaults of `Config`.

    Later calls return the same object, so a caller must not change it.
    """
    chosen = [setting.text for setting in settings if setting.is_group]
    inputs = repr((primary, chosen, FOLDERS, defaults))
    if inputs not in _composed:
        _composed[inputs] = _with_hydra(primary, chosen, defaults or {})
    return _composed[inputs]


def _with_hydra(primary: str, chosen: list[str], defaults: Mapping[str, Any]) -> DictConfig:
    schema = OmegaConf.structured(Config)
    for node in (schema, *(schema[key] for key in schema)):
        if isinstance(node, DictConfig):
            # the dataclasses are frozen, but presets and `_set` change values
            OmegaConf.set_readonly(node, None)
    # replaces what `- schema` means in train.yaml and resume.yaml: the first of their defaults
    ConfigStore.instance().store("schema", OmegaConf.merge(schema, escaped(defaults)))
    folders = [f"file://{folder}" for folder in FOLDERS]
    with hydra.initialize_config_dir(str(CONF), version_base="1.3", job_name="train"):
        return hydra.compose(primary, [*chosen, f"hydra.searchpath={folders}"])


def _check_names(group: str, plugins: Mapping[str, Any]) -> None:
    for name in plugins:
        if name not in groups()[group]:
            raise InputError(
                f"{group}: {name}: there is no conf/{group}/{name}.yaml that names its class"
            )


def escaped(value: Any) -> Any:
    """Return a copy of `value`, plain data, in which each `${…}` in a string is text for OmegaConf."""
    if isinstance(value, str):
        # Backslashes before `${` are doubled, because there they escape each other.
        return re.sub(r"(\\*)\$\{", r"\1\1\\${", value)
    if isinstance(value, dict):
        return {key: escaped(item) for key, item in value.items()}
    if isinstance(value, list):
        return [escaped(item) for item in value]
    return value


@contextmanager
def _as_input_error() -> Iterator[None]:
    """Turn an error of Hydra, OmegaConf or YAML into an `InputError` that names the key, its value and what is allowed.

    An error in a preset begins with the preset's name.
    """
    try:
        yield
    except (HydraException, OmegaConfBaseException, yaml.YAMLError, OverflowError) as error:
        cause = _cause(error)
        message = _explain(cause)
        preset = PRESET.match(str(error))
        if preset and cause is not error:  # OmegaConf's message does not name the preset
            message = preset[0] + message
        raise InputError(one_line(message)) from None


def _cause(error: BaseException) -> BaseException:
    """Return the error of OmegaConf that has led to `error` or, if there is none, the first of its causes."""
    if PRESET.match(str(error)) and isinstance(error.__context__, OmegaConfBaseException):
        return error.__context__  # Hydra does not chain the error in a preset
    while not isinstance(error, OmegaConfBaseException) and error.__cause__:
        error = error.__cause__
    return error


def _explain(error: BaseException) -> str:
    # OmegaConf appends the key in a line of its own, and the index of an item in brackets.
    message, _, rest = str(error).partition("\n    full_key: ")
    path = getattr(error, "full_key", None) or rest.partition("\n")[0]
    key = re.sub(r"\[\d+\]$", "", str(path))
    if isinstance(error, ValidationError) and key in KEYS:
        return str(wrong_value(key, error.value, KEYS[key].allowed))
    if isinstance(error, ConfigAttributeError | ConfigKeyError):
        return f"{key}: no such key{nearest_key(key)}"
    return f"{key}: {message}" if key else message
