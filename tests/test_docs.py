import re

import pytest

from tests.conftest import ROOT
from tests.test_house import PACKAGES

FILES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
PAGES = {str(path.relative_to(ROOT)): path.read_text("utf-8") for path in FILES}

NUMBER = r"(?<![\w.,=/-])\d[\d,]*(?:\.\d+)?"
UNIT = r"\*{0,2} (?:nats|ms|s|minutes|KB|MB|GB|characters/s)\b"


def figures(text):
    """The numbers with a unit or a fraction, outside of code, links and names of versions."""
    text = re.sub(
        r"```.*?```|`[^`]*`|\]\([^)]*\)|Python [\d.]+ to [\d.]+", " ", text, flags=re.DOTALL
    )
    return re.findall(rf"{NUMBER}(?={UNIT})|(?<![\w.,=/-])\d+\.\d+(?![\w-])", text)


def sections(text):
    """Each section of a page by its anchor: what follows a heading, up to the next one of any level."""
    _, *parts = re.split(r"^#+ (.*)\n", text, flags=re.MULTILINE)
    anchors = [re.sub(r"[^\w\- ]", "", each.lower()).replace(" ", "-") for each in parts[::2]]
    return dict(zip(anchors, parts[1::2], strict=True))


def statements(text):
    """The sentences and the rows of a Markdown text, without its blocks of code."""
    text = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    return re.split(r"\n\n|\n(?=\|)|(?<=[.:])\s+(?=[A-Z*`])", text)


def without_a_source(statement, results):
    """The figures of a sentence for which none of its links leads to a result beside a command and a machine."""
    numbers = []
    for name in re.findall(r"\(docs/results\.md#([\w-]+)\)", statement):
        section = results[name]
        command = re.search(r"`[^`\n]*\bpython\b|`make |`pip ", section)
        machine = re.search(r"\b[Mm]achine [A-E]\b|^\| [A-E]\b|H200", section, re.MULTILINE)
        if command and machine:
            numbers += [float(each.replace(",", "")) for each in re.findall(NUMBER, section)]
    for figure in figures(statement):
        decimals = len(figure.partition(".")[2])
        if float(figure.replace(",", "")) not in [round(each, decimals) for each in numbers]:
            yield figure


def unfounded(readme, results):
    """The figures of README.md without a source: its sentence or row links to a section that has all three."""
    by_anchor = sections(results)
    return [each for part in statements(readme) for each in without_a_source(part, by_anchor)]


README = PAGES["README.md"]
RESULTS = PAGES["docs/results.md"]


def test_every_figure_of_the_readme_stands_beside_its_command_and_machine():
    assert len(figures(README)) >= 15
    assert unfounded(README, RESULTS) == []


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("**1.4177** (1.4016 to 1.4196) | 1.3794", "**1.4277** | 1.3794"),  # stands nowhere
        ("58.4 s", "120 s"),  # stands in another section
        ("[80.2 s](docs/results.md#time-to-a-loss", "[80.2 s](docs/results.md#machines"),
        ("`python train.py minutes=M`", "`train.py minutes=M`"),
        ("Machine A: `pip install", "`pip install"),
    ],
)
def test_a_figure_without_its_result_command_or_machine_is_found(old, new):
    assert (README + RESULTS).count(old) == 1
    assert unfounded(README.replace(old, new), RESULTS.replace(old, new))


@pytest.mark.parametrize("page", PAGES)
def test_every_link_to_a_section_leads_to_one(page):
    for file, name in re.findall(r"\]\(([\w./-]*)#([\w-]+)\)", PAGES[page]):
        target = (ROOT / page).parent / file if file else ROOT / page
        assert name in sections(target.read_text("utf-8"))


def test_the_page_on_architecture_names_what_is_there():
    page = PAGES["docs/architecture.md"]
    assert page.count("\n") <= 150
    there = r"(?:base|conf|data|gpt|reports|training|sweeps|tests|benchmarks|docs)/[\w./-]*|\w+\.(?:py|toml)"
    named = set(re.findall(rf"`({there})`", page))
    assert len(named) > 80
    files = {file.name for folder in PACKAGES for file in (ROOT / folder).rglob("*.py")}
    assert [each for each in named - files if not (ROOT / each).exists()] == []
