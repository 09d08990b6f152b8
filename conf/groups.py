"""Find the configuration groups, which are folders of conf/, and their presets, which are the files in them."""

from functools import cache
from pathlib import Path
from typing import Any

import yaml
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from base.errors import InputError, one_line

CONF = Path(__file__).parent
FOLDERS: list[Path] = []  # of `--config-dir`; a preset in conf/ takes precedence over theirs


def add_folder(name: str) -> None:
    """Make the presets in the folder `name`, which has a folder for each group as conf/ has, available."""
    folder = Path(name).absolute()
    if not name or not folder.is_dir():
        raise InputError(f"--config-dir {name}: no such folder")
    if not any(file for group in groups() for file in folder.glob(f"{group}/*.yaml")):
        raise InputError(f"--config-dir {name}: contains no preset, such as {Path(name) / 'model/mine.yaml'}")
    if folder not in FOLDERS:
        FOLDERS.append(folder)


def groups() -> dict[str, list[str]]:
    """Return the names of the presets by configuration group, such as `{"model": ["small", …], …}`."""
    return _groups((CONF, *FOLDERS))


@cache  # a sweep calls it for each of its runs
def _groups(folders: tuple[Path, ...]) -> dict[str, list[str]]:
    found = [folder.name for folder in sorted(folders[0].iterdir()) if any(folder.glob("*.yaml"))]
    return {group: sorted({file.stem for each in folders for file in each.glob(f"{group}/*.yaml")}) for group in found}


def choice_values(group: str, choice: str) -> dict[str, Any]:
    """Return the settings in the file of the preset `choice`, or raise an `InputError`."""
    files = [folder / group / f"{choice}.yaml" for folder in [CONF, *FOLDERS]]
    file = next((file for file in files if file.exists()), files[0])
    try:
        values = OmegaConf.to_container(OmegaConf.load(file))
    except (OSError, ValueError, yaml.YAMLError, OmegaConfBaseException) as error:
        raise InputError(f"{file}: {one_line(error)}") from None
    if not isinstance(values, dict):
        raise InputError(f"{file}: must be a mapping of keys to values")
    return values  # type: ignore[return-value]
