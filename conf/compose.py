"""Compose the configuration of a run with Hydra: of a new run from conf/, of a resumed run from its config.yaml."""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import hydra
import yaml
from hydra.core.config_store import ConfigStore
from hydra.core.override_parser.types import Quote, QuotedString
from hydra.errors import HydraException, MissingConfigException, OverrideParseException
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
from conf.keys import CONF, FOLDERS, KEYS, groups, is_verbatim, nearest_key
from conf.overrides import key_of
from conf.resume_rules import trained_groups
from conf.schema import PLUGINS, Config, SearchConfig, by_key

PRESET = re.compile("In '.+?/.+?': ")  # how an error of Hydra names a preset
# Text that Hydra's grammar reads as itself without quotes.
PLAIN = re.compile(r"(?!(true|false|null|inf|nan)$)[a-z_][\w./-]*", re.ASCII | re.IGNORECASE)


def compose(arguments: Sequence[str]) -> Config:
    """Compose the configuration of a new run from the defaults, the presets and the arguments of the command line."""
    config: Config = _object("train", arguments)
    if config.init_from is not None:
        from gpt.model_file import read_description  # loads NumPy

        try:
            model, meta = read_description(find_model(config.init_from))
        except InputError:
            # Reported when the model is loaded: a run that resumes from its checkpoint needs no
            # model.
            return config
        config = _object("train", arguments, trained_groups(model, meta))
    if config.minutes is not None:
        _check_minutes(config)
    return config


def compose_command(arguments: Sequence[str]) -> Config:
    """Compose a command line, but of one that resumes a run only what names this run, because the rest changes it."""
    if "resume" in map(key_of, arguments):
        config: Config = _object("train", [text for text in arguments if "." not in key_of(text)])
        if config.resume is not None:
            return config
    return compose(arguments)


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


def compose_search(arguments: Sequence[str]) -> SearchConfig:
    """Compose the options of a search from arguments such as `hparams_search=default`."""
    return _object("search", arguments)["hparams_search"]


def compose_resumed(arguments: Sequence[str], stored: Config) -> Config:
    """Compose the configuration of a resumed run: the one in its config.yaml, `stored`, changed by the command line.

    A key that the command line, or a preset on it, sets to `auto` keeps the value that the run has
    chosen.
    """
    base = asdict(stored) | {"resume": None, "allow": []}  # without those of the earlier command
    # The present command decides the number of machines and, if it was started as several
    # processes, of devices.
    base["trainer"]["num_nodes"] = "auto"
    if ranks.launched():
        base["trainer"]["devices"] = "auto"
    stored_values = by_key(base)
    # callbacks= and logger= replace the plug-ins of the run, rather than adding to them
    replaced: dict[str, Any] = {group: {} for group in PLUGINS if group in map(key_of, arguments)}
    with _as_input_error():
        config = _composed("resume", arguments, base | replaced)
        for group in PLUGINS:
            kept = {}
            for name, options in config[group].items():
                if "auto" not in options.values():
                    kept[name] = options
                elif name in stored_values[group]:  # otherwise the run has left it out
                    kept[name] = escaped(stored_values[group][name])
            OmegaConf.update(config, group, kept, merge=False)
        for key in KEYS:
            # a verbatim value may be a file that is called auto
            if not is_verbatim(key) and OmegaConf.select(config, key) == "auto":
                OmegaConf.update(config, key, escaped(stored_values[key]))
        return OmegaConf.to_object(config)  # type: ignore[return-value]


