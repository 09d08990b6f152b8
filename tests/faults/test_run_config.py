"""Nobody gets in by a run's config.yaml: it is plain data, and what it may not decide is typed again."""

import json
import os
import pickle
import random
import resource
import shlex
import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from base import run_lock
from base.errors import InputError
from conf.files import CONF
from conf.merge import read_config
from conf.plugins import make
from conf.schema import MAX_YAML, Config, to_yaml
from tests.conf.test_defaults import compose
from tests.conftest import Call, one_line
from tests.faults.processes import fork
from tests.faults.test_fuzz import mutated
from training.outcome import way_on
from training.resume import resolve

RESUME = ("resume=runs/first", "trainer.max_steps=40")
SECONDS = 10  # of the CPU for one config.yaml, which takes a tenth of one
ALIASES = "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{name}: &{name} [{','.join([f'*{before}'] * 9)}]\n" for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)
EVIL = {"_target_": "runs.evil.pwn.main"}
CALLED = "${oc.create:{_target_:runs.evil.pwn.main}}"
# Plug-ins in a config.yaml: what they must not make, and what they may not decide.
REFUSED: list[tuple[str, dict[str, Any]]] = [
    ("logger", {"evil": EVIL}), ("callbacks", {"evil": EVIL}), ("logger", {"none": {}}), ("callbacks", {1: {}}),
    ("logger", {"tensorboard": {"prefix": [EVIL]}}), ("logger", {"tensorboard": {"save_dir": "escaped"}}),
    ("callbacks", {"ema": {"decay": CALLED}}), ("callbacks", {"ema": {"decay": 2}}), ("callbacks", {"ema": [1]}),
    ("logger", {"../experiment/enwik8": {}}), ("logger", {"wandb": {"settings": EVIL}}),
    ("callbacks", {"ema": EVIL | {"x": 1}}),
]  # fmt: skip
IGNORED: list[dict[str, Any]] = [
    {"tensorboard": EVIL}, {"csv": {"_target_": "${oc.env:CLASS}", "name": "/escaped"}},
    {"csv": {"name": "../../escaped"}}, {"tensorboard": {"version": "../../../escaped", "default_hp_metric": CALLED}},
]  # fmt: skip
NO_CONFIGURATION = [
    (ALIASES, "alias"), ("seed: &a 1\nname: *a\n", "anchor"), ("a: &a [*a]\n", "alias"),
    ("x: !!python/object/apply:os.system ['touch got-in']", "tag"), ("seed: !!bool x", "tag"),
    ("x: " + "[" * 100_000, "nested values"), ("x: " + "{a: " * 30_000, "nested values"),
    ("- " * 50_000, "nested values"), ("a: 1\n" * MAX_YAML, "characters"), ("seed: " + "1" * 5_000, "digits"),
    ("seed: 0x" + "f" * 5_000, "digits"), ("minutes: " + "1:" * 5_000 + "1.0", "digits"),
    ("callbacks: []", "callbacks"), ("logger: text", "logger"), ("model: []", "config"),
    ("? [1, 2]\n: 3", "config.yaml"), ("compile: [[], {}]", "compile"), ("text", "must be a mapping"),
    ("", "must be a mapping"), ("seed: 1\n---\nseed: 2\n", "config.yaml"), ("seed: \x07", "config.yaml"),
]  # fmt: skip


@pytest.fixture
def run(trained: Path) -> Path:
    return Path("runs/first/config.yaml")


def changed(path: Path, **values: Any) -> None:
    path.write_text(yaml.safe_dump({**yaml.safe_load(path.read_text()), **values}))


