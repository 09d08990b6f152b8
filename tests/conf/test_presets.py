import re
from typing import Any

import pytest
import torch
import yaml

from conf.files import CONF, choice_values
from conf.keys import PLUGGED, leaves
from conf.plugins import EarlyStopping, Ema, checked
from conf.schema import to_dict
from gpt.config import ModelConfig
from gpt.model import GPT
from sweeps.search_space import take_search
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
    config = compose([*["-m"] * file.startswith("launcher"), chosen(file)])
    values = dict(leaves(to_dict(config)))
    expected, others = contents(file)
    for key, value in expected.items():
        assert values[key] == (checked(key, value) if key in PLUGGED[:2] else value), key
    for other, name in others.items():  # such as `override /logger: none`
        for key, value in contents(f"{other}/{name}")[0].items():
            assert values[key] == expected.get(key, value), key  # the loggers of `none` are {}
    with torch.device("meta"):
        weights = GPT(config.model, 256 if config.data.tokenizer == "byte" else 96).num_parameters()
    if re.match("model/|experiment/(enwik8|stdlib_gpu)", file):  # their files say how large the model is
        counted = re.search(r"([\d.]+) million (weights|parameters)", said(file))
        assert counted and float(counted[1]) == round(weights / 1e6, len(counted[1].partition(".")[2]))


def test_the_file_of_a_search_and_heads_of_presets() -> None:
    search, rest = take_search(["hparams_search=default", "seed=1"])
    assert search and rest == ["seed=1"]
    values = yaml.safe_load(said("hparams_search/default"))
    assert {key: getattr(search, key) for key in values} == values
    for preset in ("tiny", "small", "baby"):
        assert ModelConfig(**choice_values("model", preset) | {"heads": 8}).heads == 8
        with pytest.raises(ValueError, match=r"^model\.heads=5: must divide model\.dim=\d+: 1, 2"):
            ModelConfig(**choice_values("model", preset) | {"heads": 5})


def test_what_can_be_typed_about_a_callback_has_the_default_of_its_preset() -> None:
    for name, kind in (("early_stopping", EarlyStopping), ("ema", Ema)):
        preset = yaml.safe_load(said(f"callbacks/{name}"))[name]
        assert {key: preset[key] for key in vars(kind())} == vars(kind())
    assert (EarlyStopping().patience, Ema().decay) == (5, 0.998)


def test_the_default_recipe_is_the_one_of_the_results() -> None:
    values = {key: value for key, value in leaves(to_dict(compose([]))) if isinstance(value, int | float | list)}
    numbers = [value for value in values.values() if not isinstance(value, bool)]
    assert numbers == [
        0, [], 1, 4, 2, 128, 256, 0.0, 4, [0.9, 0.05, 0.05], 8, 20.0, 0.006, 0.01, 0.95, 0.0, 50, 0.5, 0.1, [0.9, 0.99],
        1.0, 1400, 1, 600.0, 300, 5.0, 10, [],
    ], values  # fmt: skip


@pytest.mark.slow
def test_what_names_a_class_runs(train: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    files = [file for file in FILES if "_target_" in said(file)]
    assert {"callbacks/ema", "logger/tensorboard"} <= set(files)
    for file in files:
        if file == "logger/wandb":
            needs("wandb", extra="wandb")
        name = file.replace("/", "-")
        ended = train(chosen(file), "trainer.max_steps=2", "trainer.val_check_interval=2", f"name={name}")
        assert ended.status == 0 and (ended.err == "" or file == "logger/wandb"), ended.err  # which tells of itself
        assert summary(name)["steps"] == 2
