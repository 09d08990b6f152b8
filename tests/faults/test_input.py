"""Bad input gets one line: for every option, exit status 2, and nothing is left behind."""

import dataclasses
import itertools
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from conf.fields import shown
from conf.overrides import LITERAL, PLUGGED, PLUGINS, SEARCH, fields
from conf.schema import REFUSED
from tests.conftest import ROOT, Ended


def wrong_values(hint: Any, field: dataclasses.Field) -> Iterator[str]:
    """Values that a field does not take: of another type, beyond each bound, no choice."""
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
                yield f"[{value},{value}]" if "list" in kind else shown(value)
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


def one_line(ended: Ended, program: str = "train.py") -> None:
    assert ended.status == 2, ended
    assert ended.err.startswith(f"{program}: ") and ended.err.count("\n") == 1, ended.err
    assert len(ended.err) < 500 and ended.out == ""


def test_there_is_something_for_every_option() -> None:
    covered = {key for key, _ in EVERY} | {*LITERAL, "allow", "data.encoding", *PLUGGED}
    assert covered >= set(fields()) and len(EVERY) > 300


@pytest.mark.parametrize("key", sorted({key for key, _ in EVERY}))
def test_every_option_refuses_what_it_does_not_take(key: str, train: Callable[..., Ended], workplace: Path) -> None:
    before = sorted(workplace.rglob("*"))
    plugin = [f"callbacks={key.split('.')[1]}"] if key in PLUGINS else []
    plugin += ["hparams_search=default"] if key in SEARCH else []
    for value in (value for name, value in EVERY if name == key):
        ended = train(*plugin, f"{key}={value}")
        one_line(ended)
        assert key in ended.err or key.rpartition(".")[0] in ended.err, (value, ended.err)
    assert sorted(workplace.rglob("*")) == before


OTHERS = {
    # unknown, with the nearest right name
    "model.headz=2": "nearest: model.heads",
    "optimm.lr=1": "nearest: optim.lr",
    "trainer.max_step=1": "nearest: trainer.max_steps",
    "mdel=tiny": "nearest: model",
    "model=tinny": "nearest: tiny",
    "trainer=gpuu": "nearest: gpu",
    "logger=tensorbord": "nearest: tensorboard",
    "callbacks=emma": "nearest: ema",
    "callbacks=[ema,nope]": "callbacks=nope",
    "experiment=[a,b]": "experiment=[a,b]",
    "experiment=[nanogpt_cpu,nanogpt_gpu]": "must be one of",
    "optim=[muon,adamw]": "must be one of adamw, muon",
    "heads": "must be key=value",
    "--foo": "--foo",
    "--multirum": "nearest: --multirun",
    "--cfg": "--cfg",
    "-x": "-x",
    "": "must be key=value",
    "=3": "must be key=value",
    "model.heads": "must be key=value",
    "model.heads=": "model.heads=",
    "model.heads=1,2": "-m",
    "model={layers:3}": "model=",
    "model.heads={": "cannot be read",
    "model.layers=${nope}": "nope",
    "+trainer.foo=1": "trainer.foo",
    "++optim.lr=x": "optim.lr=x",
    "~seed": "cannot be taken away",
    "hydra.foo=1": "hydra.foo: is not taken",
    "hydra.run.dir=x": "hydra.run.dir: is not taken",
    "hydra/launcher=x": "is not taken",
    "seed=range(0,1000000000)": "seed=range(0,1000000000)",
    "seed=range(0,5)": "-m",
    "-m=1": "-m=1",
    "--help=1": "--help=1",
    "logger.tensorboard.name=../../x": "logger=tensorboard takes none",
    "+logger.tensorboard.max_queue=abc": "logger=tensorboard takes none",
    # contradictory
    "model.heads=3": "must divide model.dim=32",
    "data.micro_batch=3": "must divide data.batch=8",
    "data.split=[1,0,0]": "the first two above 0",
    "data.split=[0.5,0.6,0.1]": "add up to 1",
    "optim.min_lr=1": "at most optim.lr",
    "optim.betas=[0.9]": "must be two numbers",
    "data.encoding=klingon": "is no encoding",
    "trainer.devices=0": "trainer.devices=0",
    "trainer.devices=3": "data.batch=8: must be a multiple of 3",
    "trainer.devices=[0]": "numbers are for GPUs",
    "trainer.strategy=bogus": "must be one of auto, ddp, fsdp",
    "trainer.accelerator=gpu": "this machine has only",
    "trainer.deterministic=maybe": "must be one of true, false, warn",
    "callbacks.ema.decay=0.5": "goes with callbacks=ema",
    "trainer.max_steps=1000000000000": "at most 1000000000",
    "allow=[seeed]": "goes with resume=",
    "allow=seed": "a list",
    "allow=[seed]": "resume",
    # text
    "data.path=bok.txt": "nearest: book.txt",
    "data.path=": "data.path=",
    "data.path=/dev/null": "data.path",
    "data.path=*.nothing": "no file matches",
    "data.path=bin.dat": "data.encoding",
    "data.path=utf16.txt": "data.encoding",
    "data.path=empty.txt": "is empty",
    "data.path=one.txt": "only one distinct character",
    "data.path=short.txt": "too few",
    "model.context=30000": "model.context=30000",
    "data.cache_dir=book.txt": "data.cache_dir",
    # names and runs
    "name=": "name=",
    "name=a/b/c": "or SWEEP/TRIAL",
    "name=..": "or SWEEP/TRIAL",
    "name=a\nb": "name=",
    f"name={'x' * 300}": "name=",
    "resume=": "resume=",
    "resume=nothing": "no such run",
    "resume=auto": "no unfinished run",
    "resume=book.txt": "is no run that can go on",
    "resume=.": "is no run that can go on",
} | {f"trainer.{name}=1": f"trainer.{name}: is not taken" for name in REFUSED}  # fmt: skip


