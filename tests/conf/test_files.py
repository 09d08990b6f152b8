"""Every file in conf/ is composed and run for two steps: found in the folder, so that a new one need not be named."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hydra
import pytest
import torch
import yaml
from hydra.core.config_store import ConfigStore
from omegaconf import OmegaConf

from conf.fields import shown
from conf.overrides import CONF, leaves
from conf.schema import Config
from gpt.config import ModelConfig
from gpt.model import GPT
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
    "minutes": None,
    "compile": "false",
}
# What a file needs beside its own choice, and where the run then is.
MORE = {
    "hparams_search": (["hparams_search.trials=1"], "trial-000"),
}
PACKAGES = {"logger/wandb": "wandb", "hparams_search/default": "optuna"}


def contents(file: str) -> tuple[dict[str, Any], dict[str, str]]:
    """The values that a file sets, by key, and the other groups that it chooses."""
    text = (CONF / f"{file}.yaml").read_text("utf-8")
    values = yaml.safe_load(text) or {}
    chosen = {
        key.removeprefix("override /"): choice for entry in values.pop("defaults", []) for key, choice in entry.items()
    }
    group = file.rpartition("/")[0]
    return dict(leaves(values if text.startswith("# @package _global_") else {group: values})), chosen


def test_the_folder_is_found() -> None:
    assert {"train", "model/tiny", "experiment/nanogpt_cpu", "debug/fast"} <= set(FILES)


@pytest.mark.parametrize("file", [file for file in FILES if re.match("model/|experiment/(enwik8|stdlib_gpu)", file)])
def test_a_model_has_as_many_weights_as_its_file_says(file: str) -> None:
    values, _ = contents(file)
    shape = {key.removeprefix("model."): value for key, value in values.items() if key.startswith("model.")}
    with torch.device("meta"):
        weights = GPT(ModelConfig(**shape), 256 if values.get("data.tokenizer") == "byte" else 96).num_parameters()
    said = re.search(r"([\d.]+) million (weights|parameters)", (CONF / f"{file}.yaml").read_text("utf-8"))
    assert said and float(said[1]) == round(weights / 1e6, len(said[1].partition(".")[2]))


@pytest.mark.slow
@pytest.mark.parametrize("file", [file for file in FILES if file not in ("train", "launcher/slurm")])
def test_every_file_runs(file: str, train: Callable[..., Ended], monkeypatch: pytest.MonkeyPatch) -> None:
    group, _, choice = file.rpartition("/")
    if file in PACKAGES:
        needs(PACKAGES[file], extra={"hparams_search": "search"}.get(group, choice))
    monkeypatch.setenv("WANDB_MODE", "offline")
    for module in ("train", "gpt.fit.pictures"):
        monkeypatch.setattr(f"{module}.SAMPLE_LENGTH", 5)

    # Deeper than 6 layers is too much for a CPU here: one of them, as wide as they are.
    replaced = REPLACED | ({"model.layers": 1} if contents(file)[0].get("model.layers", 0) > 6 else {})
    typed = [f"{key}={shown(value)}" for key, value in replaced.items()]
    more, below = MORE.get(group, ([], ""))
    chosen = f"{group}=[{choice}]" if group == "callbacks" else f"{group}={choice}"
    ended = train(chosen, *typed, *more, "name=run", defaults=False)
    assert ended.status == 0 and (ended.err == "" or file == "logger/wandb"), ended.err  # which tells of itself
    run = Path("runs/run", below)
    assert json.loads((run / "summary.json").read_text())["steps"] == 2

    values = dict(leaves(yaml.safe_load((run / "config.yaml").read_text("utf-8"))))
    expected, others = contents(file)
    for key, value in expected.items():
        if group not in MORE:  # which say how several runs are made, not what they are
            assert values[key] == ("run" if key == "name" else replaced.get(key, value)), key
    for other, name in others.items():  # such as `override /logger: none`
        for key, value in contents(f"{other}/{name}")[0].items():
            assert values[key] == expected.get(key, replaced.get(key, value)), key


@pytest.mark.slow
def test_the_defaults_run(train: Callable[..., Ended], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("train.SAMPLE_LENGTH", 5)
    ended = train(*(f"{key}={shown(value)}" for key, value in REPLACED.items()), "name=run", defaults=False)
    assert ended.status == 0 and ended.err == "", ended.err
    assert json.loads(Path("runs/run/summary.json").read_text())["steps"] == 2


def test_what_needs_a_cluster_is_composed() -> None:
    """Its jobs have tests of their own, with scripts that stand for SLURM's commands or with submitit's local jobs."""
    ConfigStore.instance().store("schema", node=Config)
    with hydra.initialize_config_dir(str(CONF), version_base="1.3"):
        composed = OmegaConf.to_container(hydra.compose("train", ["launcher=slurm"]))
    assert isinstance(composed, dict)
    assert {"launcher": composed["launcher"]} == contents("launcher/slurm")[0]
