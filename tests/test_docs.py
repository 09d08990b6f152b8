"""The commands and the code in the docs run, long ones with their steps cut."""

import io
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import export as export_script
from tests.conftest import ROOT, Ended, caller, needs
from tests.stores import web

README = (ROOT / "README.md").read_text("utf-8")
BLOCKS = re.findall(r"^```\n(.*?)^```", README, re.MULTILINE | re.DOTALL)
COMMANDS = [line for block in BLOCKS for line in block.splitlines() if line.startswith("python ")]
# Last on the command line, so these hold.
CUT = "trainer.max_steps=2 trainer.accelerator=cpu data.batch=4 model.context=32 model.layers=1 model.dim=96".split()
CUT += ["watch.pictures=false"]  # a second process, and a second
CUT += ["data.split=[0.98,0.01,0.01]"]  # what is evaluated; of the default text, seconds


@pytest.fixture
def quick_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("train.SAMPLE_LENGTH", 5)


def test_the_readme_has_commands() -> None:
    assert len(COMMANDS) > 12


DATA_COMMANDS = re.findall(r"^python train.*", (ROOT / "docs/data.md").read_text("utf-8"), re.MULTILINE)


@pytest.mark.parametrize("command", DATA_COMMANDS)
def test_commands_of_the_page_on_data(
    command: str, train: Callable[..., Ended], quick_samples: None, request: pytest.FixtureRequest
) -> None:
    (argument, *rest) = shlex.split(command)[2:]
    Path("letters").mkdir()
    for name in "ab":
        Path(f"letters/{name}.txt").write_bytes(Path("book.txt").read_bytes())
    if "s3://" in command:
        bucket = request.getfixturevalue("bucket")
        bucket.put("books/a.txt", Path("book.txt").read_text())
        argument = argument.replace("s3://my-bucket", bucket.address)
    if "https://" in command:
        server = web(Path("letters"))
        request.addfinalizer(server.stop)
        argument = argument.replace("https://example.org", f"http://127.0.0.1:{server.port}")
    ended = train(argument, *rest, *CUT, defaults=False)
    assert ended.status == 0, ended.err
    assert "validation loss" in ended.out and "bits per character" in ended.out


def test_the_page_on_data_has_the_commands_of_the_readme() -> None:
    assert len(DATA_COMMANDS) == 3
    assert set(DATA_COMMANDS) & set(COMMANDS) == set(DATA_COMMANDS[:2])


