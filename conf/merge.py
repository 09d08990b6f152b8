"""Merge and compare configurations when a run is resumed or started from a trained model."""

from pathlib import Path
from typing import Any

from base.errors import InputError, nearest, one_line
from base.options import spell
from conf.keys import HOW, fields, leaves, set_leaf
from conf.schema import MAX_YAML, Config, from_dict, from_yaml, to_dict, to_yaml


def _rule(key: str, field: Any) -> str:
    group = Config.__dataclass_fields__[key.partition(".")[0]]
    return "free" if key in HOW else field.metadata.get("on_resume") or group.metadata.get("on_resume", "allow")


# `on_resume` of each key: its own, its group's, or else `allow`.
RULES = {key: _rule(key, field) for key, (_, field) in fields().items()}


def read_config(run: Path) -> Config:
    """Read a run's config.yaml as plain data; raise an `InputError` if it is missing or wrong."""
    path = run / "config.yaml"
    try:
        if not path.is_file():
            raise FileNotFoundError("is missing")
        with open(path, encoding="utf-8") as file:
            return from_yaml(file.read(MAX_YAML + 1))
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: {one_line(error)[:300]}") from None


def typed_again(config: Config) -> list[str]:
    """List the overrides that must be typed again to resume: a config.yaml must not choose which address is opened."""
    return [f"data.path={config.data.path}"] if "://" in (config.data.path or "") else []


def merge_resumed(old: Config, typed: Config, keys: list[str]) -> Config:
    """Return the configuration of the run to resume with the values of the typed `keys`."""
    values, new = to_dict(old), dict(leaves(to_dict(typed)))
    # Compiled code in cache_dir is executed, so it is never taken from the config.yaml of a run.
    set_leaf(values, "data.cache_dir", typed.data.cache_dir)
    set_leaf(values, "trainer.num_nodes", typed.trainer.num_nodes)  # torchrun and srun set it
    for key in keys:
        # A typed auto keeps what was chosen; `minutes` chose the steps, even if an experiment sets them.
        if key != "name" and new[key] != "auto" and not (key == "trainer.max_steps" and "minutes" in keys):
            set_leaf(values, key, new[key])
    return from_dict(values | {"resume": typed.resume, "allow": typed.allow})


def merge_started(typed: Config, keys: list[str], model: dict[str, Any], tokenizer: str) -> Config:
    """Return the typed configuration with the shape and tokenizer of the trained model (`init_from=`).

    Dropout, the attention kernel, its window and the context may be typed, because no weight depends on them; learned
    positions allow a shorter context only.
    """
    values, new = to_dict(typed), dict(leaves(to_dict(typed)))
    trained = {f"model.{key}": value for key, value in model.items()} | {"data.tokenizer": tokenizer}
    longer = typed.model.context > model["context"]
    free = [*(key for key in trained if RULES[key] != "fixed"), "model.window"]
    if model["positions"] != "learned" or not longer:
        free.append("model.context")
    wrong = [key for key in trained if key in keys and key not in free and new[key] != trained[key]]
    if wrong:
        listed = ", ".join(f"{key}={spell(new[key])} (the model has {spell(trained[key])})" for key in wrong)
        raise InputError(f"init_from={typed.init_from}: cannot change {listed}")
    for key in trained.keys() - (set(free) & set(keys)):
        set_leaf(values, key, trained[key])
    return from_dict(values)


def changed(old: Config, typed: Config, keys: list[str]) -> list[str]:
    """List the settings of a command that differ from the run `old`, as `key=value (the run has value)`.

    More steps do not count: they continue the run.
    """
    ours, theirs = (dict(leaves(to_dict(from_yaml(to_yaml(config))))) for config in (typed, old))
    chosen = ["model.", "data.batch", "trainer.max_steps"] if typed.minutes else []
    chosen += ["model.", "data.tokenizer"] if typed.init_from else []
    longer = "trainer.max_steps" in keys and typed.trainer.max_steps > old.trainer.max_steps
    return [
        f"{key}={spell(ours[key])} (the run has {spell(theirs[key])})"
        for key in ours
        if (RULES[key] != "free" or key in ("data.path", "data.corpus", "trainer.max_steps"))
        and ours[key] not in (theirs[key], "auto")
        and not (key == "trainer.max_steps" and longer)
        and not (key.startswith(tuple(chosen)) and key not in keys)
        and key not in typed.allow
    ]


def settings(config: Config) -> dict[str, Any]:
    """Return every setting that the result of a run depends on, by key."""
    return {key: value for key, value in leaves(to_dict(config)) if RULES[key] != "free"}


def is_fixed(name: str) -> bool:
    """Whether `allow=` cannot permit a change: the weights would not fit or mean something else."""
    return name == "vocabulary" or RULES.get(name) == "fixed"


def check_unchanged(before: dict[str, Any], now: dict[str, Any], allow: list[str]) -> str:
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
