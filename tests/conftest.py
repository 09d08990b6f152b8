"""What the tests of the entry points share: a small text and a way to call `train.py` and `sample.py`."""

import csv
import importlib.util
import io
import json
import os
import random
import shutil
import sys
import sysconfig
import tempfile
import time
from contextlib import ExitStack, contextmanager, redirect_stdout
from functools import partial
from pathlib import Path
from typing import NamedTuple

# Models this small are fastest on one thread, and on a busy machine much faster; set before torch
# is loaded.
os.environ["OMP_NUM_THREADS"] = "1"
os.environ["ORT_DISABLE_TELEMETRY"] = "1"
# torchmetrics imports matplotlib, which would write its list of fonts into the cache of a test.
os.environ.setdefault("MPLCONFIGDIR", os.path.join(tempfile.gettempdir(), "matplotlib"))

import pytest  # noqa: E402

import export as export_script  # noqa: E402
import sample as sample_script  # noqa: E402
import score as score_script  # noqa: E402
import train as train_script
from base import processes  # noqa: E402

ROOT = Path(__file__).parent.parent
# A model and a run that take a second.
TINY = (
    "model.layers=2 model.heads=2 model.dim=32 model.context=32 data.batch=8 trainer.max_steps=30 "
    "trainer.val_check_interval=10 trainer.log_every_n_steps=5 trainer.accelerator=cpu trainer.devices=1 "
    "watch.pictures=false"  # which take time; tests/training/callbacks/test_watch.py has them
).split()


class Ended(NamedTuple):  # how a command ended
    status: int
    out: str
    err: str


def summary(run):
    """What runs/RUN/summary.json says."""
    return json.loads(Path("runs", run, "summary.json").read_text())


def table(sweep):
    """The rows of runs/SWEEP/sweep.csv."""
    with open(Path("runs", sweep, "sweep.csv"), newline="") as file:
        return list(csv.DictReader(file))


def last(run):
    """The newest training checkpoint of runs/RUN."""
    import torch

    return torch.load(Path("runs", run, "checkpoints/last.ckpt"))


def assert_same_weights(*runs):
    """Two runs have come to the same weights, bit for bit."""
    import torch

    weights = [last(run)["state_dict"] for run in runs]
    torch.testing.assert_close(*weights, rtol=0, atol=0)