@pytest.fixture
def odd_texts(workplace: Path) -> Path:
    (workplace / "bin.dat").write_bytes(bytes(range(256)) * 100)
    (workplace / "utf16.txt").write_bytes(("Zeile für Zeile\n" * 500).encode("utf-16-le"))
    (workplace / "empty.txt").touch()
    (workplace / "one.txt").write_text("a" * 5000)
    (workplace / "short.txt").write_text("abc")
    (workplace / "loop").symlink_to("loop")
    return workplace


@pytest.mark.parametrize("argument", OTHERS)
def test_other_wrong_words(argument: str, train: Callable[..., Ended], odd_texts: Path) -> None:
    before = sorted(odd_texts.rglob("*"))
    ended = train(argument)
    one_line(ended)
    assert OTHERS[argument] in ended.err, ended.err
    made = [path for path in sorted(odd_texts.rglob("*")) if path not in before]
    assert not [path for path in made if "cache" not in path.parts]


SAMPLE = {
    "nothing.ckpt": "no such model or run",
    "book.txt": "is damaged or no model file",
    "--num-chars=-1": "at least 0",
    "--num-chars=x": "must be a whole number",
    "--num-chars=99999999999": "at most",
    "--num-samples=0": "at least 1",
    "--num-samples=100000000000": "at most",
    "--temperature=-0.1": "at least 0",
    "--temperature=nan": "must be a number",
    "--temperature=inf": "at most",
    "--top-k=0": "at least 1",
    "--top-k=1.5": "must be a whole number",
    "--seed=-1": "at least 0",
    "--seed=x": "must be a whole number",
    "--seed=99999999999999999999999": "at most",
    "--device=quantum": "must be cpu, cuda",
    "--device=cuda:99": "--device cuda:99",
    "--device=meta": "must be cpu, cuda",
    "--prompt=λ": "is not in the vocabulary",
    "--promt=x": "nearest: --prompt",
    "--num-chars": "expected one argument",
    "-x": "-x",
    "a b": "no such model or run",
}


def test_every_option_of_sample(train: Callable[..., Ended], sample: Callable[..., Ended], workplace: Path) -> None:
    assert train("name=a", "trainer.max_steps=1").status == 0
    for argument, said in SAMPLE.items():
        given = [argument] if not argument.startswith("-") else ["a", argument]
        ended = sample(*given)
        one_line(ended, "sample.py")
        assert said in ended.err, (argument, ended.err)
    one_line(sample("a", "--prompt", "a\udcff"), "sample.py")
    one_line(sample("a", "b"), "sample.py")
    one_line(sample("x" * 5000), "sample.py")
    one_line(sample("runs/\nx"), "sample.py")


