from pathlib import Path

import pytest
import yaml

from base.errors import InputError
from conf.compose import read_config
from conf.help import usage
from conf.keys import KEYS, groups
from conf.overrides import parse, quoted, read_command
from conf.schema import Config, by_key, to_dict, to_yaml
from gpt.config import OptimConfig
from tests.conf.test_defaults import composed
from tests.conftest import Call, one_line, refusal


def refused(*typed: str) -> str:
    return refusal(InputError, composed, *typed)


def stored(folder: Path, config: Config, *change: str) -> Config:
    """What a run reads of its config.yaml."""
    folder.joinpath("config.yaml").write_text(
        to_yaml(config).replace(*change) if change else to_yaml(config), "utf-8"
    )
    return read_config(folder)


def test_a_sweep_is_every_combination() -> None:
    assert refused("-m", "model.heads=2,0").startswith("model.heads=0: must be")
    assert "-m: 1,000,000 combinations of values" in refused(
        "-m", "seed=range(0,1000)", "model.heads=range(0,1000)"
    )
    configs = composed("-m", "model.heads=2,4", "seed=5,1,2", "optim.warmup=7", "name=a,b")
    assert [(each.model.heads, each.seed) for each in configs] == [
        (2, 5),
        (2, 1),
        (2, 2),
        (4, 5),
        (4, 1),
        (4, 2),
    ]
    assert {each.optim.warmup for each in configs} == {7} and {each.name for each in configs} == {
        "a,b"
    }
    for typed in ("optim.lr=2e-3 optim.lr=3e-3", "optim.lr=1e-3,2e-3 optim.lr=3e-3"):
        (last,) = read_command(["-m", *typed.split()]).runs()
        assert [each.text for each in last] == ["optim.lr=0.003"], "the last counts, as in Hydra"
    assert [each.data.path for each in composed("-m", "data.path=z", "data.path=x,y")] == [
        "x",
        "y",
    ]
    assert [each.data.path for each in composed("-m", "data.path=x,y", "data.path=z")] == ["z"]


def test_a_comma_separates_names_only_with_m(workplace: Path) -> None:
    Path("a,b.txt").touch()
    for key, typed, values in (
        ("data.path", "x.txt,it's y=1.txt,${seed}", ["x.txt", "it's y=1.txt", "${seed}"]),
        ("init_from", "h,s", ["h", "s"]),
        ("data.documents", "line,null,<|end|>", ["line", None, "<|end|>"]),
        ("data.validation", "[x.txt,y.txt],(1, 2).txt", ["[x.txt,y.txt]", "(1, 2).txt"]),
        ("data.path", '"x,y.txt"', ["x,y.txt"]),
        ("data.path", "a,b.txt", ["a,b.txt"]),
    ):
        given = [f"{key}={typed}", *(["data.path=x"] if key == "data.validation" else [])]
        assert [by_key(each)[key] for each in composed("-m", *given, "seed=1")] == values
        assert [by_key(each)[key] for each in composed(*given, "seed=1")] == [typed]
    for typed in ("x,,y", "x,"):
        assert refused("-m", f"data.path={typed}").endswith(
            f"part of the name: 'data.path=\"{typed}\"'"
        )
    assert refused("hparams_search=default", "init_from=h,s").startswith(
        "init_from=h,s: must be one value in a search"
    )


def test_whole_numbers_become_floats_where_fractions_are_allowed() -> None:
    (config,) = composed("optim.clip=1", "minutes=5", "data.split=[0.5,0.5,0]")
    floats = [config.optim.clip, config.minutes, *config.data.split]
    assert floats == [1, 5, 0.5, 0.5, 0] and {type(value) for value in floats} == {float}


def test_what_cfg_shows(train: Call) -> None:
    keys = list(to_dict(Config()))
    typed = ["model.layers=4", "model.heads=${model.layers}", "data.path=a ${seed},b.txt"]
    ended = train(*typed, "--cfg", "job", defaults=False)
    assert ended.status == 0 and ended.err == "", ended
    values = yaml.safe_load(ended.out)
    assert (values["model"]["heads"], values["data"]["path"]) == (4, "a ${seed},b.txt") and list(
        values
    ) == keys
    one_line(train("seed=-1", "--cfg", "job"), 2, "seed=-1: must ")
    ended = train(
        "-m", "seed=1,2", "data.path=a b.txt", "init_from=x", "-c", "job", defaults=False
    )
    lines = [f"seed={seed} 'data.path=a b.txt' init_from=x" for seed in (1, 2)]
    assert (ended.status, ended.out.splitlines(), ended.err) == (0, lines, "") and not Path(
        "runs"
    ).exists()


