"""Read the YAML files of conf/: the configuration groups and their presets."""

from pathlib import Path
from typing import Any

import yaml

CONF = Path(__file__).parent


def groups() -> dict[str, list[str]]:
    """Map every configuration group to its choices."""
    return {
        folder.name: sorted(file.stem for file in folder.glob("*.yaml"))
        for folder in sorted(CONF.iterdir())
        if any(folder.glob("*.yaml"))
    }


def choice_values(group: str, choice: str) -> dict[str, Any]:
    """Return the settings in conf/<group>/<choice>.yaml."""
    return yaml.safe_load((CONF / group / f"{choice}.yaml").read_text("utf-8")) or {}
