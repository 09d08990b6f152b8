import re
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from conf.groups import CONF
from conf.keys import PLUGGED, leaves
from conf.overrides import take_search
from conf.plugins import checked
from conf.schema import to_dict
from gpt.model import GPT
from tests.conf.test_defaults import compose
from tests.conftest import Call, needs, summary

FILES = sorted(file.relative_to(CONF).with_suffix("").as_posix() for file in CONF.rglob("*.yaml"))


def said(file: str) -> str:
    return (CONF / f"{file}.yaml").read_text("utf-8")


def contents(file: str) -> tuple[dict[str, Any], dict[str, str]]:
    values = yaml.safe_load(said(file)) or {}
    chosen = {
        key.removeprefix("override /"): choice for entry in values.pop("defaults", []) for key, choice in entry.items()
    }
    group = file.rpartition("/")[0]
    return dict(leaves(values if said(file).startswith("# @package _global_") else {group: values})), chosen


def chosen(file: str) -> str:
    group, _, choice = file.rpartition("/")
    return f"{group}=[{choice}]" if group == "callbacks" else f"{group}={choice}"


@pytest.mark.slow
@pytest.mark.parametrize("file", [file for file in FILES if file != "train" and "hparams_search" not in file])
def test_every_file_has_its_values_in_the_configuration(file: str) -> None:
    config = compose([chosen(file)])
    values = dict(leaves(to_dict(config)))
    expected, others = contents(file)
    for key, value in expected.items():
        assert values[key] == (checked(key, value) if key in PLUGGED else value), key
    for other, name in others.items():  # such as `override /logger: none`
        for key, value in contents(f"{other}/{name}")[0].items():
            assert values[key] == expected.get(key, value), key  # the loggers of `none` are {}
    with torch.device("meta"):
        weights = GPT(config.model, 256 if config.data.tokenizer == "byte" else 96).num_parameters()
    if re.match("model/|experiment/(enwik8|stdlib_gpu)", file):  # their files say how large the model is
        counted = re.search(r"([\d.]+) million (weights|parameters)", said(file))
        assert counted and float(counted[1]) == round(weights / 1e6, len(counted[1].partition(".")[2]))


def test_a_search_has_what_its_file_says() -> None:
    search, rest = take_search(["hparams_search=default", "seed=1"])
    assert search and rest == ["seed=1"]
    values = yaml.safe_load(said("hparams_search/default"))
    assert {key: getattr(search, key) for key in values} == values


def test_the_default_recipe_is_the_one_of_the_results() -> None:
    values = {key: value for key, value in leaves(to_dict(compose([]))) if isinstance(value, int | float | list)}
    assert {key: value for key, value in values.items() if not isinstance(value, bool)} == {
        "seed": 0, "allow": [], "workers": 1,
        "model.layers": 4, "model.heads": 2, "model.dim": 128, "model.context": 256, "model.dropout": 0.0,
        "model.conv_taps": 3,
        "data.split": [0.9, 0.05, 0.05], "data.batch": 8,
        "optim.lr": 0.006, "optim.muon_lr": 0.01, "optim.muon_beta2": 0.95, "optim.muon_every": 2, "optim.min_lr": 0.0,
        "optim.warmup": 50, "optim.cooldown": 0.5, "optim.weight_decay": 0.1, "optim.betas": [0.9, 0.99],
        "optim.clip": 1.0,
        "trainer.max_steps": 1500, "trainer.num_nodes": 1, "trainer.timeout": 600.0, "trainer.val_check_interval": 300,
        "trainer.checkpoint_minutes": 5.0, "trainer.log_every_n_steps": 10,
        "watch.attention_heads": [],
    }  # fmt: skip


@pytest.mark.slow
def test_wandb_gets_a_run(train: Call) -> None:
    needs("wandb", extra="wandb")
    ended = train("logger=wandb", "logger.wandb.offline=true", "trainer.max_steps=2", "name=a")
    assert ended.status == 0 and summary("a")["steps"] == 2 and list(Path().rglob("run-*.wandb")), ended