def board(run):
    """All that the event files of runs/RUN hold."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    accumulator = EventAccumulator(
        str(Path("runs", run)), size_guidance={"tensors": 0, "scalars": 0}
    )
    accumulator.Reload()
    return accumulator


def less_progress(err):
    """What a process has said on standard error, but for how far slow work is on a busy machine."""
    return "".join(
        line for line in err.splitlines(True) if not line.endswith((" so far\n", " left\n"))
    )


def from_here(text):
    """Drop the path of the program from printed commands, which have it because the workplace is another folder."""
    return text.replace(f"python {ROOT}/", "python ")


def refusal(error, call, *given, **named):
    """The one line that a call raises."""
    with pytest.raises(error) as caught:
        call(*given, **named)
    message = str(caught.value)
    assert len(message.splitlines()) == 1, message
    return message


def tiny(arguments):
    """Overrides on top of a tiny model on book.txt."""
    keys = {argument.partition("=")[0] for argument in arguments}
    keys |= {"trainer.max_steps"} if "minutes" in keys else set()
    return [
        *(each for each in [*TINY, "data.path=book.txt"] if each.partition("=")[0] not in keys),
        *arguments,
    ]


def one_line(ended, status, *words, program="train.py"):
    """A command has ended with that status and one line on standard error, in which these words are."""
    assert (
        ended.status == status
        and ended.err.startswith(f"{program}: ")
        and ended.err.count("\n") == 1
    ), ended
    assert len(ended.err) < 500 and all(word in ended.err for word in words), (words, ended.err)


def missing(reason):
    """Skip a test for want of something that users may do without; where CI=true it must be there."""
    if os.environ.get("CI"):
        pytest.fail(f"CI lacks what this test needs: {reason}")
    pytest.skip(reason)


def needs(*packages, extra="export"):
    """Skip a test unless the packages of an extra, or without one the modules of Python, are installed."""
    for package in packages:
        if importlib.util.find_spec(package) is None:
            missing(f"no {package} (extra {extra})" if extra else f"no {package}")


def needs_compiler():
    compiler = os.environ.get("CXX", "g++")
    if shutil.which(compiler) is None:
        missing(f"no C++ compiler {compiler}")
    if not Path(sysconfig.get_path("include"), "Python.h").exists():
        missing("no Python.h")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items):
    """Slow tests come first, so that no worker is left alone with one at the end."""
    items.sort(key=lambda item: item.get_closest_marker("slow") is None)


@pytest.fixture(autouse=True)
def at_any_speed(monkeypatch):
    """How busy the machine is does not show in what a command says."""
    monkeypatch.setattr("base.progress.LINE_SECONDS", 1e6)


@pytest.fixture(scope="session")
def browser():
    """Headless Chromium: a `playwright` browser without a network."""
    needs("playwright", extra="ci")
    from playwright.sync_api import sync_playwright

    program = shutil.which("chromium") or shutil.which("google-chrome")
    if program is None:
        missing("no chromium (package chromium)")
    options = ["--no-sandbox", "--disable-gpu"]
    with sync_playwright() as playwright:
        with playwright.chromium.launch(executable_path=program, args=options) as browser:
            yield browser


@contextmanager
def pages(browser):
    """Opens pages from their files without a network; they must ask for nothing else and report no error."""
    complaints = []

    def open_page(file, ready="body[data-ready]", **options):
        page = contexts.enter_context(browser.new_context(offline=True, **options)).new_page()
        page.on(
            "request",
            lambda request: request.url == file.as_uri() or complaints.append(request.url),
        )
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.goto(file.as_uri())
        page.wait_for_selector(ready, timeout=20_000)
        return page

    with ExitStack() as contexts:
        yield open_page
    assert complaints == []


@pytest.fixture(scope="session")
def prose():
    """About 30,000 characters of made-up prose with words that repeat, as text does."""
    rng = random.Random(0)
    words = [
        "".join(rng.choices("abcdefghijklmnopqrstuvwxyz", k=rng.randint(2, 9))) for _ in range(300)
    ]
    sentences = []
    while sum(map(len, sentences)) < 30_000:
        sentences.append(
            " ".join(rng.choices(words, k=rng.randint(4, 12))).capitalize() + rng.choice(".!?\n")
        )
    return " ".join(sentences)


def work_in(place, patch, prose):
    """Work in a directory with book.txt, and a cache of its own."""
    (place / "book.txt").write_text(prose)
    patch.chdir(place)
    patch.setenv("XDG_CACHE_HOME", str(place / "cache"))
    return place


@pytest.fixture
def workplace(tmp_path, monkeypatch, prose):
    """An empty directory to work in, with book.txt, and a cache of its own."""
    return work_in(tmp_path, monkeypatch, prose)


def train_in(patch, arguments):
    given = [str(ROOT / "train.py"), *arguments]
    patch.setattr(sys, "argv", [*given])
    patch.setattr(processes, "BEGAN", time.perf_counter())  # each call stands for a process
    status = train_script.cli()
    assert status or sys.argv == given, "other ranks are started with it"
    return status


@pytest.fixture
def train(workplace, monkeypatch, capsys):
    """Calls train.py in this process, on book.txt with a tiny model unless `defaults=False`."""

    call = caller(partial(train_in, monkeypatch), capsys)
    return lambda *arguments, defaults=True: call(*(tiny(arguments) if defaults else arguments))


@pytest.fixture(scope="session")
def trained_once(tmp_path_factory, prose):
    """A directory with book.txt and the finished run runs/first, which is trained once for all tests."""
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(io.StringIO()):
        place = work_in(tmp_path_factory.mktemp("trained"), patch, prose)
        assert train_in(patch, tiny(("name=first",))) == 0
    return place


@pytest.fixture
def trained(trained_once, workplace):
    """The best model of runs/first, a finished run in the workplace: what `train("name=first")` leaves there."""
    shutil.copytree(trained_once, workplace, symlinks=True, dirs_exist_ok=True)
    return Path("runs/first/checkpoints/best.safetensors")


def caller(cli, capsys):
    """Call a command in this process."""

    def call(*arguments):
        capsys.readouterr()
        try:
            status = cli(list(arguments))
        except SystemExit as stop:  # a signal has stopped it
            status = int(stop.code or 0)
        return Ended(status, *map(from_here, capsys.readouterr()))

    return call


def command(cli):
    """Return a fixture that calls a command in this process."""
    return pytest.fixture(lambda workplace, capsys: caller(cli, capsys))


sample = command(sample_script.cli)
score = command(score_script.cli)
export = command(export_script.cli)
