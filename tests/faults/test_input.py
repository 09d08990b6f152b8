import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT, TINY, one_line

WRONG = {  # what is typed, and what is said of it
    # a value that its key does not accept: of another type, not a number, out of range, not one of
    # the choices
    "data.overfit=32": "above model.context=32",
    "model.heads=0": "model.heads=0: must be", "seed=null": "seed=null:",
    "compile=null": "auto, true, false",
    "seed=[1]": "seed=[1]: must be", "optim.lr=nan": "optim.lr=nan: must be",
    "data.split=[1,0,0]": "the first two above 0",
    "model.norm=nonsense": "model.norm=nonsense: must be",
    "--multirum": "--multirum: no such flag; nearest: --multirun; must be key=value or one of",
    # no key=value, or not as Hydra means it; the nearest right names: tests/conf/test_overrides.py
    "~model.heads": "must be key=value", "model@trainer=small": "no such key",
    "model.heads=a b (": """; put text in quotes: 'model.heads="a b ("'""",
    "data=book.txt": "or for a text data.path=FILE",
    "data.path=a${.txt": "data.path: ", "": "must be key=value",
    ("--data.path", "book.txt"): "nearest: data.path",
    ("data.path", "=", "x"): "without spaces around =",
    "0.5": "such as model.heads=8\n",
    "mine/whole.yaml": "--config-dir=FOLDER experiment=NAME",
    "book.txt": "to train on a text: data.path=book.txt", ("--config-name", "x"): "--config-name: no such flag",
    f"data.path={'x' * 300}": f"data.path={'x' * 300}: ",
    ("--config-dir", "nowhere"): "--config-dir nowhere: has no preset",
    "callbacks={x:{_target_:y}}": "names a class", "model.heads={": "model.heads={: cannot be read as a value",
    "model.layers=${nope}": "nope", "seed=range(0,5)": "seed=range(0,5): several values need -m\n",
    f"data.split={800 * '['}1{800 * ']'}": "nested too deeply",
    "data.split=0.8,0.1,0.1": "a list is 'data.split=[0.8,0.1,0.1]'",
    "logger.tensorboard.name=../../x": "logger=tensorboard accepts none",
    "callbacks.ema.share=0.5": "needs callbacks=ema",
    # groups of presets
    "debug=fsat": "debug=fsat: must be one of fast, overfit, profile; n",
    "callbacks=null": "callbacks=null: must be one of auto", "model=../data/stdlib": "must be one of auto",
    ("hparams_search=nope",): "must be one of default",
    ("callbacks=ema", "callbacks.ema._target_=os.system"): "must be the option of a preset",
    ("callbacks=ema", "callbacks.ema=${oc.create:{_target_:os.getcwd}}"): "must be the option of a preset",
    ("logger=wandb", "logger.wandb.project=[[{_target_:os.getcwd}]]"): "names a class",
    "callbacks.ema=3": "must be the option of a preset", "seed={a: true}": "seed={a:true}: must be a whole number",
    "+trainer.strategy=ddp": "is not accepted; use trainer.devices", "+trainer.min_steps=0": "at least 1, or null",
    "trainer.more.inference_mode=3": "trainer.more.inference_mode=3: must be true or false, or null",
    "name=a/": "name=", "name=../a": "name=", "name=.hidden": "name=",
    "data.path=book.txt,book.txt": "'data.path=[book.txt,book.txt]'",
    # contradictory
    "data.micro_batch=3": "must divide data.batch=8",
    "optim.min_lr=1": "at most optim.lr", "optim.betas=[0.9]": "must be two numbers",
    ("minutes=1", "trainer.max_steps=5"): "minutes=1: ", ("minutes=1", "optim=nanogpt"): "needs optim.schedule=",
    "trainer.devices=0": "trainer.devices=0",
    "trainer.devices=3": "data.batch=8: must be a multiple of 3",
    "workers=2": "workers: only works with -m",
    "allow=seed": "allow=seed: must be a list of texts, such as 'allow=[seed]'",
    "allow=[seed]": "only works with resume=",
    ("model.dim=131072", "model.heads=1024"): "lower model.dim=131072, model.layers=2 or",
    # texts, names and runs; more in tests/data/ and tests/base/jobs/
    "data.path=": "data.path=",
    "name=a\nb": "or SWEEP/TRIAL", f"name={'x' * 300}": "name=", "resume=": "resume=",
    ("callbacks=[early_stopping]", "callbacks.early_stopping.monitor=val_loss"): "one of val/loss, val/bpc, val/bpb",
    ("callbacks=[early_stopping]", "callbacks.early_stopping.patience=-1"): "auto or a whole number, at least 0",
    "resume=book.txt": "is not a run that can continue",
    # sweeps
    "-m resume=runs/first seed=1,2": "resume=runs/first: to continue a sweep, repeat its command",
    "-m seed=range(0,1000000)": "must have 1 to 10,000 values",
    "-m seed=5,range(1,3)": "write seed=a,b,c or seed=range(a,b)",
    "-m model.heads=2,3 model.dim=48,32": "model.heads=3: must divide model.dim=32",
    "-m seed=1,2 name=a/b": "must not contain a slash",
    "-m seed=1,2 init_from=nothing": "nothing: no such model, nor a run in /",
    "-m init_from=first model.dim=32,64": "cannot change model.dim=64 (the model has 32)",
    "-m seed=1,2 debug=fast": "debug: only works for one run",
    "-m seed=1,2 workers=1,2": "workers: must have one value",
    "-m optim.lr=interval(0.1,1)": "optim.lr=interval(0.1,1): write optim.lr=a,b,c",
    "-m hparams_search=default": "hparams_search=: cannot be combined with -m",
    "-m seed=range(0,1000) model.heads=range(0,1000)": "1,000,000 combinations",
}  # fmt: skip


