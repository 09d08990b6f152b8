import dataclasses
import itertools
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from base.errors import InputError
from base.options import spell
from conf.hydra_grammar import parse
from conf.keys import LITERAL, PLUGGED, PLUGINS, SEARCH, fields, set_leaf
from conf.overrides import read_command
from conf.schema import REFUSED, Config, from_dict, to_dict
from tests.conftest import ROOT, Call, Ended, less_progress, one_line, refusal


def wrong_values(hint: Any, field: dataclasses.Field) -> Iterator[str]:
    bounds, kind = field.metadata, str(hint)
    number = "int" in kind or "float" in kind
    yield "[]" if "list" not in kind else "x"
    yield "{a:1}"
    yield "a;b"
    if number:
        yield from ("abc", "true", "nan", "inf", "-inf", "1e999", "[1,two]" if "list" in kind else "[1]", "''")
        edges = {"least": -1, "above": 0, "most": 1, "below": 0}
        for bound, beyond in edges.items():
            if bounds.get(bound) is not None:
                value = bounds[bound] + beyond
                yield f"[{value},{value}]" if "list" in kind else spell(value)
        if "int" in kind:
            yield "1.5"
        if "None" not in kind:
            yield "null"
    if "bool" in kind:
        yield from ("2", "maybe")
    if bounds.get("choices"):
        yield from ("nonsense", f"{bounds['choices'][0]}x", "3", "[1]")


EVERY = [
    (key, value)
    for key, (hint, field) in {**fields(), **PLUGINS, **SEARCH}.items()
    if "help" in field.metadata and key not in LITERAL and key != "allow" and key != "data.encoding"
    for value in wrong_values(hint, field)
]


def without_hydra(key: str, value: str) -> Config:
    (override,) = parse(read_command([f"{key}={value}"]).overrides)
    values = to_dict(Config())
    set_leaf(values, key, override.value())
    return from_dict(values)


def test_every_option_refuses_what_it_does_not_take(train: Call, workplace: Path) -> None:
    covered = {key for key, _ in EVERY} | {*LITERAL, "allow", "data.encoding", *PLUGGED}
    assert covered >= set(fields()) and len(EVERY) > 300
    before = sorted(workplace.rglob("*"))
    once = set()
    for key, value in EVERY:
        if key in once:  # Hydra is slow; the rest of the way is the same for every value
            said = refusal(InputError, without_hydra, key, value)
        else:
            once |= {key} & set(fields())
            plugin = [f"callbacks={key.split('.')[1]}"] if key in PLUGINS else []
            plugin += ["hparams_search=default"] if key in SEARCH else []
            ended = train(*plugin, f"{key}={value}")
            one_line(ended, 2)
            assert ended.out == "", ended
            said = ended.err
        assert key in said or key.rpartition(".")[0] in said, (key, value, said)
    assert sorted(workplace.rglob("*")) == before


