"""Merge the layers of a configuration; compare it with the defaults and with that of the run to resume.

A layer has some of the keys with their values; `callbacks` and `logger` are one value each. The layers of a run are
the defaults, then what is stored (the config.yaml of the run to resume, or the trained model of `init_from=`), then
what was typed. So whether a key was typed is whether it is in the last layer.
"""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from base.errors import InputError, nearest, one_line
from base.options import spell
from conf.groups import choice_values, default_choices
from conf.keys import HOW, PLUGGED, fields, leaves, set_leaf
from conf.plugins import options
from conf.schema import Config, from_dict, from_yaml, to_dict

Layer = Mapping[str, Any]


def merge(*layers: Layer) -> Config:
    """Build a configuration from the defaults and these layers; of several values of a key the last one counts."""
    values = to_dict(Config())
    for group, choice in default_choices().items():
        if group in values:
            values[group] |= choice_values(group, choice)
    for layer in layers:
        for key, value in layer.items():
            set_leaf(values, key, value)
    return from_dict(values)


GROUPS = Config.__dataclass_fields__
# `on_resume` of each key: its own, its group's, or else `allow`.
RULES = {
    key: field.metadata.get("on_resume") or GROUPS[key.partition(".")[0]].metadata.get("on_resume", "allow")
    for key, (_, field) in fields().items()
}


def read_config(run: Path) -> Config:
    """Read a run's config.yaml; raise an `InputError` if it is missing or wrong."""
    path = run / "config.yaml"
    try:
        return from_yaml(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: {one_line(error)[:300]}") from None


def merge_resumed(stored: Config, typed: Layer) -> Config:
    """Return the configuration of a run that continues: what it has stored, and what was typed now.

    A typed `auto` keeps what was chosen. `minutes` has chosen the steps, even if an experiment sets them.
    """
    chosen = {"name", "trainer.max_steps"} if "minutes" in typed else {"name"}
    changes = {key: value for key, value in typed.items() if key not in chosen and value != "auto"}
    now: dict[str, Any] = {"resume": None, "allow": [], "trainer.num_nodes": 1}  # these are never stored
    now |= {key: typed[key] for key in now if key in typed}
    return merge(dict(leaves(to_dict(stored))), changes, now)


def merge_started(given: Layer, model: Mapping[str, Any], tokenizer: str) -> Config:
    """Return the configuration of a fresh run with the shape and tokenizer of a trained model (`init_from=`).

    Dropout, the attention kernel, its window and the context may be given, because no weight depends on them; learned
    positions allow a shorter context only.
    """
    trained = {f"model.{key}": value for key, value in model.items()} | {"data.tokenizer": tokenizer}
    free = {key for key in trained if RULES[key] != "fixed"} | {"model.window"}
    if model["positions"] != "learned" or given.get("model.context", 1) <= model["context"]:
        free.add("model.context")
    wrong = [key for key in trained if key not in free and given.get(key, trained[key]) != trained[key]]
    if wrong:
        listed = ", ".join(f"{key}={spell(given[key])} (the model has {spell(trained[key])})" for key in wrong)
        raise InputError(f"init_from={given['init_from']}: cannot change {listed}")
    return merge(trained, {key: value for key, value in given.items() if key in free or key not in trained})


def changed(stored: Config, typed: Layer) -> list[str]:
    """List the typed settings that differ from those of a run, as `key=value (the run has value)`.

    More steps do not count: they continue the run.
    """
    config = merge(typed)
    ours, theirs = (dict(leaves(to_dict(each))) for each in (config, stored))
    chosen = ["model.", "data.batch"] if config.minutes else []
    chosen += ["model.", "data.tokenizer"] if config.init_from else []
    chosen += ["trainer.max_steps", "model.dropout", "callbacks"]  # by the length of the text
    longer = "trainer.max_steps" in typed and config.trainer.max_steps > stored.trainer.max_steps
    return [
        f"{key}={spell(ours[key])} (the run has {spell(theirs[key])})"
        for key in ours
        if (RULES[key] != "free" or key in ("data.path", "trainer.max_steps"))
        and ours[key] not in (theirs[key], "auto")
        and not (key == "trainer.max_steps" and longer)
        and not (key.startswith(tuple(chosen)) and key not in typed)
        and key not in config.allow
    ]


def settings(config: Config) -> dict[str, Any]:
    """Return every setting that the result of a run depends on, by key."""
    return {key: value for key, value in leaves(to_dict(config)) if RULES[key] != "free"}


def is_fixed(name: str) -> bool:
    """Whether `allow=` cannot permit a change: the weights would not fit or mean something else."""
    return name == "vocabulary" or RULES.get(name) == "fixed"


def check_unchanged(before: Layer, now: Layer, allow: list[str]) -> str:
    """Compare the fingerprint of a run with that of the process that resumes it; refuse differences not in `allow`.

    Return the differences as text; empty if the run continues bit for bit.
    """
    for name in allow:
        if name not in now:
            raise InputError(f"allow=[{name}]: no such field{nearest(name, now)}")
    differing = [name for name in now if before.get(name) != now[name]]
    fixed = [name for name in differing if is_fixed(name)]
    listed = ", ".join(f"{name}={spell(now[name])} (the run has {spell(before.get(name))})" for name in differing)
    if fixed:
        raise InputError(f"resume: cannot change {listed}; no allow= helps with {', '.join(fixed)}")
    for name in filter(is_fixed, allow):
        harm = "another value would make the weights unfit or change what they mean"
        raise InputError(f"allow=[{name}]: cannot be allowed; {harm}")
    if set(differing) - set(allow):
        raise InputError(f"resume: cannot change {listed}; allow=[{','.join(differing)}] continues all the same")
    return listed


def differences(config: Config) -> list[tuple[str, str, str]]:
    """List (key, value, default) of the settings that differ from the defaults, spelled as on the command line."""
    values, defaults = to_dict(config), to_dict(merge())
    found = [
        (key, spell(value), spell(default))
        for (key, value), (_, default) in zip(leaves(values), leaves(defaults), strict=True)
        if value != default and key not in (*HOW, *PLUGGED)
    ]
    for group in ("callbacks", "logger"):
        found += _plugged(group, values[group], defaults[group])
    return found


def overrides(config: Config) -> list[str]:
    """List the overrides that repeat a run under another name. Give what `minutes` chose, not `minutes` itself."""
    return [f"{key}={value}" for key, value, _ in differences(config) if key != "minutes"]


def _plugged(group: str, chosen: dict[str, Any], default: dict[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Compare a run's callbacks or loggers with the defaults: first their names, then the options of each."""
    if list(chosen) != list(default):
        yield group, spell(list(chosen)) if chosen else "none", spell(list(default))
    for name, arguments in chosen.items():
        own = options(group, name)
        for key in own:
            if arguments[key] != own[key]:
                yield f"{group}.{name}.{key}", _quoted(arguments[key]), _quoted(own[key])


def _quoted(value: Any) -> str:
    """Quote a value for Hydra's grammar."""
    if isinstance(value, str) and not re.fullmatch(r"[A-Za-z_][\w./-]*", value):
        return "'" + re.sub(r"(\\*)'", r"\1\1\\'", value) + "'"
    return spell(value)
