"""Which settings may change when a run is resumed or starts from a trained model, or when a sweep is continued.

The option of a setting says whether it may change: `on_resume=` of `base.options.option`.
"""

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from base import processes
from base.errors import InputError, nearest
from base.options import spell
from conf.keys import KEYS
from conf.schema import PLUGINS, Config, by_key
from gpt.config import ModelConfig

# free on resume, which compares the text's fingerprint
PATHS = ("data.path", "data.validation", "data.test")


def conditions_of(config: Config) -> dict[str, Any]:
    """Return the settings that the result of a run depends on, as key -> value."""
    return {key: value for key, value in by_key(config).items() if KEYS[key].on_resume != "free"}


def changed(stored: Config, config: Config) -> list[str]:
    """Return each setting in which `config` differs from that of a run, `stored`, as `key=value (the run has value)`.

    Not compared is what is `auto`, comes with the model of `init_from` or is in `allow`. A larger
    `trainer.max_steps` is not a difference, because it continues the run.
    """
    ours = by_key(config)
    theirs = by_key(stored)
    trained = ("model.", "data.tokenizer") if config.init_from else ()
    steps = config.trainer.max_steps
    longer = (
        steps != "auto" and stored.trainer.max_steps != "auto" and steps > stored.trainer.max_steps
    )
    differing = []
    for key, value in ours.items():
        is_free = KEYS[key].on_resume == "free" and key not in (*PATHS, "trainer.max_steps")
        if is_free or value == theirs[key]:
            continue
        if key in config.allow or key.startswith(trained):
            continue
        if key == "trainer.max_steps" and longer:
            continue
        has_auto = value == "auto"
        if key in PLUGINS:
            has_auto = any("auto" in options.values() for options in value.values())
        if has_auto and key not in PATHS:  # a file may be called auto
            continue
        differing.append(_difference(key, value, theirs[key]))
    return differing


def _difference(key: str, ours: Any, theirs: Any, whose: str = "run") -> str:
    stored = "none" if theirs is None else spell(theirs)
    return f"{key}={spell(ours)} (the {whose} has {stored})"


def trained_groups(model: ModelConfig, meta: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the settings that a run takes over from the model from which it starts, as group -> key -> value."""
    return {"model": vars(model), "data": {"tokenizer": meta["vocabulary"]["kind"]}}


def check_trained(config: Config, groups: Mapping[str, Mapping[str, Any]]) -> None:
    """Raise an `InputError` if a run that starts from a trained model changes a setting on which the weights depend.

    `groups` contains the settings of the trained model. No weight depends on the window, and none
    on the context unless the positions are learned: then it must not be longer.
    """
    trained = by_key(groups)
    ours = by_key(config)
    free = ["model.window", "model.context"]
    if (
        trained["model.positions"] == "learned"
        and ours["model.context"] > trained["model.context"]
    ):
        free.remove("model.context")
    fixed = [
        key
        for key in trained
        if KEYS[key].on_resume == "fixed" and key not in free and ours[key] != trained[key]
    ]
    if fixed:
        listed = [_difference(key, ours[key], trained[key], "model") for key in fixed]
        raise InputError(f"init_from={config.init_from}: cannot change {', '.join(listed)}")


def check_unchanged(
    before: Mapping[str, Any], now: Mapping[str, Any], allow: list[str], run: Path
) -> str:
    """Return how the conditions of a resumed run differ from those under which it was trained, or "" if they are equal.

    Conditions are everything that the results depend on: the settings, the text, the device,
    torch's version, … One that differs must be in `allow`.
    """
    for name in allow:
        if name not in now:
            raise InputError(f"allow=[{name}]: no such field{nearest(name, now)}")
    defaults = {key: option.default for key, option in KEYS.items()}
    before = defaults | dict(before)  # a checkpoint may be older than a setting
    differing = [name for name in now if before.get(name) != now[name]]
    fixed = [
        name
        for name in differing
        if name == "vocabulary" or (name in KEYS and KEYS[name].on_resume == "fixed")
    ]
    listed = ", ".join(_difference(name, now[name], before.get(name)) for name in differing)
    if fixed:
        advice = f"allow= cannot permit {', '.join(fixed)}"
        if fixed == ["vocabulary"]:
            start = processes.command("python", "train.py", f"init_from={run}", "data.path=FILE")
            advice = f"the vocabulary of a run cannot change; to start a new run from this model: {start}"
        raise InputError(f"resume: cannot change {listed}; {advice}")
    if set(differing) - set(allow):
        way = shlex.quote(f"allow=[{','.join(differing)}]")
        raise InputError(f"resume: cannot change {listed}; {way} continues anyway")
    return listed
