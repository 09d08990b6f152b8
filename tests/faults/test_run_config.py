"""A run's config.yaml is plain data: it chooses plug-ins by name and names no class; what is wrong is one line."""

import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from conf.groups import CONF
from conf.merge import read_config
from tests.conftest import Call, one_line

pytestmark = pytest.mark.usefixtures("trained")
RUN = Path("runs/first/config.yaml")
RESUME = ("resume=runs/first", "trainer.max_steps=40")
# Plug-ins in a config.yaml that are refused.
REFUSED: list[tuple[str, dict[str, Any]]] = [
    ("logger", {"evil": {"_target_": "os.system"}}), ("logger", {"../experiment/enwik8": {}}), ("logger", {"none": {}}),
    ("logger", {"tensorboard": {"save_dir": "escaped"}}), ("callbacks", {1: {}}), ("callbacks", {"ema": [1]}),
    ("callbacks", {"ema": {"decay": "${oc.create:{_target_:os.getcwd}}"}}), ("callbacks", {"ema": {"decay": 2}}),
]  # fmt: skip
WRONG = [  # text of a config.yaml, and what is said of it
    ("", "must be a mapping"), ("seed: [", "cannot be read"), ("day: 2001-99-99", "month must be in 1..12"),
    ("x: !!python/object/apply:os.system ['touch got-in']", "cannot be read"),
    ("sed: 1", "sed: no such key; nearest: seed"), ("model: []", "model=[]: must be a mapping"),
    ("model: {layer: 3}", "model.layer: no such key; nearest: layers"), ("seed: x", "seed=x: must be a whole number"),
]  # fmt: skip


def changed(**values: Any) -> None:
    RUN.write_text(yaml.safe_dump({**yaml.safe_load(RUN.read_text()), **values}))


def test_plug_ins_are_those_of_conf(train: Call) -> None:
    whole = RUN.read_text()
    for group, entries in REFUSED:
        RUN.write_text(whole)
        changed(**{group: entries})
        one_line(train(*RESUME, defaults=False), 2, "runs/first/config.yaml", group)
    RUN.write_text(whole)
    changed(logger={"csv": {"_target_": "os.system", "name": "../../escaped"}})  # which conf/ decides
    assert train(*RESUME, defaults=False).status == 0
    (written,) = Path().resolve().rglob("metrics.csv")
    assert written.is_relative_to(Path("runs/first").resolve())


def test_a_callback_of_one_s_own_is_a_file(train: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(CONF, "conf", ignore=shutil.ignore_patterns("*.py*"))
    for module in ("conf.groups", "conf.compose"):
        monkeypatch.setattr(f"{module}.CONF", Path("conf").absolute())
    monkeypatch.syspath_prepend(Path.cwd())
    Path("mine.py").write_text("""import lightning as L
class Mine(L.Callback):
    def __init__(self, words): print("made with", words)
""")
    Path("conf/callbacks/mine.yaml").write_text("mine:\n  _target_: mine.Mine\n  words: [a]\n")
    typed = ["callbacks=[mine,early_stopping]", "callbacks.mine.words=[b]", "trainer.max_steps=40", "allow=[callbacks]"]
    assert "made with ['b']" in train("resume=runs/first", *typed, defaults=False).out
    chosen = read_config(Path("runs/first")).callbacks
    assert (chosen["mine"], chosen["early_stopping"]["patience"]) == ({"words": ["b"]}, 5)
    assert "_target_" not in RUN.read_text()
    assert "made with ['b']" in train("resume=runs/first", "trainer.max_steps=41", defaults=False).out
    one_line(train("callbacks=mine", "callbacks.mine.word=[b]"), 2, "callbacks=mine takes words")
    Path("mine.py").write_text("")
    monkeypatch.delitem(sys.modules, "mine")
    one_line(train("callbacks=mine"), 2, "callbacks=mine: cannot be created", "no attribute 'Mine'")
    Path("conf/callbacks/mine.yaml").unlink()
    one_line(train("resume=runs/first", defaults=False), 2, "callbacks: mine: there is no conf/callbacks/mine.yaml")


def test_what_is_no_configuration(train: Call) -> None:
    for text, said in WRONG:
        RUN.write_text(text)
        one_line(train(*RESUME, defaults=False), 2, "runs/first/config.yaml", said)
        assert not Path("got-in").exists()
