import re
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.test_house import PACKAGES

FILES = (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md")))
PAGES = {path.name: path.read_text("utf-8") for path in FILES}


def test_every_figure_of_the_readme_is_a_result():
    """It is in docs/results.md, or rounds a number there."""
    number = r"(?<![\w.,=])(\d[\d,]*(?:\.\d+)?)"
    unit = r"\*{0,2} (?:nats|ms|s|minutes|MB|GB|characters/s)\b"
    results = [float(each.replace(",", "")) for each in re.findall(number, PAGES["results.md"])]
    figures = set(re.findall(number + unit, PAGES["README.md"]))
    assert len(figures) > 10
    unknown = set()
    for figure in figures:
        decimals = len(figure.partition(".")[2])
        if float(figure.replace(",", "")) not in [round(number, decimals) for number in results]:
            unknown.add(figure)
    assert unknown == set()


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
