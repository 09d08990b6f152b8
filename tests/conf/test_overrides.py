import inspect
from pathlib import Path

import pytest
import yaml
from lightning import Trainer

from base.errors import InputError
from conf.compose import read_config
from conf.help import usage
from conf.keys import KEYS, groups
from conf.overrides import read_command
from conf.schema import MORE, Config, TrainerConfig, by_key, to_dict, to_yaml
from tests.conf.test_defaults import composed
from tests.conftest import one_line, refusal


def refused(*typed):
    return refusal(InputError, composed, *typed)


def stored(folder, config, *change):
    """What a run reads of its config.yaml."""
    folder.joinpath("config.yaml").write_text(
        to_yaml(config).replace(*change) if change else to_yaml(config), "utf-8"
    )
    return read_config(folder)


def test_a_sweep_is_every_combination():
    configs = composed("-m", "model.heads=2,4", "seed=5,1,2", "optim.warmup=7", "name=a,b")
    heads_and_seeds = [(each.model.heads, each.seed) for each in configs]
    assert heads_and_seeds == [(2, 5), (2, 1), (2, 2), (4, 5), (4, 1), (4, 2)]
    assert {each.optim.warmup for each in configs} == {7}
    assert {each.name for each in configs} == {"a,b"}


@pytest.mark.parametrize(
    ("typed", "taken"),
    [
        ("optim.lr=2e-3 optim.lr=3e-3", ["optim.lr=3e-3"]),
        ("optim.lr=1e-3,2e-3 optim.lr=3e-3", ["optim.lr=3e-3"]),
        ("data.path=z data.path=x,y", ["data.path=x", "data.path=y"]),
        ("data.path=x,y data.path=z", ["data.path=z"]),
    ],
)
def test_of_a_key_that_is_typed_twice_the_last_counts(typed, taken):
    runs = read_command(["-m", *typed.split()]).runs()
    assert [each for (each,) in runs] == taken


@pytest.mark.parametrize(
    ("key", "typed", "values"),
    [
        ("data.path", "x.txt,it's y=1.txt,${seed}", ["x.txt", "it's y=1.txt", "${seed}"]),
        ("init_from", "h,s", ["h", "s"]),
        ("data.documents", "line,null,<|end|>", ["line", None, "<|end|>"]),
        ("data.validation", "[x.txt,y.txt],(1, 2).txt", ["[x.txt,y.txt]", "(1, 2).txt"]),
        ("data.path", '"x,y.txt"', ["x,y.txt"]),
        ("data.path", "a,b.txt", ["a,b.txt"]),
    ],
)
def test_a_comma_separates_names_only_with_m(workplace, key, typed, values):
    Path("a,b.txt").touch()
    given = [f"{key}={typed}", *(["data.path=x"] if key == "data.validation" else [])]
    assert [by_key(each)[key] for each in composed("-m", *given, "seed=1")] == values
    assert [by_key(each)[key] for each in composed(*given, "seed=1")] == [typed]


def test_whole_numbers_become_floats_where_fractions_are_allowed():
    (config,) = composed("optim.clip=1", "minutes=5", "data.split=[0.5,0.5,0]")
    floats = [config.optim.clip, config.minutes, *config.data.split]
    assert floats == [1, 5, 0.5, 0.5, 0] and {type(value) for value in floats} == {float}


def test_cfg_shows_every_value_as_yaml(train):
    typed = ["model.layers=4", "model.heads=${model.layers}", "data.path=a ${seed},b.txt"]
    ended = train(*typed, "--cfg", "job", defaults=False)
    assert ended.status == 0 and ended.err == "", ended
    values = yaml.safe_load(ended.out)
    assert values["model"]["heads"] == 4
    assert values["data"]["path"] == "a ${seed},b.txt"
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
    (config,) = composed("seed=${oc.env:CHARGPT_SEED}", "data.path=${oc.env:CHARGPT_SEED}")
    assert (config.seed, config.data.path) == (7, "${oc.env:CHARGPT_SEED}")


def test_a_text_for_validation_may_go_with_a_preset_that_has_a_split():
    (config,) = composed("data=shakespeare", "data.validation=mine.txt")
    assert config.data.validation == "mine.txt"