@pytest.mark.promise
@pytest.mark.parametrize(("typed", "said"), WRONG.items(), ids=lambda part: ascii(part)[:60])
def test_wrong_words(train, trained, typed, said):
    before = set(os.listdir()) - {"cache"}, set(Path("runs").rglob("*"))
    if not isinstance(typed, tuple):
        typed = typed.split() if typed.startswith("-m ") else [typed]
    ended = train(*typed)
    one_line(ended, 2, said)
    assert ended.out == ""
    assert (set(os.listdir()) - {"cache"}, set(Path("runs").rglob("*"))) == before


def test_commands_have_one_version(sample, train):
    assert sample("--version").out == train("--version").out != ""


VARIABLES = {
    "RANK=abc": "whole number", "LOCAL_RANK=": "whole number", "OMP_NUM_THREADS=0": "whole number",
    "RANK=1": "without LOCAL_RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT; unset it, or start with",
}  # fmt: skip


@pytest.mark.parametrize("variable", VARIABLES)
def test_variables_that_cannot_be(train, monkeypatch, variable):
    monkeypatch.setenv(*variable.split("="))
    one_line(train(), 2, f"{variable}: ", VARIABLES[variable])


@pytest.mark.slow
def test_closed_standard_streams_change_nothing(workplace):
    command = f"{ROOT}/train.py data.path=book.txt name=second {' '.join(TINY)}"
    line = f"exec {sys.executable} {command} <&- >&-"
    ended = subprocess.run(["sh", "-c", line], stderr=subprocess.PIPE, text=True)
    assert ended.returncode == 0 and "Traceback" not in ended.stderr, ended
    assert Path("runs/second/report.html").exists()


def test_a_sweep_is_one_process(train, monkeypatch):
    for variable in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.setenv(variable, "0")  # as torchrun does, and `adopt_srun` for srun
    one_line(train("-m", "seed=1,2"), 2, "-m: a sweep is one process")
    assert not Path("runs").exists()


def test_a_file_name_that_is_not_utf8_works(train, score, sample, export):
    name = os.fsdecode(b"caf\xe9.txt")
    Path("book.txt").rename(name)
    assert train(f"data.path={name}", "name=cafe", "logger=tensorboard").status == 0
    assert "text       caf\ufffd.txt: " in Path("runs/cafe/train.log").read_text("utf-8")
    assert train("resume=runs/cafe", "trainer.max_steps=40", defaults=False).status == 0
    for ended in (
        score("cafe", name, "--window", "disjoint"),
        sample("cafe", "--prompt-file", name, "--num-chars", "9", "--novelty"),
        export("cafe", "--to", "web", "page.html"),
    ):
        assert ended.status == 0, ended
    pages = [*Path("runs/cafe").glob("*.html"), Path("page.html")]
    assert not [page for page in pages if "\\udce9" in page.read_text("utf-8")]


def test_a_directory_of_runs_that_cannot_be_made_is_found_before_the_text_is_encoded(train):
    Path("runs").touch()
    one_line(train(), 2, "runs/", "cannot be created: ", "Not a directory")
    assert not Path("cache").exists()


@pytest.mark.parametrize("script", ["train.py", "sample.py", "score.py", "export.py"])
def test_commands_start_without_their_folder_on_the_path(script):
    environment = os.environ | {"PYTHONSAFEPATH": "1"}
    given = [sys.executable, str(ROOT / script), "--help"]
    assert b"usage: " in subprocess.check_output(given, env=environment)
