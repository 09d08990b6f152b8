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
from tests.conftest import one_line

pytestmark = pytest.mark.usefixtures("trained")
RUN = Path("runs/first/config.yaml")
RESUME = ("resume=runs/first", "trainer.max_steps=40")
# Plug-ins in a config.yaml that are refused.
REFUSED: list[tuple[str, dict[str, Any]]] = [
    ("logger", {"evil": {"_target_": "os.system"}}), ("logger", {"csv": {"_target_": "os.system"}}),
    ("logger", {"csv": {"name": [{"_target_": "os.getcwd"}]}}), ("logger", {"../experiment/enwik8": {}}),
    ("logger", {"none": {}}),
    ("logger", {"tensorboard": {"save_dir": "escaped"}}), ("callbacks", {1: {}}), ("callbacks", {"ema": [1]}),
    ("callbacks", {"ema": {"share": "${oc.create:{_target_:os.getcwd}}"}}), ("callbacks", {"ema": {"share": 2}}),
]  # fmt: skip
WRONG = [  # text of a config.yaml, and what is said of it
    ("", "lacks "), ("- 1", "must be a mapping"), ("seed: [", "while parsing a flow node"),
    ("day: 2001-99-99", "day: no such key"), ("a: " + 800 * "[" + 800 * "]", "nested too deeply"),
    ("\n".join(["a0: &a0 [1]", *(f"a{n}: &a{n} [{','.join(9 * [f'*a{n - 1}'])}]" for n in range(1, 10))]),
     "an alias is not accepted"),
    ("x: !!python/object/apply:os.system ['touch got-in']", "could not determine a constructor"),
    ("sed: 1", "sed: no such key; nearest: seed"), ("model: []", "model=[]: must be a mapping"),
    ("model: {layer: 3}", "model.layer: no such key; nearest: model.layers"),
    ("seed: x", "seed=x: must be a whole number"),
]  # fmt: skip


CLASSES = [  # text of a plug-in that names a class
    "logger: {csv: {_target_: os.system}}", r'logger: {csv: {"\x5ftarget_": os.system}}',
    r'callbacks: {ema: {"_t\u0061rget_": os.system, share: 0.05}}', "callbacks: {ema: {? !!str _target_ : os.system}}",
    r'logger: {wandb: {project: [[{"\x5ftarget_": os.system}]]}}', r'logger: {csv: {<<: {"\x5ftarget_": os.system}}}',
]  # fmt: skip


def changed(**values):
    RUN.write_text(yaml.safe_dump({**yaml.safe_load(RUN.read_text()), **values}))


@pytest.mark.parametrize(("group", "entries"), REFUSED, ids=str)
def test_plug_ins_are_those_of_conf(train, group, entries):
    changed(**{group: entries})
    one_line(train(*RESUME, defaults=False), 2, group)


@pytest.mark.parametrize("text", CLASSES)
def test_a_class_is_refused_however_its_key_is_spelled(train, text):
    group, _, _ = text.partition(":")
    others = {key: value for key, value in yaml.safe_load(RUN.read_text()).items() if key != group}
    RUN.write_text(f"{yaml.safe_dump(others)}{text}\n")
    one_line(train(*RESUME, defaults=False), 2, f"{group}: only a file of conf/")


def test_a_plug_in_writes_into_its_run_only(train):
    changed(logger={"csv": {"name": "../../escaped"}})
    one_line(train(*RESUME, defaults=False), 2, "logger.csv.name: no such key")
    changed(logger={"csv": {}})
    assert train(*RESUME, defaults=False).status == 0
    (written,) = Path().resolve().rglob("metrics.csv")
    assert written.is_relative_to(Path("runs/first").resolve())


def test_a_callback_of_one_s_own_is_a_file(train, monkeypatch):
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
        "module 'mine' has no attribute 'Mine'",
    )


SECRET = "${oc.env:CHARGPT_SECRET}"


@pytest.mark.parametrize("value", [SECRET, "3e-3", "1_0", "inf", "012", "yes"])
def test_what_looks_like_an_interpolation_or_a_number_is_data(value):
    config = replace(read_config(RUN.parent), name=value, logger={"wandb": {"project": value}})
    RUN.write_text(to_yaml(config))
    read = read_config(RUN.parent)
    assert (read.name, read.logger["wandb"]["project"]) == (value, value)


def test_a_path_that_looks_like_an_interpolation_is_a_file(train, monkeypatch):
    monkeypatch.setenv("CHARGPT_SECRET", "got-in")
    changed(data=yaml.safe_load(RUN.read_text())["data"] | {"path": SECRET})
    ended = train(*RESUME, defaults=False)
    one_line(ended, 2, SECRET)
    assert "got-in" not in ended.err
    Path("book.txt").rename(SECRET)
    ended = train(*RESUME, defaults=False)
    assert ended.status == 0 and read_config(RUN.parent).data.path == SECRET, ended


@pytest.mark.parametrize(("text", "said"), WRONG, ids=[ascii(text)[:60] for text, _ in WRONG])
def test_what_is_no_configuration(train, text, said):
    RUN.write_text(text)
    ended = train(*RESUME, defaults=False)
    one_line(ended, 2, str(RUN), said, "init_from=runs/first starts from")
    assert not Path("got-in").exists()