def test_plug_ins_are_those_of_conf(run: Path, train: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("runs/evil").mkdir()
    Path("runs/evil/pwn.py").write_text("def main(**_): open('got-in', 'w')\n")
    monkeypatch.syspath_prepend(Path.cwd())  # as in the project, whose runs/ it is
    monkeypatch.setenv("CLASS", "runs.evil.pwn.main")
    whole, files, around = run.read_text(), set(Path().rglob("*")), Path().resolve().parent
    before = {*around.rglob("got-in"), *around.rglob("escaped")}  # of other tests
    for group, entries in REFUSED:
        run.write_text(whole)
        changed(run, **{group: entries})
        one_line(train(*RESUME, defaults=False), 2, "runs/first/config.yaml", group)
        assert {path for path in Path().rglob("*") if "__pycache__" not in path.parts} == files, entries
    for steps, entries in enumerate(IGNORED, start=31):  # the class and the directory are those of conf/
        run.write_text(whole)
        changed(run, logger=entries)
        assert train("resume=runs/first", f"trainer.max_steps={steps}", defaults=False).status == 0, entries
        (logger,) = make("logger", read_config(Path("runs/first")).logger, save_dir="runs/first")
        assert type(logger).__name__ in ("TensorBoardLogger", "CSVLogger")
        assert Path(logger.log_dir).resolve().is_relative_to(Path("runs/first").resolve()), entries
        assert {*around.rglob("got-in"), *around.rglob("escaped")} == before


def test_a_callback_of_one_s_own_is_a_file(run: Path, train: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(CONF, "conf", ignore=shutil.ignore_patterns("*.py*"))
    for module in ("conf.files", "conf.compose"):
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
    assert "_target_" not in run.read_text()
    assert "made with ['b']" in train("resume=runs/first", "trainer.max_steps=41", defaults=False).out
    one_line(train("callbacks=mine", "callbacks.mine.word=[b]"), 2, "callbacks=mine takes words")
    Path("mine.py").write_text("")
    monkeypatch.delitem(sys.modules, "mine")
    one_line(train("callbacks=mine"), 2, "callbacks=mine: cannot be created", "no attribute 'Mine'")
    Path("conf/callbacks/mine.yaml").unlink()
    one_line(train("resume=runs/first", defaults=False), 2, "callbacks: mine: there is no conf/callbacks/mine.yaml")


def test_what_a_run_of_an_earlier_version_says(run: Path, train: Call) -> None:
    lightning = "lightning.pytorch."
    ema = {"_target_": f"{lightning}callbacks.EMAWeightAveraging", "decay": 0.9, "use_buffers": False}
    early = {"_target_": f"{lightning}callbacks.EarlyStopping", "monitor": "val/loss", "patience": 3}
    loggers = {"csv": {"_target_": f"{lightning}loggers.CSVLogger", "name": "csv"}}
    assert train("callbacks=[ema,early_stopping]", "callbacks.ema.decay=0.9", "callbacks.early_stopping.patience=3",
                 "name=old", "data.path=book.txt").status == 0  # fmt: skip
    changed(Path("runs/old/config.yaml"), callbacks={"ema": ema, "early_stopping": early}, logger=loggers)
    for file in Path("runs/old/checkpoints").glob("step-*.ckpt"):
        contents = torch.load(file)
        contents["conditions"]["callbacks"] = {"ema": ema, "early_stopping": early}
        torch.save(contents, file)
    assert train("resume=runs/old", "trainer.max_steps=40", defaults=False).status == 0
    config = read_config(Path("runs/old"))
    assert config.callbacks["ema"] == {"decay": 0.9} and config.logger == {"csv": {}}
    assert json.loads(Path("runs/old/summary.json").read_text())["steps"] == 40


def test_no_address_of_a_file_is_asked(run: Path, train: Call, listener: tuple[str, list[str]]) -> None:
    (server, asked), data = listener, yaml.safe_load(run.read_text())["data"]
    for form in ("{}", "[{}]", "[book.txt,{}]", "simplecache::{}"):
        changed(run, data={**data, "path": form.format(f"{server}/book.txt")})
        one_line(train(*RESUME, defaults=False), 2, "its data.path is not trusted")
    assert asked == []
    address = f"file://{Path('book.txt').absolute()}"
    changed(run, data={**data, "path": address})
    one_line(train(*RESUME, defaults=False), 2, "its data.path is not trusted")
    command = way_on(Path("runs/first"), read_config(Path("runs/first"))).partition("train.py ")[2]
    assert shlex.split(command) == ["resume=runs/first", f"data.path={address}"]
    assert train(*shlex.split(command), "trainer.max_steps=40", "allow=[text]", defaults=False).status == 0
    assert json.loads(Path("runs/first/summary.json").read_text())["steps"] == 40


def resumed(files: list[bytes]) -> Iterator[Config | str]:
    """What resuming a run makes of each config.yaml, in a process of 1 GiB and few seconds: it, or a refusal."""
    Path("runs/a/checkpoints").mkdir(parents=True)
    Path("runs/a/checkpoints/step-00000010.ckpt").touch()
    Path("files").write_bytes(pickle.dumps(files))
    process = fork(_resume_each, str(Path.cwd()))
    process.join(240)
    if process.is_alive():
        process.kill()
    last = Path("runs/a/config.yaml").read_bytes()
    assert process.exitcode == 0, f"ended with {process.exitcode} at {last[:2000]!r}"
    for result in pickle.loads(Path("results").read_bytes()):
        if isinstance(result, str):
            assert result.isprintable() and "runs/a" in result and len(result) < 400, result
        yield result


def _resume_each(folder: str) -> None:
    os.chdir(folder)
    results: list[Config | str] = []
    for data in pickle.loads(Path("files").read_bytes()):
        Path("runs/a/config.yaml").write_bytes(data)
        used = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
        spent = int(time.process_time()) + SECONDS
        for what, limit in ((resource.RLIMIT_AS, used + 2**30), (resource.RLIMIT_CPU, spent)):
            resource.setrlimit(what, (limit, resource.getrlimit(what)[1]))
        try:
            results.append(resolve(Config(resume="runs/a"), [])[0])
        except InputError as error:
            results.append(str(error))
        finally:
            run_lock.release()
    Path("results").write_bytes(pickle.dumps(results))


def test_what_is_no_plain_data(workplace: Path) -> None:
    results = resumed([text.encode() for text, _ in NO_CONFIGURATION])
    for (text, said), result in zip(NO_CONFIGURATION, results, strict=True):
        assert isinstance(result, str) and said in result, (text[:40], result)
    Path("runs/a/config.yaml").unlink()
    os.mkfifo("runs/a/config.yaml")  # which would never end
    with pytest.raises(InputError, match="config.yaml: is missing"):
        read_config(Path("runs/a"))


def rewritten(text: str, rng: random.Random) -> bytes:
    values = ["${oc.env:HOME}", "*x", "&x 1", "!!bool 1", "[", "{", "- ", "../../x", "http://x/y", "~", "1e999", "-1",
              ".nan", "0x" + "f" * 40, "9" * 25, "2001-99-99", "<<: {a: 1}", "''", "[[1], {a: b}]",
              "{_target_: os.abort}", "null", "true", "=", "1:1:1", "\"\\u0007\"", "x" * 3000]  # fmt: skip
    lines = text.split("\n")
    for _ in range(rng.choice([1, 1, 2, 4])):
        at, other = rng.randrange(len(lines)), rng.randrange(len(lines))
        key, colon, _ = lines[at].partition(":")
        lines[at : at + 1] = rng.choice([
            [f"{key}{colon} {rng.choice(values)}"], [f"{key}{colon} {rng.choice(values)}"], [key + rng.choice(values)],
            [], [lines[at]] * 2, [lines[other]], ["  " + lines[at]], [lines[at].strip()],
        ]) or [""]  # fmt: skip
    data = "\n".join(lines).encode()
    return mutated(data, rng) if rng.random() < 0.5 else data


@pytest.mark.parametrize("count", [150, pytest.param(600, marks=pytest.mark.nightly)])
def test_many_mutations(count: int, workplace: Path) -> None:
    rng = random.Random(19)
    whole = to_yaml(compose(["callbacks=ema", "callbacks.ema.decay=0.9", "data.path=book.txt"]))
    first, *others = resumed([whole.encode(), *(rewritten(whole, rng) for _ in range(count))])
    assert isinstance(first, Config) and first.callbacks["ema"]["decay"] == 0.9
    taken = [result for result in others if isinstance(result, Config)]
    for config in taken:
        assert "_target_" not in to_yaml(config) and config.logger.keys() <= {"tensorboard"}, config
        assert "://" not in (config.data.path or "") and isinstance(to_yaml(config), str), config
    assert count / 60 < len(taken) < count / 2
