import inspect
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from lightning import Trainer

from base.errors import InputError
from conf.compose import read_config
from conf.help import usage
from conf.keys import KEYS, groups
from conf.schema import MORE, Config, TrainerConfig, to_dict, to_yaml
from tests.conf.test_defaults import composed
from tests.conftest import one_line, refusal


def refused(*typed):
    return refusal(InputError, composed, *typed)


def test_a_sweep_is_every_combination_and_the_last_of_what_is_typed_twice_counts():
    typed = "seed=3 seed=5,1 optim.warmup=6 optim.warmup=7".split()
    configs = composed("-m", "model.heads=2,4", *typed, "name=a,b")
    runs = [(each.model.heads, each.seed, each.optim.warmup, each.name) for each in configs]
    assert runs == [(2, 5, 7, "a,b"), (2, 1, 7, "a,b"), (4, 5, 7, "a,b"), (4, 1, 7, "a,b")]


@pytest.mark.parametrize(
    ("typed", "values"),
    [
        ("x.txt,it's y=1.txt,${seed}", ["x.txt", "it's y=1.txt", "${seed}"]),
        ("[x.txt,y.txt],(1, 2).txt", ["[x.txt,y.txt]", "(1, 2).txt"]),
        ('"x,y.txt"', ["x,y.txt"]),
        ("a,b.txt", ["a,b.txt"]),
    ],
)
def test_a_comma_separates_names_only_with_m(workplace, typed, values):
    Path("a,b.txt").touch()
    given = f"data.path={typed}"
    assert [each.data.path for each in composed("-m", given, "seed=1")] == values
    assert [each.data.path for each in composed(given)] == [typed]


def test_whole_numbers_become_floats_where_fractions_are_allowed():
    (config,) = composed("optim.clip=1", "minutes=5", "data.split=[0.5,0.5,0]")
    floats = [config.optim.clip, config.minutes, config.data.split]
    assert repr(floats) == "[1.0, 5.0, [0.5, 0.5, 0.0]]"


def test_cfg_shows_every_value_as_yaml(train):
    typed = ["model.layers=4", "model.heads=${model.layers}"]
    ended = train(*typed, "--cfg", "job", defaults=False)
    assert ended.status == 0 and ended.err == "", ended
    values = yaml.safe_load(ended.out)
    assert values["model"]["heads"] == 4
    assert list(values) == list(to_dict(Config()))


def test_cfg_shows_what_a_resumed_run_trains(trained, train):
    files = sorted(Path("runs").rglob("*"))
    ended = train("resume=first", "trainer.max_steps=40", "--cfg", "job", defaults=False)
    stored = yaml.safe_load(Path("runs/first/config.yaml").read_text())
    stored["trainer"]["max_steps"] = 40
    shown = yaml.safe_load(ended.out) | {"resume": None}
    shown["trainer"]["num_nodes"] = stored["trainer"]["num_nodes"]  # that of each launch
    assert shown == stored and sorted(Path("runs").rglob("*")) == files


def test_a_variable_of_the_environment_is_a_value(monkeypatch):
    monkeypatch.setenv("CHARGPT_SEED", "7")
    (config,) = composed("seed=${oc.env:CHARGPT_SEED}")
    assert config.seed == 7


def test_cfg_shows_the_overrides_of_each_trial(train):
    typed = ["seed=1,2", "data.path=a b.txt", "init_from=x"]
    ended = train("-m", *typed, "-c", "job", defaults=False)
    lines = [f"seed={seed} 'data.path=a b.txt' init_from=x" for seed in (1, 2)]
    assert (ended.status, ended.out.splitlines(), ended.err) == (0, lines, "")
    one_line(train("-m", "-c", "job", defaults=False), 2, "-m: needs several values of a key")


TEXTS = [
    "it's (1).txt", "a,b=c.txt", "[x].txt", "${oc.env:HOME}", '"q"', "~/a b",
    "123", "3e-3", "1_0", "inf", "012", "yes",
]  # fmt: skip


@pytest.mark.parametrize("value", TEXTS)
def test_text_is_taken_as_it_is(tmp_path, value):
    (config,) = composed(f"data.path={value}", "optim.lr=1e-5", "data.validation=null")
    config = replace(config, logger={"wandb": {"project": value}})
    tmp_path.joinpath("config.yaml").write_text(to_yaml(config), "utf-8")
    read = read_config(tmp_path)
    assert (config.data.path, read.logger["wandb"]["project"]) == (value, value)
    assert replace(read, logger=config.logger) == config


def test_a_text_for_validation_may_go_with_a_preset_that_has_a_split():
    (config,) = composed("data=shakespeare", "data.validation=mine.txt")
    assert config.data.validation == "mine.txt"


def test_a_plus_sign_is_for_other_arguments_of_lightning_s_trainer_and_otherwise_means_nothing():
    typed = ["+trainer.min_steps=3", "trainer.more.sync_batchnorm=true", "++seed=7"]
    (config,) = composed(*typed)
    assert config.trainer.more == {"min_steps": 3, "sync_batchnorm": True}
    assert config.seed == 7


def test_every_argument_of_lightning_s_trainer_is_ours_or_passed_on_or_refused_with_ours():
    arguments = set(inspect.signature(Trainer).parameters)
    ours = {key.removeprefix("trainer.") for key in KEYS} & arguments | {"callbacks", "logger"}
    rest = arguments - ours
    passed_on = set(MORE)
    assert passed_on < rest
    for name in rest - passed_on:
        message = refused(f"+trainer.{name}=1")
        near = message.partition("=1: is not accepted; use ")[2]
        assert near in (*KEYS, *groups()) or near.removeprefix("trainer.more.") in MORE, message
        with pytest.raises(ValueError, match=f"trainer.more.{name}: must be"):
            TrainerConfig(more={name: 1})  # what a stranger's config.yaml may say


def test_the_help_has_every_key_and_every_group_of_presets():
    text = usage(everything=True)
    for key, about in KEYS.items():
        assert key in groups() or (f"  {key}=" in text and about.metadata["help"] in text), key
    text = usage(everything=False)
    for group, choices in groups().items():
        assert f"{group}=" in text and " ".join(choices) in text, group


@pytest.mark.parametrize("typed", ["optim.name=lion", "model.foo=1", "data=gutenberg", "-x"])
def test_no_name_is_near_to_what_is_unlike(typed):
    assert "nearest" not in refused(typed)


NEAREST = {
    "data_path=a": "data.path", "optim.name=AdamW": "adamw", "LR=1": "optim.lr",
    "data=Shakespear": "shakespeare", "callbacks=[EMA]": "ema", "++model.head=8": "model.heads",
    "trainer.accelerator=cdua": "cuda",
    # what nanoGPT, transformers and Lightning call a key
    "n_layer=1": "model.layers", "model.block_size=1": "model.context", "--batch_size=1": "data.batch",
    "--learning-rate=1": "optim.lr", "out_dir=a": "name", "trainer.accumulate_grad_batches=2": "data.micro_batch",
}  # fmt: skip


@pytest.mark.parametrize("typed", NEAREST)
def test_the_nearest_name_is_said_also_for_a_name_of_another_project(typed):
    assert f"; nearest: {NEAREST[typed]}" in refused(typed)
