"""A run's config.yaml is plain data: it chooses plug-ins by name and names no class; what is wrong is one line."""

from pathlib import Path

import pytest
import yaml

from conf.compose import read_config
from conf.schema import to_dict
from tests.conftest import one_line
from tests.folders import make

pytestmark = pytest.mark.usefixtures("trained")
RUN = Path("runs/first/config.yaml")
RESUME = ("resume=runs/first", "trainer.max_steps=40")
PLUG_IN = "only a file of conf/"
WRONG = [  # text of a config.yaml or of its plug-ins, and what is said of it
    ("", "lacks "), ("- 1", "must be a mapping"), ("seed: [", "while parsing a flow node"),
    ("day: 2001-99-99", "day: no such key"), ("a: " + 800 * "[" + 800 * "]", "nested too deeply"),
    ("\n".join(["a0: &a0 [1]", *(f"a{n}: &a{n} [{','.join(9 * [f'*a{n - 1}'])}]" for n in range(1, 10))]),
     "an alias is not accepted"),
    ("x: !!python/object/apply:os.system ['touch got-in']", "could not determine a constructor"),
    ("sed: 1", "sed: no such key; nearest: seed"), ("model: []", "model=[]: must be a mapping"),
    ("seed: x", "seed=x: must be a whole number"),
    ("logger: {evil: {_target_: os.system}}", "logger"), ("logger: {csv: {name: [{_target_: os.getcwd}]}}", "logger"),
    ("logger: {../experiment/enwik8: {}}", "logger"), ("callbacks: {1: {}}", "callbacks"),
    ("callbacks: {ema: [1]}", "Cannot merge"), ("callbacks: {ema: {share: 2}}", "callbacks"),
    ("callbacks: {ema: {share: '${oc.create:{_target_:os.getcwd}}'}}", "callbacks"),
    ("logger: {csv: {name: ../../escaped}}", "logger.csv.name: no such key"),
    # a class, however its key is spelled
    ("logger: {csv: {_target_: os.system}}", PLUG_IN), (r'logger: {csv: {"\x5ftarget_": os.system}}', PLUG_IN),
    (r'callbacks: {ema: {"_t\u0061rget_": os.system, share: 0.05}}', PLUG_IN),
    ("callbacks: {ema: {? !!str _target_ : os.system}}", PLUG_IN),
    (r'logger: {csv: {<<: {"\x5ftarget_": os.system}}}', PLUG_IN),
]  # fmt: skip


@pytest.mark.parametrize(("text", "said"), WRONG, ids=lambda part: ascii(part)[:60])
def test_what_is_no_configuration(train, text, said):
    config = yaml.safe_load(RUN.read_text())
    group = text.partition(":")[0]
    plugins = config.pop(group) if group in ("logger", "callbacks") else None
    RUN.write_text(text if plugins is None else f"{yaml.safe_dump(config)}{text}\n")
    words = [str(RUN)] if plugins is None else []
    one_line(train(*RESUME, defaults=False), 2, said, *words)
    assert not Path("got-in").exists()


def test_a_plug_in_writes_into_its_run_only(train):
    assert train(*RESUME, "logger=csv", defaults=False).status == 0
    (written,) = Path().resolve().rglob("metrics.csv")
    assert written.is_relative_to(Path("runs/first").resolve())


def test_a_callback_of_one_s_own_is_a_file(train, monkeypatch):
    monkeypatch.setattr("conf.keys.FOLDERS", [Path("own").absolute()])
    monkeypatch.setattr("conf.compose.FOLDERS", [Path("own").absolute()])
    monkeypatch.syspath_prepend(Path.cwd())
    mine = "class Mine(L.Callback):\n    def __init__(self, words): print('made with', words)\n"
    preset = "mine:\n  _target_: mine.Mine\n  words: [a]\n"
    make(Path(), {"mine.py": f"import lightning as L\n{mine}", "own/callbacks/mine.yaml": preset})
    typed = ["callbacks=[mine,early_stopping]", "callbacks.mine.words=[b]", "allow=[callbacks]"]
    assert "made with ['b']" in train(*RESUME, *typed, defaults=False).out
    assert to_dict(read_config(RUN.parent))["callbacks"]["mine"] == {"words": ["b"]}
    assert "_target_" not in RUN.read_text()
    assert (
        "made with ['b']" in train("resume=runs/first", "trainer.max_steps=41", defaults=False).out
    )
    one_line(train("callbacks=mine", "callbacks.mine.word=[b]"), 2, "callbacks=mine accepts words")
    Path("own/callbacks/mine.yaml").write_text(preset.replace("Mine", "Yours"))
    said = "callbacks=mine: cannot be created: module 'mine' has no attribute 'Yours'"
    one_line(train("callbacks=mine"), 2, said)


SECRET = "${oc.env:CHARGPT_SECRET}"


def test_a_path_that_looks_like_an_interpolation_is_a_file(train, monkeypatch):
    monkeypatch.setenv("CHARGPT_SECRET", "got-in")
    RUN.write_text(RUN.read_text().replace("path: book.txt", f"path: {SECRET}"))
    ended = train(*RESUME, defaults=False)
    one_line(ended, 2, SECRET)
    assert "got-in" not in ended.err
    Path("book.txt").rename(SECRET)
    ended = train(*RESUME, defaults=False)
    assert ended.status == 0 and read_config(RUN.parent).data.path == SECRET, ended
