import importlib
import re
from pathlib import Path

import pytest
import torch

from conf.compose import read_config
from conf.keys import CONF, FOLDERS
from conf.schema import by_key
from gpt.model import GPT
from tests.conf.test_defaults import compose
from tests.conftest import needs, one_line, summary
from tests.folders import make
from training.choosing.choose import with_constants

FILES = sorted(file.relative_to(CONF).with_suffix("").as_posix() for file in CONF.glob("*/*.yaml"))
CHOSEN = [file for file in FILES if "hparams_search" not in file]
SIZED = "model/(?!auto)|experiment/(enwik8|stdlib_gpu)"


@pytest.mark.slow
@pytest.mark.parametrize("file", CHOSEN)
def test_every_file_can_be_chosen_and_says_how_large_its_model_is(file):
    config = with_constants(compose([file.replace("/", "=")]), precision="32-true", threads=1)
    if not re.match(SIZED, file):
        return
    size = 256 if config.data.tokenizer == "byte" else 96
    with torch.device("meta"):
        model = GPT(config.model, size)
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
    "c": "seed: 7\noptim:\n  lr: 0.01\n  clip: 2.0\n",
}


@pytest.fixture
def chain(workplace, request):
    """A folder with the presets of `CHAIN`."""
    request.addfinalizer(FOLDERS.clear)
    files = {
        f"experiment/{name}.yaml": f"# @package _global_\n{text}" for name, text in CHAIN.items()
    }
    make(workplace / "own", files)
    return "--config-dir=own"


def test_a_run_continues_without_the_folder_of_its_preset(chain, train):
    ended = train(chain, "experiment=a", "trainer.max_steps=2", "name=a")
    FOLDERS.clear()
    ended = train("resume=runs/a", "trainer.max_steps=3", defaults=False)
    assert ended.status == 0 and "bit for bit" not in ended.out, ended
    values = by_key(read_config(Path("runs/a")))
    inherited = {"seed": 7, "optim.lr": 0.01, "logger": {"csv": {}}}
    inherited |= {"optim.cooldown": 0.25, "optim.warmup": 3, "optim.clip": 0.5}
    assert values | inherited == values and summary("a")["steps"] == 3


GLOBAL = "# @package _global_\n"
WRONG = [  # a preset, its content, and what is said of it
    ("experiment=c", f"{GLOBAL}sed: 8\n", "In 'experiment/c': sed: no such key"),
    ("experiment=c", f"{GLOBAL}layers: [", "while parsing"),
    ("experiment=c", f"{GLOBAL}defaults:\n  - a\n", "a preset inherits from itself"),
    ("experiment=c", "seed: 8\n", "In 'experiment/c': its first line must be # @package _global_"),
    ("model=tiny", "dim: 8\n", "tiny.yaml: conf/ has a preset of this"),
    ("hparams_search=mine", "trial: 3\n", "trial: no such key"),
    ("hparams_search=mine", "space: {optim.lrr: 1}\n", "nearest: optim.lr"),
]


@pytest.mark.parametrize(("chosen", "content", "said"), WRONG)
def test_a_wrong_preset_is_one_line(chain, train, chosen, content, said):
    file = chosen.replace("=", "/")
    if "hparams_search" in file:
        needs("optuna", extra="search")
    make(Path("own"), {f"{file}.yaml": content})
    one_line(train(chain, chosen, defaults=False), 2, said)


def test_a_callback_of_one_s_own_goes_with_its_folder(chain, train):
    ema = (CONF / "callbacks/ema.yaml").read_text()
    make(Path("own"), {"callbacks/mine.yaml": ema.replace("ema:", "mine:")})
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
