import math
import re
import shlex
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

import export as export_script
import sample as sample_script
import score as score_script
from tests.conftest import ROOT, needs
from tests.stores import make
from tests.test_house import PACKAGES

FILES = (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md")))
PAGES = {path.name: path.read_text("utf-8") for path in FILES}
EVERY = re.findall(
    r"(?:^|\| `)((?:cat .*)?python [\w/]+\.py[^`\n]*)", "\n".join(PAGES.values()), re.MULTILINE
)
COMMANDS = list(dict.fromkeys(EVERY))


def commands(script, *pages):
    """What follows the script in each command, of some pages or of all; a comment would be arguments, as in zsh."""
    lines = [line for line in COMMANDS if not pages or any(line in PAGES[page] for page in pages)]
    return [
        shlex.split(line.partition(f"{script}.py")[2])
        for line in lines
        if f"python {script}.py" in line
    ]


NUMBER = r"(?<![\w.,=/-])\d[\d,]*(?:\.\d+)?"
UNIT = r"\*{0,2} (?:nats|ms|s|minutes|KB|MB|GB|characters/s)\b"


def figures(text):
    """The numbers with a unit or a fraction, outside of code, links and names of versions."""
    text = re.sub(
        r"```.*?```|`[^`]*`|\]\([^)]*\)|Python [\d.]+ to [\d.]+", " ", text, flags=re.DOTALL
    )
    return re.findall(rf"{NUMBER}(?={UNIT})|(?<![\w.,=/-])\d+\.\d+(?![\w-])", text)


def anchor(heading):
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def sections(page):
    """Each section of a page by its anchor: what follows a heading, up to the next one of any level."""
    parts = re.split(r"^#+ (.*)\n", PAGES[page], flags=re.MULTILINE)
    return {anchor(heading): body for heading, body in zip(parts[1::2], parts[2::2], strict=True)}


def statements(text):
    """The sentences and the rows of a Markdown text, without its blocks of code."""
    text = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    return re.split(r"\n\n|\n(?=\|)|(?<=[.:])\s+(?=[A-Z*`])", text)


def without_a_source(statement, results):
    """The figures of a sentence for which none of its links leads to a result beside a command and a machine."""
    linked = [results[name] for name in re.findall(r"\(docs/results\.md#([\w-]+)\)", statement)]
    complete = [
        section
        for section in linked
        if re.search(r"`[^`]*\bpython\b|`make |`pip ", section)
        and re.search(r"\b[Mm]achine [A-E]\b|^\| [A-E]\b|H200", section, re.MULTILINE)
    ]
    numbers = re.findall(NUMBER, "\n".join(complete))
    results = [float(number.replace(",", "")) for number in numbers]
    missing = []
    for figure in figures(statement):
        decimals = len(figure.partition(".")[2])
        if float(figure.replace(",", "")) not in [round(each, decimals) for each in results]:
            missing.append(figure)
    return missing


def test_every_figure_of_the_readme_stands_beside_its_command_and_machine():
    """Its sentence or row links to a section of docs/results.md that has all three."""
    results = sections("results.md")
    every = statements(PAGES["README.md"])
    assert sum(len(figures(each)) for each in every) >= 15
    unfounded = {each: without_a_source(each, results) for each in every}
    assert {each: missing for each, missing in unfounded.items() if missing} == {}


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("1.4139** nats", "1.4239** nats"),  # stands nowhere
        ("64.4 s", "443 s"),  # stands in another section
        ("31 s", "32 s"),
        ("docs/results.md#time-to-a-loss", "docs/results.md#machines"),
        ("([time to a loss](docs/results.md#time-to-a-loss))", ""),
    ],
)
def test_a_wrong_figure_of_the_readme_is_found(old, new):
    assert PAGES["README.md"].count(old) == 1
    results = sections("results.md")
    changed = statements(PAGES["README.md"].replace(old, new))
    assert any(without_a_source(each, results) for each in changed)


@pytest.mark.parametrize("lost", [r"`python benchmarks[^`]*`", r"Machine D"])
def test_a_result_without_its_command_or_machine_is_found(lost):
    results = sections("results.md")
    name = "time-to-a-loss"
    results[name] = re.sub(r"`benchmarks/[^`]*`", "", re.sub(lost, "", results[name]))
    every = statements(PAGES["README.md"])
    assert any(without_a_source(each, results) for each in every)


def test_the_readme_shows_the_end_of_what_the_first_run_printed():
    (shown,) = re.findall(r"```\n(validation loss [^`]*)```", PAGES["README.md"])
    printed = (ROOT / "docs/first_run.txt").read_text("utf-8")  # by docs/first_run.py
    assert " ".join(shown.split()) in " ".join(printed.split())


@pytest.mark.parametrize("page", PAGES)
def test_every_link_to_a_section_leads_to_one(page):
    for file, name in re.findall(r"\]\(([\w./-]*)#([\w-]+)\)", PAGES[page]):
        target = PAGES[Path(file or page).name].lower()
        headings = re.findall(r"^#+ (.*)", target, re.MULTILINE)
        assert name in [re.sub(r"[^\w\- ]", "", each).replace(" ", "-") for each in headings]


