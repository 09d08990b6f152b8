"""What the tests of the entry points share: a small text and a way to call `train.py` and `sample.py`."""

import os
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

# Models this small are fastest on one thread, and on a busy machine much faster; set before torch is loaded.
os.environ["OMP_NUM_THREADS"] = "1"

import pytest  # noqa: E402

import sample as sample_script  # noqa: E402
import train as train_script  # noqa: E402

ROOT = Path(__file__).parent.parent
# A model and a run that take a second.
TINY = (
    "model.layers=2 model.heads=2 model.dim=32 model.context=32 data.batch=8 trainer.max_steps=30 "
    "trainer.val_check_interval=10 trainer.log_every_n_steps=5 trainer.accelerator=cpu trainer.devices=1"
).split()


class Ended(NamedTuple):
    """How a command ended."""

    status: int
    out: str
    err: str


@pytest.fixture(scope="session")
def prose() -> str:
    """About 30,000 characters of made-up prose with words that repeat, as text does."""
    rng = random.Random(0)
    words = ["".join(rng.choices("abcdefghijklmnopqrstuvwxyz", k=rng.randint(2, 9))) for _ in range(300)]
    sentences = []
    while sum(map(len, sentences)) < 30_000:
        sentences.append(" ".join(rng.choices(words, k=rng.randint(4, 12))).capitalize() + rng.choice(".!?\n"))
    return " ".join(sentences)


@pytest.fixture
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, prose: str) -> Path:
    """An empty directory to work in, with book.txt, and a cache of its own."""
    (tmp_path / "book.txt").write_text(prose, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path


@pytest.fixture
def train(workplace: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> Callable[..., Ended]:
    """Calls train.py in this process, on book.txt with a tiny model unless `defaults=False`."""

    def call(*arguments: str, defaults: bool = True) -> Ended:
        given = [*TINY, "data.path=book.txt"] if defaults else []
        keys = {argument.partition("=")[0] for argument in arguments}
        keys |= {"trainer.max_steps"} if "minutes" in keys else set()
        given = [argument for argument in given if argument.partition("=")[0] not in keys]
        monkeypatch.setattr(sys, "argv", [str(ROOT / "train.py"), *given, *arguments])
        monkeypatch.setattr(train_script, "STARTED", time.perf_counter())  # each call stands for a process
        capsys.readouterr()
        status = train_script.cli()
        return Ended(status, *capsys.readouterr())

    return call


@pytest.fixture
def sample(workplace: Path, capsys: pytest.CaptureFixture) -> Callable[..., Ended]:
    """Calls sample.py in this process."""

    def call(*arguments: str) -> Ended:
        capsys.readouterr()
        try:
            status = sample_script.cli(list(arguments))
        except SystemExit as stop:
            status = int(stop.code or 0)
        return Ended(status, *capsys.readouterr())

    return call
