"""Compose the configuration of a run with Hydra: of a new run from conf/, of a resumed run from its config.yaml."""

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import hydra
import yaml
from hydra.core.config_store import ConfigStore
from hydra.core.override_parser.types import Quote, QuotedString
from hydra.errors import HydraException, MissingConfigException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import (
    ConfigAttributeError,
    ConfigKeyError,
    OmegaConfBaseException,
    ValidationError,
)

from base.errors import InputError, one_line
from base.jobs.run_directory import find
from base.options import check_value, spell, wrong_value
from conf.keys import CONF, FOLDERS, KEYS, VERBATIM, groups, nearest_key
from conf.overrides import check_classless, parse
from conf.schema import PLUGINS, Config, SearchConfig
from gpt.config import ModelConfig

PRESET = re.compile("In '.+?/.+?': ")  # how an error of Hydra names a preset


def compose(arguments: Sequence[str]) -> Config:
    """Compose the configuration of a new run from the defaults, the presets and the arguments of the command line."""
    config: Config = compose_object("train", arguments)
    if config.init_from is not None:
        from gpt.model_file import read_description  # loads NumPy

        try:
            model, meta = read_description(find(config.init_from, "model"))
        except InputError:
            # Reported when the model is loaded: a run that resumes from its checkpoint needs no
            # model.
            return config
        config = compose_object("train", arguments, trained_groups(model, meta))
    if config.minutes is None:
        return config
    minutes = f"minutes={config.minutes:g}"
    steps = config.trainer.max_steps
    if steps != "auto":
        raise InputError(
            f"{minutes}: cannot be combined with trainer.max_steps={steps}; leave one out or, if a "
            "preset sets it, override it: minutes=null or trainer.max_steps=auto"
        )
    if config.optim.schedule != "trapezoid":
        raise InputError(
            f"{minutes}: needs optim.schedule=trapezoid, because a cosine depends on the number of "
            "steps, which is chosen while the run trains; or set trainer.max_steps instead"
        )
    return config


