import re
from typing import Any

import pytest
import yaml

from base.errors import InputError
from base.options import spell
from conf.compose import combinations, compose, show, typed_keys
from conf.files import groups
from conf.help import usage
from conf.keys import fields
from conf.overrides import read_command, split_literals
from conf.schema import Config, from_dict, from_yaml, to_dict, to_yaml
from gpt.config import OptimConfig
from tests.conftest import Call, refusal


def composed(*typed: str) -> list[Config]:
    command = read_command(list(typed))
    return [run.config for run in compose(combinations(command.overrides), command.literals)]


def refused(*typed: str) -> str:
    return refusal(InputError, composed, *typed)


WRONG = {  # what is named, and the rest of what is said; tests/faults/test_input.py has the values out of range
    "model.head=8": "model.head: .*nearest: model.heads", "trainer.max_step=5": "nearest: trainer.max_steps",
    "+model.head=8": "model.head: .*nearest: model.heads", "++model.head=8": "model.head: .*nearest: model.heads",
    "+model.heads=8": "model.heads.*without \\+", "~model.heads": "(?=.*model.heads).*cannot be removed",
    "data=shakespear": "data=shakespear.*enwik8, shakespeare, stdlib, text8.*nearest: shakespeare",
    "model.steps=3": "nearest: trainer.max_steps", "trainer.timeout=1500000": "above 0 and at most 1000000",
    "lr=0.1": "lr.*nearest: optim.lr", "head=8": "head.*nearest: model.heads", "heads": "key=value.*: model.heads",
    "model.dropout=1.5": "model.dropout=1.5.*at least 0 and below 1", "model.bias=3": "model.bias=3.*true or false",
    "model.layers=4.5": "model.layers=4.5.*a whole number, 1 to 4096", "optim.lr=nan": "optim.lr=nan.*number, above 0",
    "model.positions=rotery": "rotery.*learned, sinusoidal, rotary, alibi, none.*nearest: rotary",
    "model.heads=2,4": "model.heads=2,4.*-m", "trainer.gradient_clip_val=1": "trainer.gradient_clip_val.*optim.clip",
    "trainer.accumulate_grad_batches=2": "data.micro_batch", "trainer.precision=16-mixed": "16-mixed.*bf16-mixed",
    "data=book.txt": "data=book.txt.*data.path=book.txt", "experiment=nanogpt": "nearest: nanogpt_",
    "callbacks=[ema,early_stoping]": "early_stoping.*nearest: early_stopping",
    "callbacks.ema.decay=0.9": "callbacks=ema", "compile=maybe": "compile=maybe.*auto, true, false",
    "model.heads=a b (": "model.heads.*quote",
}  # fmt: skip
RIGHT = [
    "model.heads=8", "model=small", "data.split=[0.8,0.1,0.1]", "trainer.devices=[0,1]", "trainer.profiler=pytorch",
    "optim.lr=1e-3", "optim.lr=1", "callbacks=[ema,early_stopping]", "name=x", "data.micro_batch=null",
    "callbacks.early_stopping.patience=3",
]  # fmt: skip


def test_wrong_overrides_are_named_and_right_ones_pass() -> None:
    for typed, said in WRONG.items():
        assert re.search(said, refused(typed)), (typed, refused(typed))
    for typed in RIGHT:
        composed(*(["callbacks=[ema, early_stopping]"] if typed.startswith("callbacks.") else []), typed)
    composed("minutes=null", "trainer.max_steps=5")
    assert "optim.lr=interval(0.1,1): an interval is for a search" in refused("-m", "optim.lr=interval(0.1,1)")
    assert refused("-m", "model.heads=2,0").startswith("model.heads=0: must be")
    assert "data=shakespear" in refused("-m", "data=stdlib,shakespear")
    assert "-m: 1,000,000 combinations of values" in refused("-m", "seed=range(0,1000)", "model.heads=range(0,1000)")


def test_a_sweep_is_every_combination() -> None:
    configs = composed("-m", "model.heads=2,4", "seed=5,1,2", "optim.warmup=7", "data.path=a,b.txt")
    assert [(each.model.heads, each.seed) for each in configs] == [(2, 5), (2, 1), (2, 2), (4, 5), (4, 1), (4, 2)]
    assert {each.optim.warmup for each in configs} == {7} and {each.data.path for each in configs} == {"a,b.txt"}
    assert combinations(["optim.lr=1,2e-3", "optim.lr=3e-3"]) == [["optim.lr=0.003"]], "the last counts, as in Hydra"