CALLBACKS = "callbacks=[ema,early_stopping]"
OTHERS: dict[str | tuple[str, ...], str] = {
    # unknown, with the nearest right name; more in tests/conf/test_overrides.py
    "mdel=tiny": "nearest: model", "--multirum": "nearest: --multirun", "experiment=[a,b]": "experiment=[a,b]",
    "experiment=[nanogpt_cpu,nanogpt_gpu]": "must be one of", "optim=[muon,adamw]": "must be one of adamw, muon",
    # no key=value, or not as Hydra means it
    "": "must be key=value", "=3": "must be key=value", "--foo": "--foo",
    "--max-steps=10": "--max-steps=10: no such flag; settings have no dashes: trainer.max_steps=10",
    ("--max-steps", "10"): "dashes: trainer.max_steps=10", ("--data.path", "book.txt"): "dashes: data.path=book.txt",
    "--cfg": "--cfg", "-x": "-x", "-m=1": "-m=1",
    "--help=1": "--help=1", "model={layers:3}": "model=", "model.heads={": "cannot read the value",
    "model.layers=${nope}": "nope", "+trainer.foo=1": "trainer.foo", "++optim.lr=x": "optim.lr=x",
    "hydra/launcher=x": "is not accepted", "hydra.run.dir=x": "hydra.run.dir: is not accepted",
    "seed=range(0,1000000000)": "seed=range(0,1000000000)", "seed=range(0,5)": "-m",
    "logger.tensorboard.name=../../x": "logger=tensorboard takes none",
    "+logger.tensorboard.max_queue=abc": "logger=tensorboard takes none",
    "callbacks.ema.decay=0.5": "needs callbacks=ema",
    (CALLBACKS, "+callbacks.ema.start_step=abc"): "callbacks=ema takes decay",
    (CALLBACKS, "callbacks.ema._target_=nope.Nope"): "callbacks=ema takes decay",
    (CALLBACKS, "+callbacks.early_stopping.divergence_threshold=abc"): "takes monitor, patience, min_delta",
    (CALLBACKS, "callbacks.early_stopping.min_delta=abc"): "must be a number, at least 0",
    # contradictory
    "model.heads=3": "must divide model.dim=32: 1, 2, 4", "data.micro_batch=3": "must divide data.batch=8",
    "data.split=[1,0,0]": "the first two above 0", "data.split=[0.5,0.6,0.1]": "add up to 1",
    "optim.min_lr=1": "at most optim.lr", "optim.betas=[0.9]": "must be two numbers",
    "data.encoding=klingon": "must be an encoding", "trainer.devices=0": "trainer.devices=0",
    "trainer.devices=3": "data.batch=8: must be a multiple of 3", "trainer.devices=[0]": "a list is for GPUs",
    "trainer.strategy=bogus": "must be one of auto, ddp, fsdp", "trainer.accelerator=gpu": "this machine has only",
    "trainer.deterministic=maybe": "must be one of true, false, warn",
    "trainer.max_steps=1000000000000": "1 to 1000000000", "trainer.timeout=1000001": "most 1000000",
    "workers=2": "workers: goes with -m",
    "allow=[seeed]": "goes with resume=", "allow=seed": "a list", "allow=[seed]": "resume",
    ("model.dim=131072", "model.heads=1024"): "out of memory",
    # text
    "data.path=bok.txt": "nearest: book.txt", "data.path=": "data.path=", "data.path=/dev/null": "data.path",
    "data.path=/": "data.path=/: holds files of the system", "data.path=/proc/kmsg": "holds files of the system",
    "data.path=*.nothing": "no file matches", "data.path=bin.dat": "bin.dat: is a binary file",
    "data.path=utf16.txt": "data.encoding=, such as utf-16-le", "data.path=empty.txt": "is empty",
    "data.path=one.txt": "only one distinct character", "data.path=short.txt": "too few",
    "model.context=30000": "model.context=30000", "data.cache_dir=book.txt": "data.cache_dir",
    # names and runs
    "name=": "name=", "name=a/b/c": "or SWEEP/TRIAL", "name=..": "or SWEEP/TRIAL", "name=a\nb": "name=",
    f"name={'x' * 300}": "name=", "resume=": "resume=", "resume=nothing": "no such run",
    "resume=auto": "no unfinished run", "resume=book.txt": "is not a run that can continue",
    "resume=.": "is not a run that can continue",
    **{f"trainer.{name}=1": f"trainer.{name}: is not accepted" for name in REFUSED},
}  # fmt: skip


def test_other_wrong_words(train: Call, workplace: Path) -> None:
    Path("bin.dat").write_bytes(bytes(range(256)) * 100)
    Path("utf16.txt").write_bytes(("Zeile für Zeile\n" * 500).encode("utf-16-le"))
    Path("empty.txt").touch()
    Path("one.txt").write_text("a" * 5000)
    Path("short.txt").write_text("abc")
    before = set(workplace.rglob("*"))
    for typed, said in OTHERS.items():
        ended = train(*([typed] if isinstance(typed, str) else typed))
        one_line(ended, 2, said)
        made = [path for path in set(workplace.rglob("*")) - before if "cache" not in path.parts]
        assert ended.out == "" and not made, (typed, made)
    words = [typed for typed in OTHERS if isinstance(typed, str)][:40]
    for first, second in itertools.islice(itertools.combinations(words, 2), 0, None, 9):
        one_line(train(first, second), 2)


