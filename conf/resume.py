"""Going on with a run, or from its model: which settings stay, and what must be as it was for the bits of a run."""

from pathlib import Path
from typing import Any

from base.errors import InputError, nearest, one_line
from base.options import fits, shown
from conf.keys import HOW, PLUGINS, choice_values, fields, groups, leaves, set_leaf
from conf.schema import MAX_YAML, Config, from_dict, from_yaml, to_dict, to_yaml


def _rule(key: str, field: Any) -> str:
    group = Config.__dataclass_fields__[key.partition(".")[0]]
    return "free" if key in HOW else field.metadata.get("on_resume") or group.metadata.get("on_resume", "allow")


# What `on_resume` of `option` says of each key: its own, or its group's.
RULES = {key: _rule(key, field) for key, (_, field) in fields().items()}


def read_config(run: Path) -> Config:
    """Read a run's config.yaml as plain data.

    Raises:
        InputError: it is not there or cannot be used, in one line.
    """
    path = run / "config.yaml"
    try:
        if not path.is_file():
            raise FileNotFoundError(f"has no {path.name}")
        with open(path, encoding="utf-8") as file:
            return from_yaml(file.read(MAX_YAML + 1))
    except (OSError, ValueError) as error:
        raise InputError(f"{run}: cannot go on: {one_line(error)[:300]}") from None


def untrusted(config: Config) -> list[str]:
    """List the keys of a run's configuration that count only if they are typed again.

    They are addresses of text, which would be requested, and callbacks and loggers, which are code: those that differ
    from the files in conf/ by more than values within the ranges of `PLUGINS`.
    """

    def own(group: str, name: str, entry: Any) -> bool:
        if name not in groups()[group] or not isinstance(entry, dict):
            return False
        bounded = {
            key: value
            for key, value in entry.items()
            if (plugin := PLUGINS.get(f"{group}.{name}.{key}")) and fits(value, plugin[0], plugin[1].metadata)
        }
        return choice_values(group, name).get(name, {}) | bounded == entry != {}

    remote = ["data.path"] if "://" in (config.data.path or "") else []
    plugged = {group: getattr(config, group).items() for group in ("callbacks", "logger")}
    return remote + [group for group in plugged if not all(own(group, *each) for each in plugged[group])]


def merge_resumed(old: Config, typed: Config, keys: list[str]) -> Config:
    """Put what was typed, the values of `keys`, on top of the configuration of the run that is resumed."""
    values, new = to_dict(old), dict(leaves(to_dict(typed)))
    # Compiled code is kept there and run: a place for whoever resumes to name, not for a run from somewhere else.
    set_leaf(values, "data.cache_dir", typed.data.cache_dir)
    set_leaf(values, "trainer.num_nodes", typed.trainer.num_nodes)  # torchrun and srun say it anew
    for key in keys:
        # What was chosen automatically stays as it was chosen; `minutes` chose the steps, whatever an experiment says.
        if key != "name" and new[key] != "auto" and not (key == "trainer.max_steps" and "minutes" in keys):
            set_leaf(values, key, new[key])
    return from_dict(values | {"resume": typed.resume, "allow": typed.allow})


def merge_started(typed: Config, keys: list[str], model: dict[str, Any], tokenizer: str) -> Config:
    """Put the shape of the trained model that a run starts from into its configuration.

    Dropout, the attention kernel, its window and the context can be typed: no weight depends on them, but for the
    learned positions, of which fewer will do.

    Raises:
        ValueError: one line that lists what was typed and is otherwise in the trained model.
    """
    values, new = to_dict(typed), dict(leaves(to_dict(typed)))
    trained = {f"model.{key}": value for key, value in model.items()} | {"data.tokenizer": tokenizer}
    longer = typed.model.context > model["context"]
    free = [*(key for key in trained if RULES[key] != "fixed"), "model.window"]
    if model["positions"] != "learned" or not longer:
        free.append("model.context")
    wrong = [key for key in trained if key in keys and key not in free and new[key] != trained[key]]
    if wrong:
        listed = ", ".join(f"{key}={shown(new[key])} (the model has {shown(trained[key])})" for key in wrong)
        raise InputError(f"init_from={typed.init_from}: cannot change {listed}")
    for key in trained.keys() - (set(free) & set(keys)):
        set_leaf(values, key, trained[key])
    return from_dict(values)


def changed(old: Config, typed: Config, keys: list[str]) -> list[str]:
    """Compare a run with a command that would make it afresh.

    Returns:
        What the command means otherwise, as `key=value (the run has value)`; typing more steps only goes on longer.
    """
    ours, theirs = (dict(leaves(to_dict(from_yaml(to_yaml(config))))) for config in (typed, old))
    chosen = ["model.", "data.batch", "trainer.max_steps"] if typed.minutes else []
    chosen += ["model.", "data.tokenizer"] if typed.init_from else []
    longer = "trainer.max_steps" in keys and typed.trainer.max_steps > old.trainer.max_steps
    return [
        f"{key}={shown(ours[key])} (the run has {shown(theirs[key])})"
        for key in ours
        if (RULES[key] != "free" or key in ("data.path", "data.corpus", "trainer.max_steps"))
        and ours[key] not in (theirs[key], "auto")
        and not (key == "trainer.max_steps" and longer)
        and not (key.startswith(tuple(chosen)) and key not in keys)
        and key not in typed.allow
    ]


def settings(config: Config) -> dict[str, Any]:
    """Every setting that the bits of a run depend on, by its key."""
    return {key: value for key, value in leaves(to_dict(config)) if RULES[key] != "free"}


def is_fixed(name: str) -> bool:
    """Whether no `allow` can change it: the weights would not fit, or mean something else."""
    return name == "vocabulary" or RULES.get(name) == "fixed"


def check_unchanged(before: dict[str, Any], now: dict[str, Any], allow: list[str]) -> str:
    """Compare what the bits of a run depend on with what it was.

    Returns:
        What differs, for people; empty when nothing does, and the run goes on bit for bit.

    Raises:
        ValueError: one line that lists all that differs and may not, with both values.
    """
    for name in allow:
        if name not in now:
            raise InputError(f"allow=[{name}]: no such field{nearest(name, now)}")
    differing = [name for name in now if before.get(name) != now[name]]
    fixed = [name for name in differing if is_fixed(name)]
    listed = ", ".join(f"{name}={shown(now[name])} (the run has {shown(before.get(name))})" for name in differing)
    if fixed:
        raise InputError(f"resume: cannot change {listed}; no allow= helps with {', '.join(fixed)}")
    for name in filter(is_fixed, allow):
        raise InputError(f"allow=[{name}]: cannot be allowed: the weights would not fit or mean something else")
    if set(differing) - set(allow):
        raise InputError(f"resume: cannot change {listed}; allow=[{','.join(differing)}] goes on all the same")
    return listed