@pytest.mark.parametrize(
    "command",
    [
        ["train.py", "model.heads=7"],
        ["train.py", "trainer.accelerator=cuda:7"],
        ["train.py", "data.path=bok.txt"],
        ["train.py", "trainer.devices=3", "trainer.accelerator=cpu", "data.path=book.txt"],
        ["train.py", "resume=auto"],
        ["train.py", "trainer.strategy=bogus", "minutes=1"],
        ["sample.py", "nothing"],
        ["sample.py", "book.txt"],
        ["sample.py", "--top-k=0"],
    ],
    ids=" ".join,
)
def test_a_process_of_its_own_answers_in_one_line(command: list[str], workplace: Path) -> None:
    ended = subprocess.run([sys.executable, ROOT / command[0], *command[1:]], capture_output=True, text=True)
    one_line(Ended(ended.returncode, ended.stdout, ended.stderr), command[0])


@pytest.mark.parametrize("variable", ["RANK", "LOCAL_RANK", "WORLD_SIZE"])
def test_variables_that_hold_no_number(
    variable: str, train: Callable[..., Ended], monkeypatch: pytest.MonkeyPatch
) -> None:
    if variable == "WORLD_SIZE":  # which has a meaning beside it only
        monkeypatch.setenv("RANK", "0")
    for value in ("abc", "", "-1"):
        monkeypatch.setenv(variable, value)
        ended = train()
        one_line(ended)
        assert f"{variable}={value}: this environment variable must be a whole number" in ended.err


def test_arguments_of_callbacks(train: Callable[..., Ended]) -> None:
    for argument, said in (
        ("+callbacks.ema.start_step=abc", "callbacks=ema takes decay"),
        ("callbacks.ema._target_=nope.Nope", "callbacks=ema takes decay"),
        ("+callbacks.early_stopping.divergence_threshold=abc", "takes monitor, patience, min_delta"),
        ("callbacks.early_stopping.min_delta=abc", "must be a number, at least 0"),
    ):
        ended = train("callbacks=[ema,early_stopping]", argument)
        one_line(ended)
        assert said in ended.err


def test_sweeps_that_cannot_be(train: Callable[..., Ended], workplace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = sorted(workplace.rglob("*"))
    for arguments, said in (
        (["resume=runs/first", "seed=1,2"], "resume=runs/first: a sweep goes on with the command that began it"),
        (["seed=range(0,1000000)"], "more than 10,000 values"),
        (["model.heads=2,4,5"], "model.heads=5: must divide model.dim=32"),
        (["model.heads=2,3", "model.dim=48,32"], "model.heads=3: must divide model.dim=32"),
        (["data.batch=8,9", "trainer.devices=2"], "data.batch=9: must be a multiple of 2 devices"),
        (["seed=1,2", "data.path=bok.txt"], "nearest: book.txt"),
        (["seed=1,2", "model.context=20,20000"], "model.context"),
        (["seed=1,2", "init_from=nothing"], "nothing: no such model or run"),
        (["seed=1,2", "name=a/b"], "name=a/b: the name of a sweep has no slash"),
        (["seed=1,2", "name=book.txt/../.."], "name="),
        (["seed=1,2", "workers=0"], "workers=0: must be a whole number, at least 1"),
        (["seed=1,2", "workers=1,2"], "workers: is the same for all trials of a sweep"),
        (["optim.lr=interval(0.1,1)"], "optim.lr=interval(0.1,1): names no values to try"),
    ):
        ended = train("-m", *arguments)
        one_line(ended)
        assert said in ended.err, ended.err
    for variables, said in (
        ({"TORCHELASTIC_RUN_ID": "5"}, "-m: torchrun starts the processes of one run"),
        ({"SLURM_STEP_NUM_TASKS": "4"}, "-m: a sweep is one task of SLURM's, and this step has 4"),
    ):
        with monkeypatch.context() as patch:
            for name, value in variables.items():
                patch.setenv(name, value)
            ended = train("-m", "seed=1,2")
        one_line(ended)
        assert said in ended.err
    ended = train("workers=2")
    one_line(ended)
    assert "workers: goes with -m" in ended.err
    assert [path for path in sorted(workplace.rglob("*")) if path not in before and "cache" not in path.parts] == []


def test_a_model_that_no_memory_holds(train: Callable[..., Ended]) -> None:
    ended = train("model.dim=131072", "model.heads=1024")
    one_line(ended)
    assert "out of memory" in ended.err


def test_no_two_wrong_words_make_a_traceback(train: Callable[..., Ended]) -> None:
    for first, second in itertools.islice(itertools.combinations(list(OTHERS)[:40], 2), 0, None, 9):
        one_line(train(first, second))
