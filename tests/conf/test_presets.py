import importlib
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import yaml

from conf.keys import CONF, FOLDERS
from gpt.config import ModelConfig
from gpt.model import GPT
from tests.conf.test_defaults import compose
from tests.conftest import needs, one_line, summary

FILES = sorted(file.relative_to(CONF).with_suffix("").as_posix() for file in CONF.rglob("*.yaml"))


GROUPED = [file for file in FILES if "/" in file and "hparams_search" not in file]
SIZED = [
    file for file in GROUPED if re.match("model/(?!auto)|experiment/(enwik8|stdlib_gpu)", file)
]


def choose(file):
    group, _, choice = file.rpartition("/")
    return compose([f"{group}=[{choice}]" if group == "callbacks" else f"{group}={choice}"])


@pytest.mark.slow
@pytest.mark.parametrize("file", GROUPED)
def test_every_file_can_be_chosen(file):
    choose(file)


@pytest.mark.slow
@pytest.mark.parametrize("file", SIZED)
def test_a_file_says_how_large_its_model_is(file):
    config = choose(file)
    autos = [key for key, value in vars(config.model).items() if value == "auto"]
    chosen_later = {key: getattr(ModelConfig, key) for key in autos}
    size = 256 if config.data.tokenizer == "byte" else 96
    with torch.device("meta"):
        model = GPT(replace(config.model, **chosen_later), size)
    text = (CONF / f"{file}.yaml").read_text("utf-8")
    counted = re.search(r"([\d.]+) million (weights|parameters)", text)
    assert counted
    digits = len(counted[1].partition(".")[2])
    assert float(counted[1]) == round(model.num_parameters() / 1e6, digits)


@pytest.mark.slow
def test_wandb_gets_a_run(train):
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
def chain(workplace, request):
    """A folder with the presets of `CHAIN`, and a model that inherits from one of ours."""
    request.addfinalizer(FOLDERS.clear)
    for group in ("experiment", "model"):
        (workplace / "own" / group).mkdir(parents=True)
    for name, text in CHAIN.items():
        (workplace / f"own/experiment/{name}.yaml").write_text(f"# @package _global_\n{text}")
    (workplace / "own/model/mine.yaml").write_text("defaults:\n  - nanogpt\ncontext: 48\n")
    return "--config-dir=own"


def inherited(values):
    """What the values of `CHAIN` have become."""
    optim = [values["optim"][key] for key in ("cooldown", "warmup", "clip", "lr")]
    return [values["seed"], values["data"]["split"], *optim, list(values["logger"])]


FOUND = [7, [0.8, 0.1, 0.1], 0.25, 3, 0.5, 0.01, ["csv"]]


def stored(run):
    return yaml.safe_load(Path("runs", run, "config.yaml").read_text())


def test_a_run_continues_without_the_folder_of_its_preset(chain, train):
    ended = train(chain, "experiment=a", "trainer.max_steps=2", "name=a")
    assert ended.status == 0 and inherited(stored("a")) == FOUND, ended
    FOLDERS.clear()
    ended = train("resume=runs/a", "trainer.max_steps=3", defaults=False)
    assert ended.status == 0 and "bit for bit" not in ended.out, ended
    assert inherited(stored("a")) == FOUND and summary("a")["steps"] == 3


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("sed: 8\n", "In 'experiment/c': sed: no such key"),
        ("layers: [", "while parsing"),
        ("defaults:\n  - a\n", "a preset inherits from itself"),
    ],
)
def test_a_wrong_preset_is_one_line(chain, train, content, said):
    Path("own/experiment/c.yaml").write_text(f"# @package _global_\n{content}")
    one_line(train(chain, "experiment=a", defaults=False), 2, said)


def test_a_preset_of_all_groups_says_so_in_its_first_line(chain, train):
    Path("own/experiment/c.yaml").write_text("seed: 8\n")
    said = "In 'experiment/c': its first line must be # @package _global_"
    one_line(train(chain, "experiment=c", defaults=False), 2, said)


def test_a_callback_of_one_s_own_goes_with_its_folder(chain, train, export):
    Path("own/callbacks").mkdir()
    ema = (CONF / "callbacks/ema.yaml").read_text()
    Path("own/callbacks/mine.yaml").write_text(ema.replace("ema:", "mine:"))
    ended = train(chain, "callbacks=mine", "trainer.max_steps=2", "name=a")
    assert ended.status == 0, ended
    folder = f"--config-dir={Path('own').absolute()}"
    report = Path("runs/a/report.html").read_text()
    assert report.count(folder) == 2  # in both commands
    ended = train(chain, "resume=a", defaults=False)  # is finished
    assert f"train.py {folder} resume=runs/a trainer.max_steps=4 continues it" in ended.out
    FOLDERS.clear()
    said = "callbacks.mine: no such preset; add --config-dir=FOLDER, which has callbacks/mine.yaml"
    one_line(train("resume=a", "trainer.max_steps=4", defaults=False), 2, said)
    assert export("a", "--to", "card", "card.md").status == 0
    assert "'callbacks=[mine]' callbacks.mine.share=0.05" in Path("card.md").read_text()


def test_a_preset_may_not_have_the_name_of_one_of_ours(chain, train):
    Path("own/model/mine.yaml").rename("own/model/tiny.yaml")
    one_line(
        train(chain, "model=tiny", defaults=False), 2, "tiny.yaml: conf/ has a preset of this"
    )


@pytest.mark.parametrize(
    ("content", "said"),
    [("trial: 3\n", "trial: no such key"), ("space: {optim.lrr: 1}\n", "nearest: optim.lr")],
)
def test_a_wrong_key_in_a_search_of_one_s_own_is_one_line(chain, train, content, said):
    needs("optuna", extra="search")
    Path("own/hparams_search").mkdir()
    Path("own/hparams_search/mine.yaml").write_text(content)
    one_line(train(chain, "hparams_search=mine"), 2, said)