def trained_groups(model: ModelConfig, meta: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the settings that a run takes over from the model from which it starts, as group -> key -> value."""
    return {"model": vars(model), "data": {"tokenizer": meta["vocabulary"]["kind"]}}


def read_config(run: Path, *, classes: bool = True) -> Config:
    """Return the configuration in the config.yaml of the run directory `run`, or raise an `InputError`.

    The file is data: its interpolations are text, and it contains only the names of callbacks and
    loggers, whose classes come from the files of conf/. So it cannot make the program execute
    other code. Without `classes`, the files of conf/ are not needed.
    """
    path = run / "config.yaml"
    try:
        text = path.read_text("utf-8")
        with as_input_error():
            events = yaml.parse(text, yaml.SafeLoader)
            if any(isinstance(event, yaml.AliasEvent) for event in events):
                # OmegaConf copies what aliases stand for, which a stranger can make exponential.
                raise InputError("an alias is not accepted: a run's file has none")
            values: Any = OmegaConf.to_container(OmegaConf.load(path))
        if not isinstance(values, dict):
            raise InputError("must be a mapping of keys to values")
        missing = {field.name for field in fields(Config)} - values.keys()
        for group in groups():
            check_value(group, values.get(group, {}), dict, {})
        plugins = {group: values.get(group, {}) for group in PLUGINS}
        for group, entries in plugins.items():
            check_classless(group, entries)
            for name in entries:
                if classes and name not in groups()[group]:
                    raise InputError(
                        f"{group}.{name}: no such preset; add --config-dir=FOLDER, which has {group}/{name}.yaml"
                    )
        if not classes:
            values |= dict.fromkeys(PLUGINS, {})
        chosen = [f"{group}={spell(list(values[group]))}" for group in PLUGINS if group in values]
        with as_input_error():
            merged = OmegaConf.merge(composed("resume", chosen), escaped(values))
            config: Config = OmegaConf.to_object(merged)  # type: ignore[assignment]
        if missing:
            raise InputError(f"lacks {', '.join(sorted(missing))}: the file was cut or edited")
        return config if classes else replace(config, **plugins)
    except (OSError, ValueError) as error:  # ValueError: also bytes that are not UTF-8
        raise InputError(f"{path}: {one_line(error)[:300]}") from None


def compose_object(primary: str, arguments: Sequence[str], defaults: Any = None) -> Any:
    with as_input_error():
        return OmegaConf.to_object(composed(primary, arguments, defaults))


def composed(primary: str, arguments: Sequence[str], defaults: Any = None) -> DictConfig:
    """Compose conf/`primary`.yaml with the arguments of a command line; `defaults` replaces those of `Config`."""
    schema = OmegaConf.structured(Config)
    search = OmegaConf.structured(SearchConfig)
    for node in (schema, search, *(schema[key] for key in schema)):
        if isinstance(node, DictConfig):
            OmegaConf.set_readonly(node, None)  # the dataclasses are frozen
    OmegaConf.set_struct(schema.trainer.more, False)  # any name
    # These replace what `- schema` means in train.yaml, and `- search_schema` in search.yaml.
    store = ConfigStore.instance()
    store.store("schema", OmegaConf.merge(schema, escaped(defaults or {})))
    store.store("search_schema", {"hparams_search": search})
    folders = f"hydra.searchpath={[f'file://{folder}' for folder in FOLDERS]}"
    with hydra.initialize_config_dir(str(CONF), version_base="1.3", job_name="train"):
        return hydra.compose(primary, [*map(for_hydra, arguments), folders])


def for_hydra(argument: str) -> str:
    """Return an argument in Hydra's grammar: with its value in quotes if it is a text that is used verbatim."""
    key, _, text = argument.partition("=")
    if key in VERBATIM and text != "null":
        # Raises for an unfinished `${`, which config.yaml cannot contain.
        OmegaConf.create({key: text})
        return f"{key}={quoted(escaped(text))}"
    override = parse(argument)
    value: Any = override.value()
    if override.is_sweep_override():
        hint = ""
        if getattr(value, "simple_form", False):  # values between commas
            hint = f"; a list is {shlex.quote(f'{key}=[{text}]')}"
        raise InputError(f"{argument}: several values need -m{hint}")
    check_classless(argument, value)
    if key in groups():
        for name in value if isinstance(value, list) else [value]:
            if name not in groups()[key]:
                raise _no_preset(key, name)
    return argument


def quoted(text: str) -> str:
    return QuotedString(text, Quote.single).with_quotes()


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
def as_input_error() -> Iterator[None]:
    """Turn an error of Hydra, OmegaConf or YAML into an `InputError` that names the key, its value and what is allowed.

    An error in a preset begins with the preset's name.
    """
    try:
        yield
    except RecursionError:
        raise InputError(
            "a value is nested too deeply, or a preset inherits from itself"
        ) from None
    except (HydraException, OmegaConfBaseException, yaml.YAMLError, OverflowError) as error:
        message = _explain(error)
        preset = PRESET.match(str(error))
        if preset and not message.startswith(preset[0]):  # OmegaConf's message does not name it
            message = preset[0] + message
        raise InputError(one_line(message)) from None


def _no_preset(group: str, name: Any) -> InputError:
    presets = groups().get(group, [])
    path = ", or for a text data.path=FILE" if group == "data" else ""
    return wrong_value(group, name, f"one of {', '.join(presets)}{path}", presets)


def _explain(error: BaseException) -> str:
    if isinstance(error, MissingConfigException):
        group, _, name = str(error.missing_cfg_file).rpartition("/")
        return str(_no_preset(group, name))
    # The reason is the error of OmegaConf: a cause or, in a preset, the context.
    cause: BaseException | None = error
    while cause and not isinstance(cause, OmegaConfBaseException):
        cause = cause.__cause__ or cause.__context__
    if cause is None:
        return str(error)
    # OmegaConf appends the key in a line of its own, and the index of an item in brackets.
    message, _, rest = str(cause).partition("\n    full_key: ")
    path = getattr(cause, "full_key", None) or rest.partition("\n")[0]
    key = re.sub(r"\[\d+\]$", "", str(path))
    if isinstance(cause, ValidationError) and key in KEYS:
        needed = KEYS[key].allowed
        if isinstance(KEYS[key].default, list):
            needed += f", such as {shlex.quote(f'{key}=[{cause.value}]')}"
        return str(wrong_value(key, cause.value, needed))
    if isinstance(cause, ConfigAttributeError | ConfigKeyError):
        group, _, plugin = key.partition(".")
        if group in ("experiment", "debug"):
            return "its first line must be # @package _global_"
        if group not in PLUGINS:
            return f"{key}: no such key{nearest_key(key)}"
        if "." not in plugin:
            return f"{key}: needs {group}={plugin}"
        options = [name for name in cause.parent_node or () if name != "_target_"]
        return f"{key}: no such key; {group}={plugin.partition('.')[0]} accepts {', '.join(options) or 'none'}"
    return f"{key}: {message}" if key else message