@pytest.mark.parametrize(
    "command",
    [
        pytest.param(c, marks=[pytest.mark.slow] * any(word in c for word in (" -m ", "minutes=", "devices=")))
        for c in COMMANDS
        if "train.py" in c and not {"resume", "search"} & set(re.findall("[a-z]+", c)) and c not in DATA_COMMANDS
    ],
)
def test_training_commands_of_the_readme(
    command: str, train: Callable[..., Ended], quick_samples: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("letters/old").mkdir(parents=True)
    for number in range(3):
        Path(f"letters/old/{number}.txt").write_bytes(Path("book.txt").read_bytes())
    arguments = [argument for argument in shlex.split(command)[2:] if not argument.startswith("trainer.max_steps")]
    if any(argument.startswith(("data=", "experiment=")) for argument in arguments):
        arguments.append("data.path=book.txt")  # what would be downloaded; the downloads have their own tests
    if any(argument.startswith("experiment=") for argument in arguments):
        arguments.append("minutes=null")
    cut = CUT
    if any(argument.startswith("init_from=") for argument in arguments):
        assert train("name=first").status == 0
        Path("new.txt").write_bytes(Path("book.txt").read_bytes())
        cut = [argument for argument in CUT if not argument.startswith("model.")]  # its shape is that of the model
    if any(argument.startswith("minutes=") for argument in arguments):
        monkeypatch.setattr("gpt.fit.dial.MEASURED", 0.1)
        arguments, cut = ["minutes=0.2", "data.path=book.txt", "compile=false"], CUT[1:]
    if " -m " in command:  # the first combination; tests/conf/test_sweep.py has more
        arguments = [argument.partition(",")[0] for argument in arguments]
    if "launcher=slurm" in command:  # tests/faults/test_slurm.py has the jobs; here no program of SLURM's is found
        needs("submitit", extra="launcher")
        monkeypatch.setenv("PATH", "")
        ended = train(*arguments, *cut, defaults=False)
        said = r"train\.py: launcher=slurm: Could not detect \S+.*\n"
        assert ended.status == 2 and re.fullmatch(said, ended.err), ended
        assert not Path("runs").exists()
        return
    if "trainer.devices=4" in command:  # two processes of this machine, which are its own
        given = [*arguments, *cut, "trainer.devices=2", "data.path=book.txt"]
        started = subprocess.run([sys.executable, ROOT / "train.py", *given], capture_output=True, text=True)
        assert started.returncode == 0 and started.stdout.count("step 2/2") == 1, started
        (run,) = Path("runs").iterdir()
        settings = (run / "config.yaml").read_text()
        assert "devices: 2\n" in settings and "accelerator: cpu\n" in settings
        return
    ended = train(*arguments, *cut, defaults=False)
    assert ended.status == 0, ended.err
    assert "validation loss" in ended.out and "bits per character" in ended.out


@pytest.mark.slow
def test_commands_of_the_page_on_watching(train: Callable[..., Ended], quick_samples: None) -> None:
    page = (ROOT / "docs/watch.md").read_text("utf-8")
    commands = re.findall(r"^python train.py (.*)", page, re.MULTILINE)
    assert len(commands) == 4
    cut = [each for each in CUT if not each.startswith("model.layers")]  # whose heads are named
    for arguments in commands:
        ended = train("data.path=book.txt", *shlex.split(arguments), *cut, defaults=False)
        assert ended.status == 0, ended.err
    assert Path("runs/debug-profile/trace.json").exists()


@pytest.mark.slow
def test_commands_of_the_page_on_one_gpu(train: Callable[..., Ended], quick_samples: None) -> None:
    """On a CPU, and for two steps."""
    page = (ROOT / "docs/gpu.md").read_text("utf-8")
    commands = [shlex.split(given) for given in re.findall(r"^python train.py (.*)", page, re.MULTILINE)]
    (resumed,) = [given for given in commands if given[0].startswith("resume=")]
    assert train("name=first").status == 0
    ended = train(*resumed, "trainer.max_steps=31", defaults=False)
    assert ended.status == 0 and "step 31/31" in ended.out, ended
    for given in commands:
        if given is not resumed:
            ended = train(*given, "minutes=null", "data.path=book.txt", *CUT, defaults=False)
            assert ended.status == 0, ended.err


def test_the_page_on_one_gpu_names_all_that_is_measured() -> None:
    from benchmarks import gpu

    named = re.findall(r"^python benchmarks/gpu.py (\w+)", (ROOT / "docs/gpu.md").read_text("utf-8"), re.MULTILINE)
    assert sorted(named) == sorted([*gpu.PARTS, "table", "projection"])
    results = (ROOT / "docs/results.md").read_text("utf-8")
    assert {part for part in gpu.PARTS if part not in results} == set()


@pytest.mark.slow
def test_commands_of_the_page_on_search(train: Callable[..., Ended]) -> None:
    needs("optuna", extra="search")
    page = (ROOT / "docs/search.md").read_text("utf-8")
    commands = [line for text in (README, page) for line in text.splitlines() if "train.py hparams_search=" in line]
    assert len(commands) == 4
    cut = [*CUT, "hparams_search.trials=1", "data.path=book.txt"]
    for command in commands:
        arguments = shlex.split(command)[2:]
        ranges = {argument.partition("=")[0] for argument in arguments if "," in argument}
        more = [argument for argument in cut if argument.partition("=")[0] not in ranges]
        ended = train(*arguments, *more, defaults=False)
        assert ended.status == 0, ended.err
        assert "best again python train.py" in ended.out


def test_resuming_and_sampling_commands_of_the_readme(
    train: Callable[..., Ended],
    sample: Callable[..., Ended],
    quick_samples: None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert train("name=first").status == 0
    for command in [c for c in COMMANDS if "resume=runs" in c]:
        _, _, *arguments = shlex.split(command)
        arguments = [a if not a.startswith("trainer.max_steps") else "trainer.max_steps=32" for a in arguments]
        assert train(*arguments, defaults=False).status == 0
    samples = [c for c in COMMANDS if "sample.py" in c]
    assert len(samples) == 3
    monkeypatch.setattr("sys.stdin", io.StringIO("the \n:quit\n"))
    for command in samples:
        _, _, *arguments = shlex.split(command.replace("def ", "the ").replace("1000", "50"))
        assert sample(*arguments).status == 0


def test_commands_of_the_page_on_scores(
    train: Callable[..., Ended], score: Callable[..., Ended], monkeypatch: pytest.MonkeyPatch, quick_samples: None
) -> None:
    assert train("name=first").status == 0
    assert train("name=second", "model.context=16").status == 0
    text = (ROOT / "docs/score.md").read_text("utf-8")
    commands = [line for line in text.splitlines() if "python score.py" in line and "`" not in line]
    assert len(commands) == 9
    for command in commands:
        standard_input = io.BytesIO(Path("book.txt").read_bytes()) if command.startswith("cat ") else io.BytesIO()
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(standard_input))
        ended = score(*shlex.split(command.partition("score.py")[2]))
        assert ended.status == 0, ended.err
        assert "bits/character" in ended.out + ended.err
    assert Path("book.html").stat().st_size > 30_000 < Path("both.html").stat().st_size


def test_scoring_and_exporting_commands_of_the_readme(
    train: Callable[..., Ended], score: Callable[..., Ended], quick_samples: None, capsys: pytest.CaptureFixture
) -> None:
    assert train("name=first").status == 0 and train("name=second", "seed=1").status == 0
    scores, exports = ([c for c in COMMANDS if script in c] for script in ("score.py", "export.py"))
    assert len(scores) == 3 and len(exports) == 1
    export = caller(export_script.cli, capsys)
    for call, commands in ((score, scores), (export, exports)):
        for command in commands:
            ended = call(*shlex.split(command)[2:])
            assert ended.status == 0, ended.err
    assert Path("book.html").exists() and Path("first.html").exists()


def test_the_example_of_the_api_page_runs(train: Callable[..., Ended], workplace: Path, quick_samples: None) -> None:
    assert train("name=first").status == 0
    code = re.search(r"```python\n(.*?)```", (ROOT / "docs/api.md").read_text("utf-8"), re.DOTALL)
    assert code
    ended = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(ROOT)!r})\n{code[1]}"],
        capture_output=True,
        text=True,
    )
    assert ended.returncode == 0, ended.stderr
    assert re.search(r"\d\.\d{4} nats, \d\.\d{4} bits per character over 104 characters", ended.stdout)


