import importlib
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import hydra
import pytest
import torch
import yaml

from conf import compose as composing
from conf.groups import CONF, FOLDERS
from conf.keys import KEYS, is_plugins, leaves
from conf.overrides import read_search
from conf.schema import to_dict
from gpt.config import ModelConfig
from gpt.model import GPT
from tests.conf.test_defaults import compose, composed
from tests.conftest import ROOT, Call, needs, one_line, summary
from tests.faults.processes import run

FILES = sorted(file.relative_to(CONF).with_suffix("").as_posix() for file in CONF.rglob("*.yaml"))


def said(file: str) -> str:
    return (CONF / f"{file}.yaml").read_text("utf-8")


def contents(file: str) -> tuple[dict[str, Any], dict[str, str]]:
    """The settings in a file, and its choices for other groups."""
    group = file.rpartition("/")[0]
    values, chosen = yaml.safe_load(said(file)) or {}, dict[str, str]()
    for entry in values.pop("defaults", []):
        if isinstance(entry, str):  # another file of the group
            for name, arguments in yaml.safe_load(said(f"{group}/{entry}")).items():
                values[name] = arguments | values.get(name, {})
        else:
            chosen |= {key.removeprefix("override /"): choice for key, choice in entry.items()}
    return dict(leaves(values if said(file).startswith("# @package _global_") else {group: values})), chosen


def without_classes(plugins: dict[str, Any]) -> dict[str, Any]:
    return {name: {key: given[key] for key in given if key != "_target_"} for name, given in plugins.items()}


def chosen(file: str) -> str:
    group, _, choice = file.rpartition("/")
    return f"{group}=[{choice}]" if group == "callbacks" else f"{group}={choice}"


@pytest.mark.slow
@pytest.mark.parametrize("file", [file for file in FILES if "/" in file and "hparams_search" not in file])
def test_every_file_has_its_values_in_the_configuration(file: str) -> None:
    config = compose([chosen(file)])
    values = dict(leaves(to_dict(config)))
    expected, others = contents(file)
    for key, value in expected.items():
        assert values[key] == (without_classes(value) if is_plugins(key) else value), key
    for other, name in others.items():  # such as `override /logger: none`
        for key, value in contents(f"{other}/{name}")[0].items():
            assert values[key] == expected.get(key, value), key  # the loggers of `none` are {}
    with torch.device("meta"):
        chosen_later = {key: getattr(ModelConfig, key) for key, value in vars(config.model).items() if value == "auto"}
        model = replace(config.model, **chosen_later)
        weights = GPT(model, 256 if config.data.tokenizer == "byte" else 96).num_parameters()
    if re.match("model/(?!auto)|experiment/(enwik8|stdlib_gpu)", file):  # their files say how large the model is
        counted = re.search(r"([\d.]+) million (weights|parameters)", said(file))
        assert counted and float(counted[1]) == round(weights / 1e6, len(counted[1].partition(".")[2]))


def test_a_search_has_what_its_file_says() -> None:
    search = read_search(["hparams_search=default"])
    assert search
    values = yaml.safe_load(said("hparams_search/default"))
    assert {key: getattr(search, key) for key in values} == values


def test_the_default_recipe_is_the_one_of_the_results() -> None:
    values = {key: KEYS[key].usual if value == "auto" else value for key, value in leaves(to_dict(compose([])))}
    values = {key: value for key, value in values.items() if isinstance(value, int | float | list)}
    assert {key: value for key, value in values.items() if not isinstance(value, bool)} == {
        "seed": 0, "allow": [], "workers": 1,
        "model.layers": 4, "model.heads": 2, "model.dim": 128, "model.context": 256, "model.dropout": 0.0,
        "model.conv_taps": 3,
        "data.split": [0.9, 0.05, 0.05], "data.batch": 8,
        "optim.lr": 0.006, "optim.muon_lr": 0.01, "optim.muon_beta2": 0.95, "optim.muon_every": 2, "optim.min_lr": 0.0,
        "optim.warmup": 50, "optim.cooldown": 0.5, "optim.weight_decay": 0.1, "optim.betas": [0.9, 0.99],
        "optim.clip": 1.0,
        "trainer.max_steps": 1500, "trainer.timeout": 600.0, "trainer.val_check_interval": 300,
        "trainer.checkpoint_minutes": 5.0, "trainer.log_every_n_steps": 10,
        "watch.attention_heads": [],
    }  # fmt: skip


@pytest.mark.slow
def test_wandb_gets_a_run(train: Call) -> None:
    needs("wandb", extra="wandb")
    ended = train("logger=wandb", "logger.wandb.offline=true", "trainer.max_steps=2", "name=a")
    assert ended.status == 0 and summary("a")["steps"] == 2 and list(Path().rglob("run-*.wandb")), ended
    importlib.import_module("wandb").finish()  # a process has one run of wandb at a time


@pytest.mark.slow
def test_a_logger_that_cannot_start_leaves_nothing(workplace: Path) -> None:
    needs("wandb", extra="wandb")  # which remembers an earlier run of its process
    none = {"WANDB_MODE": "online", "WANDB_CONFIG_DIR": str(workplace / "none"), "NETRC": str(workplace / "netrc")}
    environment = {key: value for key, value in os.environ.items() if key != "WANDB_API_KEY"} | none
    small = "data.path=book.txt logger=wandb trainer.max_steps=2 name=a model.layers=1 model.context=32".split()
    ended = subprocess.run(
        [sys.executable, str(ROOT / "train.py"), *small], capture_output=True, text=True, env=environment
    )
    assert ended.returncode == 2, ended
    assert ended.stderr.splitlines()[-1].startswith("train.py: logger: WandbLogger cannot start: No API key")
    assert not Path("runs").exists() or not list(Path("runs").iterdir())


