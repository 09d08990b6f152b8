import shlex

import pytest

from conf import compose as composing
from conf.keys import LAUNCH
from conf.overrides import read_command
from conf.schema import TrainerConfig, by_key
from gpt.config import ModelConfig
from gpt.model import GPT
from gpt.optim import make_optimizer
from reports.card import repeating
from training.choosing.choose import with_constants


def composed(*typed):
    """What a command line asks for: a configuration, or one for each trial."""
    return [composing.compose(settings) for settings in read_command(list(typed)).runs()]


def compose(typed):
    (config,) = composed(*typed)
    return config


def test_the_default_recipe_is_that_of_docs_model_md():
    """The values of its model are in `test_another_model_or_other_settings_are_another_format`."""
    config = with_constants(compose([]), precision="32-true", threads=1)
    assert config.model == ModelConfig()
    assert (config.data.batch, TrainerConfig.max_steps, config.seed) == (8, 1500, 0)
    assert vars(config.optim) == {
        "name": "muon", "lr": 0.006, "muon_lr": 0.01, "muon_beta2": 0.95, "muon_every": 2, "min_lr": 0.0, "warmup": 50,
        "schedule": "trapezoid", "cooldown": 0.5, "weight_decay": 0.1, "betas": [0.9, 0.99], "clip": 1.0,
    }  # fmt: skip
    groups = make_optimizer(GPT(config.model, 9), config.optim).param_groups
    assert {group["eps"] for group in groups} == {1e-8}
    assert [group["weight_decay"] for group in groups] == [0.1, 0.1, 0.1, 0.0]


COMMANDS = [
    "model.heads=8 optim.lr=3e-5 optim.betas=[0.8,0.95] compile=true trainer.precision=32-true",
    "experiment=nanogpt_cpu data=shakespeare seed=3",
    '"data.path=it\'s my [book], v=2 (1).txt" data.encoding=cp1252 data.split=[0.9,0.1,0.0]',
    "data.path=[a.txt,b/*.txt] data.micro_batch=2 trainer.deterministic=warn trainer.devices=[0,1]",
    "callbacks=[early_stopping,ema] callbacks.ema.share=0.9",
    "logger=none trainer.devices=2 trainer.profiler=pytorch",
    r"""logger=[csv,wandb] logger.wandb.offline=true "logger.wandb.project='a, b: it\'s \\\\ [c]'" """,
    "debug=overfit",
]


@pytest.mark.slow
@pytest.mark.parametrize("typed", COMMANDS)
def test_the_command_makes_the_same_configuration(typed):
    config = compose(shlex.split(typed))
    ours = by_key(config)
    theirs = by_key(compose(repeating(config)))
    assert {key for key in ours if ours[key] != theirs[key]} <= set(LAUNCH)
