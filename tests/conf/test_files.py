"""Every file in conf/ is composed and run for two steps: found in the folder, so that a new one need not be named."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from conf.overrides import CONF, leaves
from tests.conftest import Ended, needs

FILES = sorted(file.relative_to(CONF).with_suffix("").as_posix() for file in CONF.rglob("*.yaml"))
# What this machine may lack (a GPU, several devices, a network) or what would take minutes is replaced for all files.
REPLACED = {
    "trainer.accelerator": "cpu",
    "trainer.devices": 1,
    "trainer.max_steps": 2,
    "trainer.val_check_interval": 2,
    "data.path": "book.txt",
    "data.batch": 2,
    "compile": "false",
}
PACKAGES = {"logger/wandb": ["wandb"]}


def test_the_folder_is_found() -> None:
    assert {"train", "model/tiny", "experiment/nanogpt_cpu", "debug/fast"} <= set(FILES)


@pytest.mark.slow
@pytest.mark.parametrize("file", FILES)
def test_every_file_runs(file: str, train: Callable[..., Ended], monkeypatch: pytest.MonkeyPatch) -> None:
    needs(*PACKAGES.get(file, []), extra=file.rpartition("/")[2])
    monkeypatch.setenv("WANDB_MODE", "offline")
    group, _, choice = file.rpartition("/")
    chosen = [f"{group}=[{choice}]" if group == "callbacks" else f"{group}={choice}"] if group else []
    content = yaml.safe_load((CONF / f"{file}.yaml").read_text("utf-8"))
    overridden = [entry for entry in content.pop("defaults", []) if isinstance(entry, dict)] if group else []
    for module in ("train", "gpt.fit.callbacks"):
        monkeypatch.setattr(f"{module}.SAMPLE_LENGTH", 5)

    typed = [f"{key}={value}" for key, value in REPLACED.items()]
    ended = train(*chosen, *typed, "name=run", defaults=False)
    assert ended.status == 0 and (ended.err == "" or file == "logger/wandb"), ended.err  # which tells of itself
    assert json.loads(Path("runs/run/summary.json").read_text())["steps"] == 2

    values = dict(leaves(yaml.safe_load(Path("runs/run/config.yaml").read_text("utf-8"))))
    if not group:  # the defaults themselves, with what is Hydra's own
        return
    package = (CONF / f"{file}.yaml").read_text("utf-8").startswith("# @package _global_")
    expected: dict[str, Any] = dict(leaves({group: content} if not package else content))
    for key, value in expected.items():
        assert values[key] == ("run" if key == "name" else REPLACED.get(key, value)), key
    for entry in overridden:  # such as `override /logger: none`
        for name, other in entry.items():
            other_group = name.removeprefix("override /")
            assert values[other_group] == yaml.safe_load((CONF / other_group / f"{other}.yaml").read_text("utf-8"))
