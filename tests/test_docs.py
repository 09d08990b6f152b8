import re
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.test_house import PACKAGES

FILES = (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md")))
PAGES = {path.name: path.read_text("utf-8") for path in FILES}


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


@pytest.mark.parametrize("page", PAGES)
def test_every_link_to_a_section_leads_to_one(page):
    for file, name in re.findall(r"\]\(([\w./-]*)#([\w-]+)\)", PAGES[page]):
        target = PAGES[Path(file or page).name].lower()
        headings = re.findall(r"^#+ (.*)", target, re.MULTILINE)
        assert name in [re.sub(r"[^\w\- ]", "", each).replace(" ", "-") for each in headings]


def test_the_page_on_architecture_names_what_is_there():
    page = PAGES["architecture.md"]
    assert page.count("\n") <= 150
    there = r"(?:base|conf|data|gpt|reports|training|sweeps|tests|benchmarks|docs)/[\w./-]*|\w+\.(?:py|toml)"
    named = set(re.findall(rf"`({there})`", page))
    assert len(named) > 80
    files = {file.name for folder in PACKAGES for file in (ROOT / folder).rglob("*.py")}
    missing = [each for each in sorted(named - files) if not (ROOT / each).exists()]
    assert missing == []