def test_text_is_taken_as_it_is(tmp_path: Path) -> None:
    for value in ("it's (1).txt", "a,b=c.txt", "[x].txt", "${seed}.txt", '"q"', "~/a b"):
        (config,) = composed(f"data.path={value}", "seed=3")
        assert stored(tmp_path, config).data.path == config.data.path == value
    (config,) = composed("data.path=null", "name=123")
    assert (config.data.path, config.name) == (None, "123")
    for value, word in ((True, "true"), (False, "false"), ("true", "true"), ("auto", "auto")):
        assert Config(compile=value).compile == word
    assert stored(tmp_path, Config(compile=True), "'true'", "true").compile == "true"
    with pytest.raises(ValueError, match="^compile=null: must be one of auto, true, false"):
        Config(compile=None)
    # and those of tests/faults/test_input.py
    for name in ("/a", "a/", "a/..", "../a", ".hidden", "a\\b"):
        with pytest.raises(ValueError, match="name="):
            Config(name=name)


def test_a_text_in_hydra_s_grammar_is_read_as_this_text() -> None:
    texts = [
        "a/b-c.txt",
        "true",
        "NULL",
        "inf",
        "nan",
        "info",
        "aé",
        "",
        "it's",
        "\\",
        "\\'",
        'a\\"',
        "a\n,b",
        "${seed",
        "3",
        "\udcff",
    ]
    for text in texts:
        (override,) = parse([f"data.path={quoted(text)}"])
        assert override.value() == text, text
    (config,) = composed("++data.path=a 'b', c", "++name=3", "seed=1")
    assert (config.data.path, config.name) == ("a 'b', c", "3")
    (config,) = composed("++data.path=a", "data.path=b")
    assert config.data.path == "b"


def test_the_help_has_every_key_and_yaml_keeps_what_it_is_given(tmp_path: Path) -> None:
    text, short = usage(everything=True), usage(everything=False)
    for key, each in KEYS.items():
        if "help" in each.metadata:
            assert f"  {key}=" in text and each.metadata["help"] in text
    for group, choices in groups().items():
        assert f"{group}=" in short and " ".join(choices) in short and short.count("\n") < 30
    config = Config(optim=OptimConfig(lr=1e-5))
    assert stored(tmp_path, config) == config


NEAREST = {  # in any case
    "data_path=a": "data.path", "optim.name=AdamW": "adamw", "LR=1": "optim.lr",
    "data=Shakespear": "shakespeare", "callbacks=[EMA]": "ema", "++model.head=8": "model.heads",
    "trainer.accelerator=cdua": "cuda", "--max-steps=3": "trainer.max_steps",
}  # fmt: skip
UNLIKE = ["data.tokenizer=bpe", "optim.name=lion", "model.foo=1", "data=gutenberg", "-x"]


def test_the_nearest_name_is_said_and_none_of_what_is_unlike() -> None:
    for typed, meant in NEAREST.items():
        assert refused(typed).endswith(f"; nearest: {meant}"), refused(typed)
    for typed in UNLIKE:
        assert "nearest" not in refused(typed), refused(typed)


ELSEWHERE = {  # what nanoGPT, transformers and Lightning call a key
    "n_layer=1": "model.layers", "n_head=1": "model.heads", "n_embd=1": "model.dim", "hidden_size=1": "model.dim",
    "d_model=1": "model.dim", "model.block_size=1": "model.context", "--batch_size=1": "data.batch",
    "learning_rate=1": "optim.lr", "--learning-rate=1": "optim.lr", "max_epochs=1": "trainer.max_steps",
    "gpus=1": "trainer.devices", "out_dir=a": "name", "ckpt_path=a": "resume",
}  # fmt: skip


@pytest.mark.parametrize("typed", ELSEWHERE)
def test_a_name_of_another_project_leads_to_ours(typed: str) -> None:
    assert refused(typed).endswith(f"; nearest: {ELSEWHERE[typed]}")
