"""Turn a configuration into the command line that repeats it."""

from base.options import spell
from conf.compose import PLUGINS, composed_presets
from conf.keys import KEYS, is_launch, leaves
from conf.overrides import Setting, quoted
from conf.schema import Config, to_dict


def differences(config: Config) -> list[tuple[str, str, str]]:
    """Return (key, value, default), as on the command line, for each setting that differs from its default.

    A value that the run has chosen for `auto` is included, unless most runs choose the same value.
    """
    defaults, found = dict(leaves(composed_presets())), []
    for key, value in leaves(to_dict(config)):
        if key not in PLUGINS and value not in (defaults[key], KEYS[key].usual) and not is_launch(key):
            found.append((key, spell(value), spell(defaults[key])))
    chosen = {group: list(getattr(config, group)) for group in PLUGINS}
    named = composed_presets([Setting(group, names, f"{group}={spell(names)}") for group, names in chosen.items()])
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
