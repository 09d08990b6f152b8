import importlib
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from conf import compose as composing
from conf.keys import CONF, FOLDERS
from conf.schema import to_dict
from gpt.config import ModelConfig
from gpt.model import GPT
from tests.conf.test_defaults import compose
from tests.conftest import Call, needs, one_line, summary
from tests.faults.processes import run

FILES = sorted(file.relative_to(CONF).with_suffix("").as_posix() for file in CONF.rglob("*.yaml"))


@pytest.mark.slow
@pytest.mark.parametrize(
    "file", [file for file in FILES if "/" in file and "hparams_search" not in file]
)
def test_every_file_can_be_chosen_and_says_how_large_its_model_is(file: str) -> None:
    group, _, choice = file.rpartition("/")
    config = compose([f"{group}=[{choice}]" if group == "callbacks" else f"{group}={choice}"])
    if re.match("model/(?!auto)|experiment/(enwik8|stdlib_gpu)", file):
        chosen_later = {
            key: getattr(ModelConfig, key)
            for key, value in vars(config.model).items()
            if value == "auto"
        }
        with torch.device("meta"):
            model = GPT(
                replace(config.model, **chosen_later),
                256 if config.data.tokenizer == "byte" else 96,
            )
        counted = re.search(
            r"([\d.]+) million (weights|parameters)", (CONF / f"{file}.yaml").read_text("utf-8")
        )
        assert counted
        assert float(counted[1]) == round(
            model.num_parameters() / 1e6, len(counted[1].partition(".")[2])
        )


@pytest.mark.slow
def test_wandb_gets_a_run(train: Call) -> None:
    needs("wandb", extra="wandb")
    ended = train("logger=wandb", "logger.wandb.offline=true", "trainer.max_steps=2", "name=a")
    assert (
        ended.status == 0 and summary("a")["steps"] == 2 and list(Path().rglob("run-*.wandb"))
    ), ended
    importlib.import_module("wandb").finish()  # a process has one run of wandb at a time


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


def stored(run: str) -> dict[str, Any]:
    return yaml.safe_load(Path("runs", run, "config.yaml").read_text())


def test_a_preset_inherits_from_one_that_inherits(chain: str, train: Call) -> None:
    shown = yaml.safe_load(
        train(chain, "experiment=a", "model=mine", "--cfg", "job", defaults=False).out
    )
    assert inherited(shown) == FOUND
    assert (shown["model"]["context"], shown["model"]["activation"], shown["model"]["tied"]) == (
        48,
        "gelu",
        True,
    )
    assert inherited(to_dict(compose(["experiment=a", "seed=8"]))) == [8, *FOUND[1:]], (
        "the command line counts more"
    )
    ended = train(chain, "experiment=a", "trainer.max_steps=2", "name=a")
    assert ended.status == 0 and inherited(stored("a")) == FOUND, ended
    FOLDERS.clear()
    ended = train("resume=runs/a", "trainer.max_steps=3", defaults=False)
    assert ended.status == 0 and "bit for bit" not in ended.out, "it continues without the folder"
    assert inherited(stored("a")) == FOUND and summary("a")["steps"] == 3
    for content, said in (
        ("sed: 8\n", "In 'experiment/c': sed: no such key"),
        ("layers: [", "while parsing"),
    ):
        Path("own/experiment/c.yaml").write_text(f"# @package _global_\n{content}")
        composing._composed.clear()  # as a new process begins
        one_line(train(chain, "experiment=a", defaults=False), 2, said)


@pytest.mark.slow
def test_the_trials_of_a_sweep_inherit(chain: str) -> None:
    ended = run("-m", chain, "experiment=a", "optim.warmup=4,5", "trainer.max_steps=2", "name=s")
    assert ended.status == 0, ended
    for warmup in (4, 5):
        assert inherited(stored(f"s/optim.warmup={warmup}")) == [*FOUND[:3], warmup, *FOUND[4:]]