def test_what_is_sent_is_what_the_page_on_clusters_says() -> None:
    computed = subprocess.run(
        [sys.executable, ROOT / "benchmarks/scaling.py", "--communication"], capture_output=True, text=True, check=True
    )
    assert computed.stdout in (ROOT / "docs/cluster.md").read_text("utf-8")
    gpt2 = 12 * 12 * 768**2 + 2 * 96 * 768  # matrices, embedding and output; vectors left out
    row = re.search(r"\| 12 layers, 768 wide \| (\S+) M \| \S+ GB \| (\S+) MB", computed.stdout)
    assert row and float(row[1]) == pytest.approx(gpt2 / 1e6, rel=1e-3)
    assert float(row[2]) == pytest.approx(2 * 4 * gpt2 / 1e6, rel=1e-3)  # a gradient in fp32 goes round twice


def test_every_promise_names_tests_that_exist() -> None:
    """docs/reliability.md: a sentence without a test is no promise."""
    text = (ROOT / "docs/reliability.md").read_text("utf-8")
    promises = re.findall(r"^- (.*(?:\n(?!\n|- |#).*)*)", text, re.MULTILINE)
    assert len(promises) > 25
    for promise in promises:
        named = re.findall(r"`(\S+\.py)::(test_\w+)`", promise)
        assert named, promise
        for file, test in named:
            path = ROOT / (file if "/" in file else f"tests/faults/{file}")
            assert f"\ndef {test}(" in path.read_text("utf-8"), f"{file}::{test}"


def test_pinned_versions_exist_on_a_public_index() -> None:
    pins = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if not line.startswith("#")]
    assert "torch==2.13.0" in pins
    for pin in pins:
        assert re.fullmatch(r"[A-Za-z0-9_.-]+==[0-9][A-Za-z0-9.]*", pin), f"{pin}: a local version, or no exact pin"


def test_every_dependency_is_pinned() -> None:
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    wanted = project["dependencies"] + [each for extra in extras.values() for each in extra]
    pinned = {
        line.partition("==")[0].lower().replace("_", "-")
        for line in (ROOT / "constraints.txt").read_text().splitlines()
    }
    for requirement in wanted:
        assert re.split(r"[<>=[]", requirement)[0].lower() in pinned