SAMPLE = {
    "nothing": "nothing: no such model or run; the newest are runs/first", "book.txt": "is damaged or no model file",
    "x" * 5000: "too long", "runs/\nx": "no such", "--promt=x": "nearest: --prompt", "-x": "-x", "second": "no such",
    "--num-chars": "expected one argument", "--num-chars=-1": "at least 0", "--num-chars=99999999999": "at most",
    "--num-chars=x": "must be a whole number", "--num-chars=1000000001": "at most 1000000000",
    "--num-samples=0": "at least 1", "--num-samples=100000000000": "at most",
    "--temperature=-0.1": "at least 0", "--temperature=nan": "must be a number", "--temperature=inf": "at most",
    "--top-k=0": "at least 1", "--top-k=1.5": "must be a whole number",
    "--seed=-1": "at least 0", "--seed=x": "must be a whole number", "--seed=99999999999999999999999": "at most",
    "--device=quantum": "must be cpu, cuda", "--device=cuda:99": "--device cuda:99", "--device=meta": "must be cpu",
    "--prompt=né": "'é' (U+00E9) at position 1", "--prompt=a\udcff": "half of a surrogate pair",
}  # fmt: skip


def test_every_option_of_sample(trained: Path, sample: Call) -> None:
    for argument, said in SAMPLE.items():
        ended = sample("first", argument) if argument.startswith("-") else sample(argument)
        one_line(ended, 2, said, program="sample.py")
        assert ended.out == "", argument
    one_line(sample("first", "first"), 2, program="sample.py")


def test_a_process_of_its_own_answers_in_one_line(workplace: Path) -> None:
    for typed in (
        "train.py model.heads=7", "train.py data.path=bok.txt", "sample.py book.txt",
        "train.py trainer.devices=3 trainer.accelerator=cpu data.path=book.txt",
    ):  # fmt: skip
        script, *arguments = typed.split()
        ended = subprocess.run([sys.executable, ROOT / script, *arguments], capture_output=True, text=True)
        one_line(Ended(ended.returncode, ended.stdout, less_progress(ended.stderr)), 2, program=script)


def test_variables_that_hold_no_number(train: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable, value in (("RANK", "abc"), ("LOCAL_RANK", ""), ("LOCAL_RANK", "-1"), ("WORLD_SIZE", "abc")):
        with monkeypatch.context() as patch:
            if variable == "WORLD_SIZE":  # which has a meaning beside it only
                patch.setenv("RANK", "0")
            patch.setenv(variable, value)
            one_line(train(), 2, f"{variable}={value}: this environment variable must be a whole number")


SWEEPS = [  # an environment variable, what is typed, and what is said of it
    ("", "resume=runs/first seed=1,2", "resume=runs/first: to continue a sweep, repeat its command"),
    ("", "seed=range(0,1000000)", "more than 10,000 values"), ("", "seed=5,range(1,3)", "either single values or one"),
    ("", "model.heads=2,3 model.dim=48,32", "model.heads=3: must divide model.dim=32"),
    ("", "data.batch=8,9 trainer.devices=2", "data.batch=9: must be a multiple of 2 devices"),
    ("", "seed=1,2 data.path=bok.txt", "nearest: book.txt"), ("", "seed=1,2 model.context=20,20000", "model.context"),
    ("", "seed=1,2 init_from=nothing", "nothing: no such model or run"), ("", "seed=1,2 name=a/b", "has no slash"),
    ("", "seed=1,2 workers=0", "workers=0: must be"), ("", "seed=1,2 workers=1,2", "workers: must have one value"),
    ("", "optim.lr=interval(0.1,1)", "optim.lr=interval(0.1,1): an interval is for a search"),
    ("TORCHELASTIC_RUN_ID", "seed=1,2", "-m: torchrun starts the processes of one run"),
    ("SLURM_STEP_NUM_TASKS", "seed=1,2", "-m: a sweep runs in one SLURM task, and this step has 4"),
]  # fmt: skip


def test_sweeps_that_cannot_be(train: Call, workplace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = set(workplace.rglob("*"))
    for variable, typed, said in SWEEPS:
        with monkeypatch.context() as patch:
            if variable:
                patch.setenv(variable, "4")
            one_line(train("-m", *typed.split()), 2, said)
    assert not [path for path in set(workplace.rglob("*")) - before if "cache" not in path.parts]
