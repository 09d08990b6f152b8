from typing import Any

import pytest

from conf import compose as composing
from conf.keys import LAUNCH
from conf.overrides import read_command
from conf.schema import Config, by_key
from reports.card import repeating


def composed(*typed: str) -> list[Config]:
    """What a command line asks for: a configuration, or one for each trial."""
    return [composing.compose(settings) for settings in read_command(list(typed)).runs()]


def compose(typed: list[str]) -> Config:
    (config,) = composed(*typed)
    return config


def of_the_run(config: Config) -> dict[str, Any]:
    """What the result depends on, by key."""
    return {key: value for key, value in by_key(config).items() if key not in LAUNCH}


COMMANDS = {
    "model and optimizer": [
        "model.heads=8",
        "optim.lr=3e-5",
        "optim.betas=[0.8,0.95]",
        "compile=true",
        "trainer.precision=32-true",
    ],
    "presets": ["experiment=nanogpt_cpu", "data=shakespeare", "seed=3"],
    "a name to quote": [
        "data.path=it's my [book], v=2 (1).txt",
        "data.encoding=cp1252",
        "data.split=[0.9,0.1,0.0]",
    ],
    "lists": [
        "data.path=[a.txt,b/*.txt]",
        "data.micro_batch=2",
        "trainer.deterministic=warn",
        "trainer.devices=[0,1]",
    ],
    "callbacks": ["callbacks=[early_stopping,ema]", "callbacks.ema.share=0.9"],
    "no logger": ["logger=none", "trainer.devices=2", "trainer.profiler=pytorch"],
    "loggers": [
        "logger=[csv,wandb]",
        "logger.wandb.offline=true",
        "logger.wandb.project='a, b: it\\'s \\\\ [c]'",
    ],
    "debugging": ["debug=overfit"],
}


@pytest.mark.slow
@pytest.mark.parametrize("typed", COMMANDS.values(), ids=COMMANDS)
def test_the_command_makes_the_same_configuration(typed: list[str]) -> None:
    config = compose(typed)
    assert of_the_run(compose(repeating(config))) == of_the_run(config)