def test_cfg_refuses_what_a_run_would_refuse(train):
    one_line(train("seed=-1", "--cfg", "job"), 2, "seed=-1: must ")
    one_line(train("-m", "--cfg", "job", defaults=False), 2, "-m: needs several values of a key")


def test_cfg_shows_the_overrides_of_each_trial(train):
    typed = ["seed=1,2", "data.path=a b.txt", "init_from=x"]
    ended = train("-m", *typed, "-c", "job", defaults=False)
    lines = [f"seed={seed} 'data.path=a b.txt' init_from=x" for seed in (1, 2)]
    assert (ended.status, ended.out.splitlines(), ended.err) == (0, lines, "")
    assert [path.name for path in Path().iterdir()] == ["book.txt"]  # Hydra writes no file


@pytest.mark.parametrize(
    "value", ["it's (1).txt", "a,b=c.txt", "[x].txt", "${seed}.txt", '"q"', "~/a b"]
)
def test_text_is_taken_as_it_is(tmp_path, value):
    (config,) = composed(f"data.path={value}", "optim.lr=1e-5")
    assert config.data.path == value and stored(tmp_path, config) == config


def test_null_is_no_text_and_a_number_is_text():
    (config,) = composed("data.path=null", "name=123")
    assert (config.data.path, config.name) == (None, "123")


def test_compile_may_be_a_truth_value_in_config_yaml_but_not_null(tmp_path):
    assert stored(tmp_path, Config(compile=True), "'true'", "true").compile == "true"
    with pytest.raises(ValueError, match="^compile=null: .*auto, true, false"):
        Config(compile=None)


def test_a_plus_sign_is_for_other_arguments_of_lightning_s_trainer():
    typed = ["+trainer.min_steps=3", "trainer.more.sync_batchnorm=true"]
    (config,) = composed(*typed)
    assert config.trainer.more == {"min_steps": 3, "sync_batchnorm": True}


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


def test_the_help_has_every_key():
    text = usage(everything=True)
    helps = {key: each.metadata["help"] for key, each in KEYS.items() if "help" in each.metadata}
    assert [
        key for key, said in helps.items() if f"  {key}=" not in text or said not in text
    ] == []


def test_the_short_help_has_every_group_of_presets():
    text = usage(everything=False)
    assert [group for group, choices in groups().items() if " ".join(choices) not in text] == []
    assert [group for group in groups() if f"{group}=" not in text] == []
    assert text.count("\n") < 30


@pytest.mark.parametrize(
    "typed", ["data.tokenizer=bpe", "optim.name=lion", "model.foo=1", "data=gutenberg", "-x"]
)
def test_no_name_is_near_to_what_is_unlike(typed):
    assert "nearest" not in refused(typed)


NEAREST = {
    "data_path=a": "data.path", "optim.name=AdamW": "adamw", "LR=1": "optim.lr",
    "data=Shakespear": "shakespeare", "callbacks=[EMA]": "ema", "++model.head=8": "model.heads",
    "trainer.accelerator=cdua": "cuda", "wandb_log=true": "logger", "lr_decay_iters=9": "trainer.max_steps",
    # what nanoGPT, transformers and Lightning call a key
    "n_layer=1": "model.layers", "n_head=1": "model.heads", "n_embd=1": "model.dim", "hidden_size=1": "model.dim",
    "d_model=1": "model.dim", "model.block_size=1": "model.context", "--batch_size=1": "data.batch",
    "learning_rate=1": "optim.lr", "--learning-rate=1": "optim.lr", "max_epochs=1": "trainer.max_steps",
    "gpus=1": "trainer.devices", "out_dir=a": "name", "ckpt_path=a": "resume", "device=cpu": "trainer.accelerator",
    "gradient_accumulation_steps=2": "data.micro_batch", "trainer.accumulate_grad_batches=2": "data.micro_batch",
    "trainer.gradient_clip_val=1": "optim.clip", "max_time=1": "minutes", "time=1": "minutes", "text=a": "data.path",
    "dtype=a": "trainer.precision", "epochs=1": "trainer.max_steps", "max_iters=1": "trainer.max_steps",
    "eval_interval=1": "trainer.val_check_interval",
}  # fmt: skip


@pytest.mark.parametrize("typed", NEAREST)
def test_the_nearest_name_is_said_also_for_a_name_of_another_project(typed):
    assert f"; nearest: {NEAREST[typed]}" in refused(typed)