@pytest.mark.slow
def test_every_training_command_is_taken(train, monkeypatch):
    needs("optuna", extra="search")
    begun = Counter()
    make(Path(), dict.fromkeys(("a.txt", "b.txt", "c.txt"), Path("book.txt").read_text()))
    for kind in ("training.run.main", "train.begin_sweep", "sweeps.search.begin_search"):
        monkeypatch.setattr(kind, lambda *_, kind=kind: begun.update([kind]) or 0)
    every = commands("train")
    refused = []
    for arguments in every:
        typed = " ".join(arguments)
        # whose text is opened before
        several = "-m" in arguments or "hparams_search" in typed
        text = ["data.path=book.txt"] * (several and "data.path" not in typed)
        ended = train(*arguments, *text, defaults=False)
        if (ended.status, ended.err) != (0, ""):
            refused.append((arguments, ended.err))
    assert refused == []
    assert begun.total() == len(every) - every.count(["--runs"]) > 35
    assert (begun["train.begin_sweep"], begun["sweeps.search.begin_search"]) == (5, 2)


PARSERS = {
    "sample": sample_script.make_parser().parse_args,
    "score": score_script.parse,
    "export": export_script.parse,
}


@pytest.mark.parametrize("script", PARSERS)
def test_every_other_command_is_taken(script):
    assert len(commands(script)) >= 3
    for arguments in commands(script):
        PARSERS[script](arguments)  # ends the process where one is wrong


def test_every_command_of_the_benchmark_is_one_of_two():
    every = {tuple(arguments) for arguments in commands("benchmarks/gpu")}
    assert every <= {("tinyshakespeare.txt", "--only", each) for each in ("loss", "speed")}


def test_the_demo_is_the_page_that_the_command_of_its_docs_writes(export, tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    demo = "docs/demo/shakespeare.html"
    (command,) = (line for line in COMMANDS if f"--to web {demo}" in line)
    page = tmp_path / "page.html"
    ended = export(*shlex.split(command.replace(demo, shlex.quote(str(page))))[2:])
    assert ended.status == 0, ended
    assert "\n6 passages of " in ended.out
    if page.read_bytes() != Path(demo).read_bytes():  # assert would print both
        pytest.fail(
            f"{demo} is not the page that the present code writes; make it anew: {command}"
        )


def test_the_readme_shows_what_its_models_write(sample, monkeypatch):
    monkeypatch.chdir(ROOT)
    ((command, shown),) = re.findall(
        r"^python sample.py (docs/demo/.*)\n```\n```\n([^`]*)```", PAGES["README.md"], re.MULTILINE
    )
    assert sample(*shlex.split(command)).out.rstrip("\n") == shown.rstrip("\n")
    (program,) = re.findall(r"```python\n(.*?)```", PAGES["README.md"], re.DOTALL)
    assert len(run_example(program)) == len("ROMEO:") + 200 + 1


EXAMPLES = re.findall(r"```python\n(.*?)```", PAGES["api.md"], re.DOTALL)


def run_example(program):
    program = f"import sys; sys.path.insert(0, {str(ROOT)!r})\n{program}"
    return subprocess.run(
        [sys.executable, "-c", program], check=True, stdout=subprocess.PIPE, text=True
    ).stdout


@pytest.mark.slow
def test_the_api_page_trains_with_gpt_and_torch_alone(workplace):
    assert len(re.findall(r"^.+$", EXAMPLES[0], re.MULTILINE)) <= 30
    loaded = "print(sorted({'lightning', 'hydra', 'omegaconf', 'conf', 'training', 'data'} & set(sys.modules)))"
    out = run_example(f"{EXAMPLES[0]}\n{loaded}")
    loss = re.match(r"(\d\.\d{3}) nats per character\n", out)
    assert loss and out.endswith("[]\n")
    text = Path("book.txt").read_text("utf-8")
    entropy = -sum(n / len(text) * math.log(n / len(text)) for n in Counter(text).values())
    # far below what the frequencies of single characters give
    assert float(loss[1]) < entropy - 0.5
    assert len(out.removesuffix("[]\n")) == len(loss[0]) + 10 + 200 + 1


@pytest.mark.promise
@pytest.mark.slow
def test_the_example_of_the_api_page_runs(trained):
    out = run_example(EXAMPLES[1])
    assert re.search(r"\d\.\d{4} nats, \d\.\d{4} bits per character over 104 characters", out)


def test_the_page_on_architecture_names_what_is_there():
    page = PAGES["architecture.md"]
    assert page.count("\n") <= 150
    there = r"(?:base|conf|data|gpt|reports|training|sweeps|tests|benchmarks|docs)/[\w./-]*|\w+\.(?:py|toml)"
    named = set(re.findall(rf"`({there})`", page))
    assert len(named) > 80
    files = {file.name for folder in PACKAGES for file in (ROOT / folder).rglob("*.py")}
    missing = [each for each in sorted(named - files) if not (ROOT / each).exists()]
    assert missing == []