def read_config(run: Path) -> Config:
    """Return the configuration in the config.yaml of the run directory `run`, or raise an `InputError`.

    The file is data: its interpolations are text, and it contains only the names of callbacks and
    loggers, whose classes come from the files of conf/. So it cannot make the program execute
    other code.
    """
    path = run / "config.yaml"
    try:
        values = _read_plain(path)
        chosen = []
        for group in PLUGINS:
            plugins = values.get(group) or {}
            if not isinstance(plugins, dict) or not set(plugins) <= set(groups()[group]):
                raise InputError(f"{group}={spell(plugins)}: must name files of conf/{group}")
            chosen.append(f"{group}={spell(list(plugins))}")
        with _as_input_error():
            merged = OmegaConf.merge(_composed("resume", chosen), escaped(values))
            config: Config = OmegaConf.to_object(merged)  # type: ignore[assignment]
        missing = asdict(config).keys() - values.keys()
        if missing:
            raise InputError(f"lacks {', '.join(sorted(missing))}: the file was cut or edited")
        return config
    except RecursionError:
        raise InputError(f"{path}: is nested too deeply") from None
    except (OSError, ValueError) as error:  # ValueError: also bytes that are not UTF-8
        raise InputError(f"{path}: {one_line(error)[:300]}") from None


def _read_plain(path: Path) -> dict[str, Any]:
    """Read a YAML file without resolving interpolations.

    Aliases are refused: OmegaConf copies what they stand for, which a stranger can make
    exponential.
    """
    text = path.read_text("utf-8")
    if "_target_" in text:
        raise InputError("_target_ is not accepted: a file of conf/ names the class")
    with _as_input_error():
        if any(isinstance(event, yaml.AliasEvent) for event in yaml.parse(text, yaml.SafeLoader)):
            raise InputError("an alias is not accepted: a run's file has none")
        values = OmegaConf.to_container(OmegaConf.load(path))
    if not isinstance(values, dict):
        raise InputError("must be a mapping of keys to values")
    return values  # type: ignore[return-value]


def _object(primary: str, arguments: Sequence[str], defaults: Any = None) -> Any:
    with _as_input_error():
        return OmegaConf.to_object(_composed(primary, arguments, defaults))


def _composed(
    primary: str, arguments: Sequence[str], defaults: Mapping[str, Any] | None = None
) -> DictConfig:
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
    folders = [f"file://{folder}" for folder in FOLDERS]
    overrides = [*map(for_hydra, arguments), f"hydra.searchpath={folders}"]
    with hydra.initialize_config_dir(str(CONF), version_base="1.3", job_name="train"):
        return hydra.compose(primary, overrides)


def for_hydra(argument: str) -> str:
    """Return an argument in Hydra's grammar: with its value in quotes if it is a text that is used verbatim."""
    key, _, text = argument.partition("=")
    if not is_verbatim(key) or text == "null":
        return argument
    # Raises for an unfinished `${`, which config.yaml cannot contain.
    OmegaConf.create({key: text})
    return f"{key}={quoted(escaped(text))}"


def quoted(value: Any) -> str:
    """Return the text that Hydra's grammar reads as `value`."""
    if isinstance(value, str) and not PLAIN.fullmatch(value):
        return QuotedString(value, Quote.single).with_quotes()
    return spell(value)


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
        message = _explain(error)
        preset = PRESET.match(str(error))
        if preset and not message.startswith(preset[0]):  # OmegaConf's message does not name it
            message = preset[0] + message
        raise InputError(one_line(message)) from None


def _explain(error: BaseException) -> str:
    if isinstance(error, MissingConfigException):
        group, _, name = str(error.missing_cfg_file).rpartition("/")
        presets = groups()[group]
        path = ", or for a text data.path=FILE" if group == "data" else ""
        return str(wrong_value(group, name, f"one of {', '.join(presets)}{path}", presets))
    if isinstance(error, OverrideParseException):
        return f"{error.override}: {error}"
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
        return str(wrong_value(key, cause.value, KEYS[key].allowed))
    if isinstance(cause, ConfigAttributeError | ConfigKeyError):
        group, _, plugin = key.partition(".")
        if group not in PLUGINS:
            return f"{key}: no such key{nearest_key(key)}"
        if "." not in plugin:
            return f"{key}: needs {group}={plugin}"
        options = [name for name in cause.parent_node or () if name != "_target_"]
        return f"{key}: no such key; {group}={plugin.partition('.')[0]} accepts {', '.join(options) or 'none'}"
    return f"{key}: {message}" if key else message
