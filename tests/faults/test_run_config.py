"""A run's config.yaml is plain data: it chooses plug-ins by name and names no class; what is wrong is one line."""

import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from conf.compose import read_config
from conf.keys import CONF
from conf.schema import to_dict, to_yaml
from tests.conftest import Call, one_line

pytestmark = pytest.mark.usefixtures("trained")
RUN = Path("runs/first/config.yaml")
RESUME = ("resume=runs/first", "trainer.max_steps=40")
# Plug-ins in a config.yaml that are refused.
REFUSED: list[tuple[str, dict[str, Any]]] = [
    ("logger", {"evil": {"_target_": "os.system"}}), ("logger", {"csv": {"_target_": "os.system"}}),
    ("logger", {"csv": {"name": [{"_target_": "os.getcwd"}]}}), ("logger", {"../experiment/enwik8": {}}),
    ("logger", {"none": {}}),
    ("logger", {"tensorboard": {"save_dir": "escaped"}}), ("callbacks", {1: {}}), ("callbacks", {"ema": [1]}),
    ("callbacks", {"ema": {"decay": "${oc.create:{_target_:os.getcwd}}"}}), ("callbacks", {"ema": {"decay": 2}}),
]  # fmt: skip
WRONG = [  # text of a config.yaml, and what is said of it
    ("", "lacks "), ("- 1", "must be a mapping"), ("seed: [", "while parsing a flow node"),
    ("day: 2001-99-99", "day: no such key"), ("a: " + 800 * "[" + 800 * "]", "nested too deeply"),
    ("\n".join(["a0: &a0 [1]", *(f"a{n}: &a{n} [{','.join(9 * [f'*a{n - 1}'])}]" for n in range(1, 10))]), "alias *a0"),
    ("x: !!python/object/apply:os.system ['touch got-in']", "could not determine a constructor"),
    ("sed: 1", "sed: no such key; nearest: seed"), ("model: []", "model=[]: must be a mapping"),
    ("model: {layer: 3}", "model.layer: no such key; nearest: model.layers"),
    ("seed: x", "seed=x: must be a whole number"),
]  # fmt: skip


def changed(**values: Any) -> None:
    RUN.write_text(yaml.safe_dump({**yaml.safe_load(RUN.read_text()), **values}))


def test_plug_ins_are_those_of_conf(train: Call) -> None:
    whole = RUN.read_text()
    for group, entries in REFUSED:
        RUN.write_text(whole)
        changed(**{group: entries})
        one_line(train(*RESUME, defaults=False), 2, group)
    RUN.write_text(whole)
    changed(logger={"csv": {"name": "../../escaped"}})
    one_line(train(*RESUME, defaults=False), 2, "logger.csv.name: no such key")
    changed(logger={"csv": {}})
    assert train(*RESUME, defaults=False).status == 0
    (written,) = Path().resolve().rglob("metrics.csv")
    assert written.is_relative_to(Path("runs/first").resolve())


def test_a_callback_of_one_s_own_is_a_file(train: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(CONF, "conf", ignore=shutil.ignore_patterns("*.py*"))
    for module in ("conf.keys", "conf.compose"):
        monkeypatch.setattr(f"{module}.CONF", Path("conf").absolute())
    monkeypatch.syspath_prepend(Path.cwd())
    mine = "class Mine(L.Callback):\n    def __init__(self, words): print('made with', words)\n"
    Path("mine.py").write_text(f"import lightning as L\n{mine}")
    Path("conf/callbacks/mine.yaml").write_text("mine:\n  _target_: mine.Mine\n  words: [a]\n")
    typed = [
        "callbacks=[mine,early_stopping]",
        "callbacks.mine.words=[b]",
        "trainer.max_steps=40",
        "allow=[callbacks]",
    ]
    assert "made with ['b']" in train("resume=runs/first", *typed, defaults=False).out
    assert to_dict(read_config(Path("runs/first")))["callbacks"]["mine"] == {"words": ["b"]}
    assert "_target_" not in RUN.read_text()
    assert (
        "made with ['b']" in train("resume=runs/first", "trainer.max_steps=41", defaults=False).out
    )
    one_line(train("callbacks=mine", "callbacks.mine.word=[b]"), 2, "callbacks=mine accepts words")
    Path("mine.py").write_text("")
    monkeypatch.delitem(sys.modules, "mine")
    one_line(
        train("callbacks=mine"),
        2,
        "callbacks=mine: cannot be created",
        "No module named 'mine.Mine'",
    )


NAMED = [  # classes on a command line, and what is said of them
    ("callbacks.x._target_=os.system", "needs callbacks=x"),
    ("callbacks=ema callbacks.ema._target_=os.system", "callbacks=ema accepts decay"),
    ("callbacks={x:{_target_:os.system}}", "must be a value or a list"),
    ("logger=wandb logger.wandb.project=[[{_target_:os.getcwd}]]", "must be a value or a list"),
]


def test_a_command_line_names_no_class(train: Call) -> None:
    files = set(Path("runs").rglob("*"))
    for typed, said in NAMED:
        one_line(train(*typed.split()), 2, said)
        one_line(train("resume=runs/first", *typed.split(), defaults=False), 2, said)
        one_line(train("-m", "seed=1,2", *typed.split()), 2, said)
    assert set(Path("runs").rglob("*")) - {Path("runs/first/.lock")} == files - {
        Path("runs/first/.lock")
    }


def test_what_looks_like_an_interpolation_or_a_number_is_data(
    train: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CHARGPT_SECRET", "got-in")
    text, whole = "${oc.env:CHARGPT_SECRET}", yaml.safe_load(RUN.read_text())
    for value in (text, "3e-3", "1_0", "inf", "012", "yes"):
        config = replace(read_config(RUN.parent), name=value, logger={"wandb": {"project": value}})
        RUN.write_text(to_yaml(config))
        read = read_config(RUN.parent)
        assert (read.name, read.logger["wandb"]["project"]) == (value, value)
    changed(data=whole["data"] | {"path": text}, logger={"csv": {}}, name="first")
    ended = train(*RESUME, defaults=False)
    one_line(ended, 2, text)
    assert "got-in" not in ended.err
    Path("book.txt").rename(text)
    ended = train(*RESUME, defaults=False)
    assert ended.status == 0 and read_config(RUN.parent).data.path == text, ended


def test_what_is_no_configuration(train: Call) -> None:
    for text, said in WRONG:
        RUN.write_text(text)
        one_line(
            train(*RESUME, defaults=False),
            2,
            "runs/first/config.yaml",
            said,
            "init_from=runs/first starts from",
        )
        assert not Path("got-in").exists()
