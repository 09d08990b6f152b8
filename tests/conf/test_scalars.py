"""A value means the same on the command line, in a preset and in a run's config.yaml."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from base.errors import InputError
from conf import compose as composing
from conf import yaml_text
from conf.compose import read_config
from conf.groups import FOLDERS, choice_values
from conf.hydra_grammar import parse
from conf.overrides import take_search
from conf.schema import Config, to_dict, to_yaml
from tests.conf.test_defaults import compose
from tests.conftest import Call

SCALARS = """
    0 -0 +5 -7 12 012 00 0_1 0x10 0b11 0o17 1:30 1:30.5 1_000 1__0 1_ _1 +1.5 .5 -.5 1. 1.e1 .5e1 01.5 1.5_0 1._5 3e-3
    2e2 1E+1 1e1_0 1_0.5e0 1e05 1e nan NaN inf -inf +INF .inf .nan Infinity true True tRUE false yes no on off Yes y n
    null Null NULL null_ auto 2001-01-01 2001-99-99 1.2.3 a:b utf-8 +
""".split()
DIFFERENT = "012 0x10 1:30 1_000 3e-3 .5 1. nan inf .inf yes off true null 2001-01-01".split()  # from YAML 1.1
KEYS = ["optim.clip", "seed", "model.bias", "data.encoding", "data.micro_batch", "logger.wandb.project"]


def value_of(key: str, read: Callable[..., Any], *given: Any) -> str:
    """Its value, or what is said of it: in front of it may be the name of the file."""
    try:
        found = read(*given)
    except InputError as error:
        assert f"{key}=" in str(error), error
        return str(error)[str(error).index(f"{key}=") :]
    for name in key.split("."):
        found = found[name] if isinstance(found, dict) else getattr(found, name)
    return repr(found)


@pytest.fixture
def preset(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    request.addfinalizer(FOLDERS.clear)
    FOLDERS.append(tmp_path)
    for group in ("experiment", "hparams_search"):
        (tmp_path / group).mkdir()
        (tmp_path / group / "mine.yaml").touch()
    return tmp_path / "experiment/mine.yaml"


@pytest.mark.parametrize("key", KEYS)
def test_a_setting_is_read_alike_everywhere(preset: Path, key: str) -> None:
    logger = ["logger=wandb"] if key.startswith("logger") else []
    for number, text in enumerate(DIFFERENT):
        lines = ["# @package _global_", *(["defaults:", "  - override /logger: wandb"] if logger else [])]
        lines += [f"{'  ' * depth}{name}:" for depth, name in enumerate(key.split("."))]
        preset.with_stem(f"n{number}").write_text("\n".join(lines) + f" {text}\n")
    values: Any = to_dict(compose(logger))
    *path, last = key.split(".")
    inner = values
    for name in path:
        inner = inner[name]
    inner[last] = "VALUE"
    whole = yaml_text.write(values)

    def stored(text: str) -> Config:
        preset.with_name("config.yaml").write_text(whole.replace("VALUE", text))
        return read_config(preset.parent)

    for number, text in enumerate(DIFFERENT):
        typed = value_of(key, compose, [*logger, f"{key}={text}"])
        assert value_of(key, compose, [f"experiment=n{number}"]) == typed, (text, "in a preset")
        assert value_of(key, stored, text) == typed, (text, "in config.yaml")


def test_a_scalar_is_what_it_is_in_the_grammar() -> None:
    for text in SCALARS:
        value = parse([f"k={text}"])[0].value()
        assert repr(yaml_text.read(text)) == repr(value), text
        for each in (text, value):  # repr, because NaN is not equal to itself
            assert repr(yaml_text.read(yaml_text.write([each]))) == repr([each])
        assert yaml.safe_load(yaml_text.write([text])) == [text], "other programs read a text, too"


def test_a_search_reads_settings_alike(preset: Path) -> None:
    def search(*typed: str) -> Any:
        return take_search(list(typed))[0]

    for text in SCALARS:
        preset.parents[1].joinpath("hparams_search/mine.yaml").write_text(f"trials: {text}\n")
        typed = value_of("trials", search, "hparams_search=default", f"hparams_search.trials={text}")
        assert value_of("trials", search, "hparams_search=mine") == typed, text


def test_cfg_prints_what_a_preset_reads(train: Call) -> None:
    ended = train("optim.clip=1_0.5e0", "data.path=1e3", "logger=wandb", "logger.wandb.project='inf'", "--cfg", "job")
    values = yaml_text.read(ended.out)
    assert (values["optim"]["clip"], values["data"]["path"], values["logger"]["wandb"]["project"]) == (
        10.5,
        "1e3",
        "inf",
    )


def test_a_key_that_is_there_twice_is_refused(preset: Path, tmp_path: Path) -> None:
    said = "found duplicate key seed"
    preset.write_text("# @package _global_\nseed: 1\nseed: 2\n")
    composing._cached.cache_clear()
    with pytest.raises(InputError, match=f"{said}.*mine.yaml"):
        compose(["experiment=mine"])
    with pytest.raises(InputError, match=f"mine.yaml.*{said}"):
        choice_values("experiment", "mine")
    (tmp_path / "config.yaml").write_text(to_yaml(compose([])) + "seed: 3\n")
    with pytest.raises(InputError, match=f"config.yaml: {said}"):
        read_config(tmp_path)
