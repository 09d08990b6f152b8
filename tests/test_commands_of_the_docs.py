"""Each command and each block on a page is run here, or parsed by its program, or its test is named in a table."""

import argparse
import importlib.util
import json
import math
import re
import runpy
import shlex
import subprocess
import sys
import tomllib
import warnings
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple
from urllib.request import urlopen

import pytest
import yaml

import export as export_script
import sample as sample_script
import score as score_script
from tests.conftest import ROOT, needs
from tests.stores import make

FILES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
PAGES = {str(path.relative_to(ROOT)): path.read_text("utf-8") for path in FILES}


class Block(NamedTuple):
    page: str
    language: str
    text: str


class Command(NamedTuple):
    page: str
    line: str

    def __str__(self):
        return f"{self.page}: {self.line}"


FENCED = re.compile(r"^( *)```(\w*)\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
BLOCKS = [
    Block(page, language, re.sub(f"^{indent}", "", text, flags=re.MULTILINE))
    for page, content in PAGES.items()
    for indent, language, text in FENCED.findall(content)
]
PROGRAMS = (
    r"(?:[A-Z_]+=\S+ )*(?:\.venv/bin/)?(?:python3?|pip|make|uv|torchrun|tensorboard|sbatch|tmux|nohup|curl|git|cat|"
    r"export|jupyter|pre-commit|\.)"
)


def commands_of(page):
    """The commands of a page: lines of its blocks of a shell, and what stands in backquotes, also over two lines."""
    for block in BLOCKS:
        if block.page == page and is_shell(block):
            lines = block.text.replace("\\\n", " ").splitlines()
            yield from (" ".join(line.split()) for line in lines if line)
    for span in re.findall(r"`([^`]+)`", FENCED.sub("", PAGES[page])):
        if re.match(rf"{PROGRAMS}\s+\S", span):
            yield " ".join(span.split())


def is_shell(block):
    return not block.language and re.match(rf"{PROGRAMS}\s", block.text) is not None


COMMANDS = [Command(page, line) for page in PAGES for line in dict.fromkeys(commands_of(page))]


def words(line):
    """The simple commands of a line, a list of words each; `<sweep>` and `=M` stand for a name and a number."""
    line = re.sub(r"=[A-Z]\b", "=1", re.sub(r"<(\w+)>", r"\1", line))
    tokens = shlex.shlex(line.replace("$'", "'"), posix=True, punctuation_chars=True)
    tokens.whitespace_split = True
    commands = [[]]
    for token in tokens:
        if token in ("|", "&", "&&", ";"):
            commands.append([])
        else:
            commands[-1].append(token)
    return [command for command in commands if command]


def make_targets(page, arguments):
    makefile = (ROOT / "Makefile").read_text("utf-8")
    for argument in arguments:
        name, assigned, _ = argument.partition("=")
        pattern = rf"^{name} :=|\({name}\)" if assigned else rf"^{name}:"
        if not re.search(pattern, makefile, re.MULTILINE):
            raise LookupError(f"Makefile has no {name}")


def pip(page, arguments):
    from pip._internal.commands import create_command

    options, packages = create_command(arguments[0]).parse_args(arguments[1:])
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for package in [*packages, *options.editables]:
        for extra in re.findall(r"^\.\[(.*)\]$", package):
            assert extra in extras["optional-dependencies"]
    assert (ROOT / "constraints.txt").exists()


class Parsed(BaseException):
    """Raised where a script has parsed its arguments."""


def script(page, name, arguments):
    """Parse by the script itself, which goes no further; a page may say which file to save a program as."""
    if not (ROOT / name).exists():
        if f"as `{name}`" not in PAGES[page]:
            raise FileNotFoundError(name)
        return
    with pytest.MonkeyPatch.context() as patch, suppress(Parsed):
        original = argparse.ArgumentParser.parse_args

        def parse(*given):
            original(*given)
            raise Parsed

        patch.setattr(argparse.ArgumentParser, "parse_args", parse)
        patch.setattr(sys, "argv", [str(ROOT / name), *arguments])
        patch.syspath_prepend(str((ROOT / name).parent))
        if "argparse" in (ROOT / name).read_text() or "make_parser" in (ROOT / name).read_text():
            runpy.run_path(str(ROOT / name), run_name="__main__")
            raise AssertionError(f"{name} parses no arguments")
        assert all(list((ROOT / name).parent.glob(f"{each}_*")) for each in arguments)


OTHERS = {
    "sample.py": sample_script.make_parser().parse_args,
    "score.py": score_script.parse,
    "export.py": export_script.parse,
}


def python(page, arguments):
    first, *others = arguments
    if first == "-m":
        assert importlib.util.find_spec(others[0])
        assert all((ROOT / each).exists() for each in others[1:] if each.startswith("tests/"))
    elif first in OTHERS:
        OTHERS[first](others)
    elif first != "train.py":  # which is called below
        script(page, first, others)


def torchrun(page, arguments):
    from torch.distributed.run import get_args_parser

    assert get_args_parser().parse_args(arguments).training_script == "train.py"


def tensorboard(page, arguments):
    warnings.filterwarnings("ignore", "html5lib's sanitizer", DeprecationWarning)
    from tensorboard import default, program

    program.TensorBoard(default.get_plugins()).configure(argv=["tensorboard", *arguments])


def sbatch(page, arguments):
    """What SLURM reads before the script; tests/faults/test_slurm.py submits it."""
    place = next(place for place, each in enumerate(arguments) if not each.startswith("-"))
    known = {"job-name", "nodes", "time", "array"}
    assert {each[2:].partition("=")[0] for each in arguments[:place]} <= known
    subprocess.run(["bash", "-n", ROOT / arguments[place]], check=True)


def git(page, arguments):
    if arguments[0] == "grep":
        subprocess.run(["git", *arguments], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    else:
        assert arguments == ["lfs", "pull"]


def curl(page, arguments):
    address = arguments[-1]
    if not address.startswith("https:"):  # then a program of the page answers
        assert address.rpartition(":")[2].strip("/") in "".join(
            block.text for block in BLOCKS if block.page == page and block.language == "python"
        )


def one_of(*known):
    def check(page, arguments):
        assert arguments[0] in known

    return check


CHECKS = {
    "python": python, "python3": python, "pip": pip, "make": make_targets, "torchrun": torchrun,
    "tensorboard": tensorboard, "sbatch": sbatch, "git": git, "curl": curl,
    "nohup": lambda page, arguments: check_command(page, arguments),
    "tmux": one_of("new", "attach"), "uv": one_of("pip"), "jupyter": one_of("lab"), "pre-commit": one_of("install"),
    ".": one_of(".venv/bin/activate"), "cat": one_of("book.txt"),
    "export": one_of("TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1"),
}  # fmt: skip


def check_command(page, command):
    while re.match("[A-Z_]+=", command[0]):
        command = command[1:]
    program, *arguments = command
    arguments = arguments[: arguments.index(">")] if ">" in arguments else arguments
    CHECKS[program.removeprefix(".venv/bin/")](page, arguments)


@pytest.mark.parametrize("command", COMMANDS, ids=str)
def test_every_command_is_one_that_its_program_takes(command):
    for simple in words(command.line):
        try:
            check_command(command.page, simple)
        except (Exception, SystemExit) as error:
            pytest.fail(f"{command}\n{error!r}")


def training_commands():
    """The arguments of each command of train.py, also of one that a launcher or SLURM starts."""
    for command in COMMANDS:
        for simple in words(command.line):
            for program in ("train.py", "docs/train.sbatch"):
                if program in simple:
                    arguments = simple[simple.index(program) + 1 :]
                    yield arguments[: arguments.index(">")] if ">" in arguments else arguments


@pytest.mark.slow
def test_every_training_command_is_taken(train, monkeypatch):
    needs("optuna", extra="search")
    begun = Counter()
    make(Path(), dict.fromkeys(("a.txt", "b.txt", "c.txt"), Path("book.txt").read_text()))
    for kind in ("training.run.main", "train.begin_sweep", "sweeps.search.begin_search"):
        monkeypatch.setattr(kind, lambda *_, kind=kind: begun.update([kind]) or 0)
    expected = Counter()
    refused = []
    for arguments in training_commands():
        typed = " ".join(arguments)
        if "--runs" in arguments:
            for name in arguments[1:]:
                make(Path("runs", name.replace("*", "0")), {"config.yaml": ""})
        elif "--help" not in typed:
            kind = (
                "sweeps.search.begin_search" if "hparams_search" in typed else "training.run.main"
            )
            expected["train.begin_sweep" if "-m" in arguments else kind] += 1
        # whose text is opened before
        several = "-m" in arguments or "hparams_search" in typed
        text = ["data.path=book.txt"] * (several and "data.path" not in typed)
        ended = train(*arguments, *text, defaults=False)
        if (ended.status, ended.err) != (0, ""):
            refused.append((arguments, ended.err))
    assert refused == []
    assert begun == expected and begun.total() > 35


def run_example(program):
    program = f"import sys; sys.path.insert(0, {str(ROOT)!r})\n{program}"
    return subprocess.run(
        [sys.executable, "-c", program], check=True, stdout=subprocess.PIPE, text=True
    ).stdout


def trains(program):
    """The page on Python trains with gpt and torch alone."""
    assert len(re.findall(r"^.+$", program, re.MULTILINE)) <= 30
    loaded = "print(sorted({'lightning', 'hydra', 'omegaconf', 'conf', 'training', 'data'} & set(sys.modules)))"
    out = run_example(f"{program}\n{loaded}")
    loss = re.match(r"(\d\.\d{3}) nats per character\n", out)
    assert loss and out.endswith("[]\n")
    text = Path("book.txt").read_text("utf-8")
    entropy = -sum(n / len(text) * math.log(n / len(text)) for n in Counter(text).values())
    # far below what the frequencies of single characters give
    assert float(loss[1]) < entropy - 0.5
    assert len(out.removesuffix("[]\n")) == len(loss[0]) + 10 + 200 + 1


def scores(program):
    out = run_example(program)
    assert re.search(r"\d\.\d{4} nats, \d\.\d{4} bits per character over 104 characters", out)


def writes(program):
    assert len(run_example(program)) == len("ROMEO:") + 200 + 1


def serves(program):
    """A server of the standard library answers a text with one that begins with it; its port is a free one here."""
    program = re.sub(r'\(("[\d.]*"|""), \d+\)', r"(\1, 0)", program)
    program = program.replace("HTTPServer(", "Announced(")
    announced = (
        f"import sys; sys.path.insert(0, {str(ROOT)!r})\nimport http.server\n"
        "class Announced(http.server.HTTPServer):\n"
        "    def server_activate(self):\n"
        "        super().server_activate()\n"
        "        print(self.server_port, flush=True)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", announced + program],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as server:
        try:
            address = f"http://127.0.0.1:{int(server.stdout.readline())}/"
            data = None if "do_GET" in program else b"ROMEO:"
            with urlopen(address, data=data, timeout=60) as answer:
                text = answer.read().decode()
            assert len(text) > 50 and (data is None or text.startswith("ROMEO:"))
        finally:
            server.terminate()


def converts(program):
    pieces = ["hi ", {"type": "link", "text": "a.org"}]
    Path("result.json").write_text(json.dumps({"messages": [{"from": "Ann", "text": pieces}]}))
    run_example(program)
    line = {"from": "Ann", "text": "hi a.org"}
    assert json.loads(Path("chat.jsonl").read_text()) == line


def nothing(program):
    """tests/test_export.py runs all blocks of the page on exports."""
    assert program in PAGES["docs/export.md"]


# How a block of Python is run, by words of it; the first that fits.
EXAMPLES = {
    "make_optimizer": trains, "http.server": serves, "evaluate(": scores, "result.json": converts,
    "onnxruntime": nothing, "from transformers": nothing, 'encode("ROMEO:")': writes,
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(
    "block",
    [
        pytest.param(each, marks=[] if "make_optimizer" in each.text else [pytest.mark.promise])
        for each in BLOCKS
        if each.language == "python"
    ],
    ids=lambda block: f"{block.page}: {block.text.splitlines()[0]}",
)
def test_every_block_of_python_runs(block, trained, workplace):
    for folder in ("docs", "benchmarks"):
        (workplace / folder).symlink_to(ROOT / folder)
    fits = [run for word, run in EXAMPLES.items() if word in block.text]
    assert fits, f"{block.page}: which test runs this?\n{block.text}"
    fits[0](block.text)


def ends_the_first_run(block, sample, score):
    printed = (ROOT / "docs/first_run.txt").read_text("utf-8")  # by docs/first_run.py
    assert " ".join(block.text.split()) in " ".join(printed.split())


def is_written(block, sample, score):
    """The command stands in the block before."""
    before = BLOCKS[BLOCKS.index(block) - 1]
    (command,) = words(before.text)
    assert command[:2] == ["python", "sample.py"]
    assert sample(*command[2:]).out.rstrip("\n") == block.text.rstrip("\n")


def is_a_score(block, sample, score):
    """Of another model and a text that it was not trained on: the same lines with other figures."""
    book = Path("book.txt")
    book.write_text(book.read_text("utf-8")[::-1], "utf-8")
    ended = score("first", "book.txt")
    shown, printed = (
        [re.sub(r"[\d.,]+", "0", " ".join(line.split())) for line in text.splitlines()]
        for text in (block.text, ended.err + ended.out)
    )
    assert shown == printed


def is_of_tests(block, sample, score):
    """tests/conf/test_defaults.py and tests/reference/ have the formulas."""


# What a block without a language shows, if not commands, by how it begins.
SHOWN = {
    "validation loss ": ends_the_first_run, "Be away": is_written, "runs/first/checkpoints": is_a_score,
    "norm(x": is_of_tests,
}  # fmt: skip


@pytest.mark.parametrize(
    "block",
    [each for each in BLOCKS if each.language != "python" and not is_shell(each)],
    ids=lambda block: f"{block.page}: {block.text.splitlines()[0]}",
)
def test_every_other_block_is_what_is_printed(block, trained, workplace, sample, score):
    (workplace / "docs").symlink_to(ROOT / "docs")
    if block.language == "yaml":
        (value,) = yaml.safe_load(block.text).values()
        assert isinstance(value, dict)
    elif block.language == "mermaid":
        assert block.page == "docs/architecture.md"
    else:
        fits = [check for word, check in SHOWN.items() if block.text.startswith(word)]
        assert fits, f"{block.page}: neither commands nor a known output\n{block.text}"
        fits[0](block, sample, score)


def test_the_demo_is_the_page_that_the_command_of_its_docs_writes(export, tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    demo = "docs/demo/shakespeare.html"
    (command,) = (each.line for each in COMMANDS if f"--to web {demo}" in each.line)
    page = tmp_path / "page.html"
    ended = export(*shlex.split(command.replace(demo, shlex.quote(str(page))))[2:])
    assert ended.status == 0, ended
    assert "\n6 passages of " in ended.out
    if page.read_bytes() != Path(demo).read_bytes():  # assert would print both
        pytest.fail(
            f"{demo} is not the page that the present code writes; make it anew: {command}"
        )
