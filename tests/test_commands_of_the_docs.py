"""Each command and each block on a page is run here, or parsed by its program, or said where it is tested."""

import argparse
import importlib.util
import re
import runpy
import shlex
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from http.server import HTTPServer
from pathlib import Path
from textwrap import dedent
from typing import NamedTuple
from unittest.mock import Mock
from urllib.request import urlopen

import pytest
import yaml

import export as export_script
import sample as sample_script
import score as score_script
from tests.conftest import ROOT, needs
from tests.folders import make
from tests.test_docs import PAGES
from tests.test_house import EXTRAS


class Block(NamedTuple):
    page: str
    language: str
    text: str


FENCED = re.compile(r"^ *```(\w*)\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
BLOCKS = [
    Block(page, language, dedent(text))
    for page, content in PAGES.items()
    for language, text in FENCED.findall(content)
]
PROGRAMS = (
    r"(?:\.venv/bin/)?(?:python3?|pip|make|uv|torchrun|tensorboard|sbatch|tmux|nohup|curl|git|cat|export|jupyter|"
    r"pre-commit|\.)\s+\S"
)


def is_shell(block):
    return not block.language and re.match(PROGRAMS, block.text)


def written_commands():
    """The lines of the blocks of a shell, and what stands in backquotes, also over two lines."""
    for block in filter(is_shell, BLOCKS):
        yield from block.text.replace("\\\n", " ").splitlines()
    for content in PAGES.values():
        spans = re.findall(r"`([^`]+)`", FENCED.sub("", content))
        yield from (span for span in spans if re.match(PROGRAMS, span))


COMMANDS = dict.fromkeys(" ".join(line.split()) for line in written_commands() if line)


def words(line):
    """The simple commands of a line, a list of words each; `=M` stands for a number."""
    line = re.sub(r"=[A-Z]\b", "=1", line.replace("$'", "'"))
    line = re.sub(r"^nohup | > \S+ &$", "", line)
    return [shlex.split(command) for command in re.split(r" (?:\||&&) ", line)]


def make_targets(arguments):
    recipe = subprocess.check_output(["make", "-n", *arguments], cwd=ROOT, text=True)
    assert all(each.partition("=")[2] in recipe for each in arguments), "it uses each variable"


def pip(arguments):
    from pip._internal.commands import create_command

    create_command(arguments[0]).parse_args(arguments[1:])
    assert EXTRAS.keys() >= {*re.findall(r"\.\[(\w+)\]", " ".join(arguments))}


PARSERS = {
    "sample.py": sample_script.make_parser().parse_args,
    "score.py": score_script.parse,
    "export.py": export_script.parse,
    "train.py": len,  # which is called below
}


def python(arguments):
    first, *others = arguments
    path = ROOT / first
    if first == "-m":
        assert importlib.util.find_spec(others[0])
    elif first in PARSERS:
        PARSERS[first](others)
    elif not path.exists():
        assert f"as `{first}`" in "".join(PAGES.values()), "a page says to save a program so"
    elif "parse_args()" in path.read_text("utf-8"):
        parse_only(path, others)


def parse_only(path, arguments):
    """Run a script until it has parsed its arguments."""
    parse = argparse.ArgumentParser.parse_args

    def parse_and_stop(parser):
        parse(parser)
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(argparse.ArgumentParser, "parse_args", parse_and_stop)
        patch.setattr(sys, "argv", [str(path), *arguments])
        patch.syspath_prepend(path.parent)
        runpy.run_path(str(path), run_name="__main__")


def torchrun(arguments):
    from torch.distributed.run import get_args_parser

    assert get_args_parser().parse_args(arguments).training_script == "train.py"


def tensorboard(arguments):
    from tensorboard import default, program

    program.TensorBoard(default.get_plugins()).configure(["tensorboard", *arguments])


def git(arguments):
    if arguments != ["lfs", "pull"]:
        subprocess.run(["git", *arguments], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)


def curl(arguments):
    address = arguments[-1]
    answered = re.sub(r"http://(.*):(\d+)", r'HTTPServer(("\1", \2)', address)
    assert address.startswith("https:") or answered in "".join(PAGES.values())


CHECKS = {
    "python": python, "python3": python, "pip": pip, "make": make_targets, "torchrun": torchrun,
    "tensorboard": tensorboard, "git": git, "curl": curl,
}  # fmt: skip
# Not parsed here; tests/faults/test_slurm.py submits the jobs.
KNOWN = {
    "sbatch --job-name=many", "sbatch --job-name=large", "sbatch --job-name=seeds", "tmux new", "tmux attach", "uv pip",
    "jupyter lab", "pre-commit install", ". .venv/bin/activate", "cat book.txt",
    "export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1",
}  # fmt: skip


@pytest.mark.filterwarnings("ignore:html5lib's sanitizer:DeprecationWarning")  # of TensorBoard
@pytest.mark.parametrize("line", COMMANDS)
def test_every_command_is_one_that_its_program_takes(line):
    for program, *arguments in words(line):
        check = CHECKS.get(program.removeprefix(".venv/bin/"))
        if check:
            check(arguments)
        else:
            assert f"{program} {arguments[0]}" in KNOWN


def training_commands():
    """The arguments of each command of train.py, also of one that a launcher or SLURM starts."""
    for line in COMMANDS:
        for simple in words(line):
            for program in ("train.py", "docs/train.sbatch"):
                if program in simple:
                    yield simple[simple.index(program) + 1 :]


@pytest.mark.slow
def test_every_training_command_is_taken(train, monkeypatch):
    needs("optuna", extra="search")
    texts = dict.fromkeys(("a.txt", "b.txt", "c.txt"), Path("book.txt").read_text())
    make(Path(), texts | {"runs/seeds-0/config.yaml": ""})
    begin = Mock(return_value=0)
    for name in ("training.run.main", "train.begin_sweep", "sweeps.search.begin_search"):
        monkeypatch.setattr(name, begin)
    refused = []
    for arguments in training_commands():
        text = [] if "--runs" in arguments else ["data.path=book.txt"]  # unless it names another
        ended = train(*text, *arguments, defaults=False)
        if (ended.status, ended.err) != (0, ""):
            refused.append((arguments, ended.err))
    assert refused == [] and begin.call_count > 35


PYTHON = [
    block.text for block in BLOCKS
    if block.language == "python" and block.page != "docs/export.md"  # tests/test_export.py runs those
]  # fmt: skip
# What each prints, or answers or writes to a file. The frequencies of characters alone have a loss of 3.3 nats.
PRINTED = [
    "ROMEO:.{200}\n",
    r"[01]\.\d{3} nats per character\n.{210}\n",
    r".{104}\n\d\.\d{4} nats, \d\.\d{4} bits per character over 104 characters\n",
    "ROMEO:.{200}\n",
    '{"from": "Ann", "text": "hi a.org"}\n',
]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.parametrize(
    ("program", "printed"),
    [
        pytest.param(*pair, marks=[] if "nats per" in pair[1] else pytest.mark.promise)
        for pair in zip(PYTHON, PRINTED, strict=True)
    ],
)
def test_every_block_of_python_runs(program, printed, trained, workplace, capsys, monkeypatch):
    (workplace / "docs").symlink_to(ROOT / "docs")
    Path("result.json").write_text(
        '{"messages": [{"from": "Ann", "text": ["hi ", {"type": "link", "text": "a.org"}]}]}'
    )
    servers = []
    monkeypatch.setattr(HTTPServer, "serve_forever", lambda server: servers.append(server))
    exec(program.replace("8000", "0"), {})
    for server in servers:
        with server, ThreadPoolExecutor() as pool:
            address = f"http://127.0.0.1:{server.server_port}"
            answer = pool.submit(urlopen, address, b"ROMEO:", timeout=60)
            server.handle_request()
            print(answer.result().read().decode())
    out = capsys.readouterr().out or Path("chat.jsonl").read_text()
    assert re.fullmatch(printed, out, re.DOTALL), out


# A block that is added needs a test. tests/conf/test_defaults.py and tests/reference/ have the formulas.
WRITTEN, FIRST_RUN, _, SCORED, PRESET = (
    block
    for block in BLOCKS
    if block.language not in ("python", "mermaid") and not is_shell(block)
)


def test_readme_shows_the_end_of_the_first_run():
    printed = (ROOT / "docs/first_run.txt").read_text("utf-8")  # by docs/first_run.py
    assert " ".join(FIRST_RUN.text.split()) in " ".join(printed.split())


def test_readme_shows_what_the_command_before_writes(sample, monkeypatch):
    monkeypatch.chdir(ROOT)
    ((_, program, *arguments),) = words(BLOCKS[BLOCKS.index(WRITTEN) - 1].text)
    assert program == "sample.py" and sample(*arguments).out == WRITTEN.text


def test_the_page_on_scores_shows_what_is_printed(trained, score):
    """Of another model and a text that it was not trained on: the same lines with other figures."""
    Path("book.txt").write_text(Path("book.txt").read_text("utf-8")[::-1], "utf-8")
    ended = score("first", "book.txt")
    shown, printed = (
        re.sub(r"[\d.,]+", "0", re.sub(" +", " ", text))
        for text in (SCORED.text, ended.err + ended.out)
    )
    assert shown == printed


def test_a_preset_is_yaml():
    assert yaml.safe_load(PRESET.text)["mine"]["_target_"]


def test_the_demo_is_the_page_that_the_command_of_its_docs_writes(export, tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    demo = "docs/demo/shakespeare.html"
    page = tmp_path / "page.html"
    (command,) = (line for line in COMMANDS if f"--to web {demo}" in line)
    _, _, *arguments = shlex.split(command.replace(demo, str(page)))
    assert export(*arguments).status == 0
    same = page.read_bytes() == Path(demo).read_bytes()
    assert same, f"{demo} is not the page that the present code writes; make it anew: {command}"