CHAIN = {  # each preset inherits from the next one, and replaces a value of it
    "a": "defaults:\n  - b\noptim:\n  cooldown: 0.25\n",
    "b": "defaults:\n  - c\n  - override /logger: csv\noptim:\n  warmup: 3\n  clip: 0.5\n",
    "c": "seed: 7\noptim:\n  lr: 0.01\n  clip: 2.0\ndata:\n  split: [0.8, 0.1, 0.1]\n",
}


@pytest.fixture
def chain(workplace: Path, request: pytest.FixtureRequest) -> str:
    """A folder with the presets of `CHAIN`, and a model that inherits from one of ours."""
    request.addfinalizer(FOLDERS.clear)
    for group in ("experiment", "model"):
        (workplace / "own" / group).mkdir(parents=True)
    for name, text in CHAIN.items():
        (workplace / f"own/experiment/{name}.yaml").write_text(f"# @package _global_\n{text}")
    (workplace / "own/model/mine.yaml").write_text("defaults:\n  - nanogpt\ncontext: 48\n")
    return "--config-dir=own"


def inherited(values: dict[str, Any]) -> list[Any]:
    """What the values of `CHAIN` have become."""
    optim = [values["optim"][key] for key in ("cooldown", "warmup", "clip", "lr")]
    return [values["seed"], values["data"]["split"], *optim, list(values["logger"])]


FOUND = [7, [0.8, 0.1, 0.1], 0.25, 3, 0.5, 0.01, ["csv"]]


def test_a_preset_inherits_from_one_that_inherits(chain: str, train: Call) -> None:
    def stored(run: str) -> dict[str, Any]:
        return yaml.safe_load(Path("runs", run, "config.yaml").read_text())

    shown = yaml.safe_load(train(chain, "experiment=a", "model=mine", "--cfg", "job", defaults=False).out)
    assert inherited(shown) == FOUND
    assert (shown["model"]["context"], shown["model"]["activation"], shown["model"]["tied"]) == (48, "gelu", True)
    assert inherited(to_dict(compose(["experiment=a"]))) == FOUND
    assert inherited(to_dict(compose(["experiment=a", "seed=8"]))) == [8, *FOUND[1:]], "the command line counts more"
    ended = train(chain, "experiment=a", "trainer.max_steps=2", "name=a")
    assert ended.status == 0 and inherited(stored("a")) == FOUND, ended
    # A run continues with the preset, without it, and without its folder.
    for steps, again in enumerate(([chain, "experiment=a"], [chain], []), start=3):
        if not again:
            FOLDERS.clear()
        ended = train("resume=runs/a", f"trainer.max_steps={steps}", *again, defaults=False)
        assert ended.status == 0 and "bit for bit" not in ended.out, ended
        assert inherited(stored("a")) == FOUND and summary("a")["steps"] == steps
    Path("own/experiment/c.yaml").write_text(f"# @package _global_\n{CHAIN['c'].replace('seed: 7', 'seed: 8')}")
    composing._cached.cache_clear()  # as a new process begins
    ended = train("resume=runs/a", "trainer.max_steps=9", chain, "experiment=a", defaults=False)
    one_line(ended, 2, "resume: cannot change seed=8 (the run has 7)")
    Path("own/experiment/c.yaml").write_text("# @package _global_\nsed: 8\n")
    composing._cached.cache_clear()
    one_line(train(chain, "experiment=a", "name=c"), 2, "In 'experiment/c': sed: no such key; nearest: seed")
    Path("own/experiment/c.yaml").unlink()
    composing._cached.cache_clear()
    one_line(train(chain, "experiment=a", "name=c"), 2, "experiment/c")
    Path("own/model/mine.yaml").write_text("layers: [")
    one_line(train(chain, "model=mine", "--cfg", "job", defaults=False), 2, "while parsing", "mine.yaml")


@pytest.mark.slow
def test_the_trials_of_a_sweep_and_a_search_inherit(chain: str) -> None:
    ended = run("-m", chain, "experiment=a", "optim.warmup=4,5", "trainer.max_steps=2", "name=s")
    assert ended.status == 0, ended
    for warmup in (4, 5):
        stored = yaml.safe_load(Path(f"runs/s/optim.warmup={warmup}/config.yaml").read_text())
        assert inherited(stored) == [*FOUND[:3], warmup, *FOUND[4:]]
    needs("optuna", extra="search")
    fixed = ["optim.lr=0.01", "optim.muon_lr=0.01", "optim.cooldown=0.25", "model.dropout=range(0.1,0.3,0.1)"]
    search = ["hparams_search=default", "hparams_search.trials=1", *fixed, "trainer.max_steps=2", "name=found"]
    ended = run(chain, "experiment=a", *search)
    assert ended.status == 0, ended
    stored = yaml.safe_load(Path("runs/found/trial-001/config.yaml").read_text())
    assert inherited(stored) == FOUND and stored["model"]["dropout"] in (0.1, 0.2)


def test_a_thousand_runs_read_the_presets_once(monkeypatch: pytest.MonkeyPatch) -> None:
    composing._cached.cache_clear()
    composed_by_hydra = Mock(side_effect=hydra.compose)
    monkeypatch.setattr(hydra, "compose", composed_by_hydra)
    configs = composed("-m", "seed=range(0,10)", "optim.warmup=range(1,11)", "data.batch=range(1,11)")
    assert len({(each.seed, each.optim.warmup, each.data.batch) for each in configs}) == 1000
    assert composed_by_hydra.call_count == 1
