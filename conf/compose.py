"""Turn what was typed after `train.py` into configurations, with Hydra."""

from conf.keys import GLOBAL
from conf.keys import PLUGGED
from conf.keys import choice_values
from conf.keys import fields
from conf.keys import groups
from conf.keys import leaves
from conf.keys import set_leaf
from conf.schema import Config
from conf.schema import from_dict
from conf.schema import to_dict
from dataclasses import dataclass
from hydra.core.override_parser.overrides_parser import OverridesParser



def apply_literals(config: Config, literals: dict[str, str | None]) -> Config:
    """The configuration with the literal values in place."""
    values = to_dict(config)
    for key, value in literals.items():
        set_leaf(values, key, value)
    return from_dict(values)


def typed_keys(arguments: list[str], literals: dict[str, str | None]) -> list[str]:
    """The keys that the typed overrides decide: a group decides whatever any of its files sets."""
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

    for argument in arguments:
        override = OverridesParser.create().parse_override(argument)
        key = override.key_or_group
        if key in choices:
            decided(key, str(override.value()))
        elif key in known:
            keys.append(key)
        elif key.partition(".")[0] in PLUGGED:
            keys.append(key.partition(".")[0])
    return list(dict.fromkeys(keys))


@dataclass(frozen=True)
class ParsedRun:
    """What was typed, for one run.

    Attributes:
        config: the configuration that it makes.
        keys: the keys that it decides.
        overrides: it, without what is taken literally.
    """

    config: Config
    keys: list[str]
    overrides: list[str]