def test_whole_numbers_become_floats_where_fractions_are_allowed() -> None:
    (config,) = composed("optim.lr=1", "minutes=5", "model.dropout=0", "data.split=[0.5,0.5,0]", "experiment=enwik8")
    floats = [config.optim.lr, config.minutes, config.model.dropout, *config.data.split]
    assert floats == [1, 5, 0, 0.5, 0.5, 0] and {type(value) for value in floats} == {float}
    assert refused(f"optim.lr={10**400}").startswith("optim.lr=1000")
    wrong: list[dict[str, Any]] = [{"model": [1]}, {"model": {"head": 8}}, {"models": {}}]
    for values in wrong:
        assert refusal(InputError, from_dict, values).startswith("config: mod")


def test_what_cfg_shows(train: Call) -> None:
    for typed in ("--cfg job", "--cfg=job", "-c job"):
        ended = train("model.heads=${model.layers}", *typed.split(), "data.path=a ${seed},b.txt", defaults=False)
        assert ended.status == 0 and ended.err == "", ended
        values = yaml.safe_load(ended.out)
        assert (values["model"]["heads"], values["data"]["path"]) == ("${model.layers}", "a ${seed},b.txt")
        assert list(values) == list(to_dict(Config()))
    resolved = yaml.safe_load(show(["model.heads=${model.layers}"], {"data.path": "${seed}"}, "job", True))
    assert (resolved["model"]["heads"], resolved["data"]["path"]) == (4, "${seed}")
    for part, keys in (("hydra", ["hydra"]), ("all", [*to_dict(Config()), "hydra"])):
        for resolve in (False, True):
            shown = yaml.safe_load(show(["seed=3"], {"name": "x"}, part, resolve))
            assert list(shown) == keys and shown["hydra"]["overrides"]["task"] == ["seed=3"]
    for typed, said in (
        ("-m --cfg job seed=1,2", "--cfg=job: shows the settings of one run"), ("--cfg", "--cfg : must be"),
        ("-c jobs", "-c jobs: must be.* nearest: job"), ("--resolve", "--resolve: goes with --cfg"),
    ):  # fmt: skip
        assert re.match(said, refused(*typed.split()))


def test_text_is_taken_as_it_is() -> None:
    for value in ("my book (1).txt", "it's.txt", "a,b=c.txt", "bücher.txt", "[x].txt", "${seed}.txt", '"q"', "~/a b"):
        rest, _ = split_literals([f"data.path={value}", "seed=3"])
        assert rest == ["seed=3"]
        (config,) = composed(f"data.path={value}", "seed=3")
        assert from_yaml(to_yaml(config)).data.path == config.data.path == value
    (config,) = composed("data.path=null", "name=123")
    assert (config.data.path, config.name) == (None, "123")
    for value, word in ((True, "true"), (False, "false"), ("true", "true"), ("auto", "auto")):
        assert Config(compile=value).compile == word
    assert from_yaml(to_yaml(Config(compile=True)).replace("'true'", "true")).compile == "true"
    for value in (None, 1, "yes"):
        with pytest.raises(ValueError, match=f"^compile={spell(value)}: must be one of auto, true, false"):
            Config(compile=value)
    for name in ("a/b/c", "/a", "a/", "a/..", "../a", "..", "", ".hidden", "a\\b", "a\nb"):
        with pytest.raises(ValueError, match="name="):
            Config(name=name)


def test_the_help_has_every_key_and_yaml_keeps_what_it_is_given() -> None:
    text, short = usage(everything=True), usage(everything=False)
    for key, (_, field) in fields().items():
        if "help" in field.metadata:
            assert f"  {key}=" in text and field.metadata["help"] in text
    for group, choices in groups().items():
        assert f"{group}=" in short and " ".join(choices) in short and short.count("\n") < 30
    config = Config(optim=OptimConfig(lr=1e-5))
    assert from_yaml(to_yaml(config)) == config
    values = to_dict(config)
    values["model"]["head"] = 8
    with pytest.raises(ValueError, match="head"):
        from_dict(values)


def test_a_group_decides_what_any_of_its_files_sets() -> None:
    keys = typed_keys(["model=tiny", "trainer=cpu", "optim.lr=1", "callbacks=ema"], {"name": "x"})
    assert {"model.dim", "model.heads", "trainer.accelerator", "optim.lr", "callbacks", "name"} <= set(keys)
    assert "trainer.max_steps" not in keys
    assert "trainer.max_steps" in typed_keys(["experiment=nanogpt_cpu"], {})
