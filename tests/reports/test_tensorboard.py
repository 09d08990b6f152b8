import importlib.util
import io
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

import train as train_script
from reports.tensorboard import layout
from reports.tensorboard_private import Event, Summary
from tests.conftest import ROOT, TINY, summary

pytestmark = pytest.mark.slow
SPEC = importlib.util.spec_from_file_location("pictures", ROOT / "docs/pictures.py")
assert SPEC and SPEC.loader
pictures = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(pictures)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory, prose: str) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("watched")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
        Path("book.txt").write_text(prose)
        for name, rate in (("a", "2e-3"), ("b", "1e-2")):
            arguments = ["data.path=book.txt", f"name={name}", f"optim.lr={rate}"]
            patch.setattr(sys, "argv", [str(ROOT / "train.py"), *TINY, *arguments])
            assert train_script.cli() == 0
        yield folder / "runs"


@pytest.fixture(scope="module")
def board(runs: Path, browser: Any) -> Iterator[Any]:
    with pictures.tensorboard(runs) as address:
        page = browser.new_page(viewport={"width": 1280, "height": 860})
        failed: list[str] = []
        page.on("pageerror", lambda error: failed.append(str(error)))

        def visit(name: str) -> Any:
            pictures.visit(page, address, name)
            assert not failed
            return page

        yield visit
        page.close()


def colours(png: bytes) -> int:
    return len(Image.open(io.BytesIO(png)).convert("RGB").getcolors(2**24) or [])


def text_of(locator: Any) -> str:
    return locator.evaluate(
        """element => {
          const walk = (node) => node.nodeType === Node.TEXT_NODE ? node.textContent : node.nodeName === "STYLE" ? ""
            : [...(node.shadowRoot?.childNodes ?? []), ...node.childNodes].map(walk).join(" ");
          return walk(element).replace(/\\s+/g, " ");
        }"""
    )


def test_the_first_page_answers_the_first_question(board: Any) -> None:
    page = board("custom_scalars")
    headings = page.locator("tf-category-paginated-view .heading, tf-category-paginated-view button")
    assert any("Does it learn?" in each for each in headings.all_inner_texts())
    cards = page.locator("tf-custom-scalar-multi-line-chart-card")
    shown = [text_of(cards.nth(number)) for number in range(cards.count())]
    titles = [title for group in layout(["perf/mfu"]).values() for title in group]  # not known of CPUs
    for title, card in zip(titles, shown, strict=True):
        matches = re.search(r"Matches \((\d+)\)", card)
        assert title in card and matches and int(matches[1]) >= 2, card
    for number in (0, 1):  # training and validation, of two runs
        assert "Matches (4)" in shown[number]
    assert colours(page.screenshot()) > 100


def test_the_table_of_settings_shows_what_differs_and_the_exact_result(board: Any, runs: Path) -> None:
    page = board("hparams")
    page.set_viewport_size({"width": 1920, "height": 860})
    assert page.get_by_text("best/val_loss", exact=True).first.bounding_box()["x"] < 1920
    cells = [cell.strip() for cell in page.locator("vaadin-grid-cell-content").all_inner_texts()]
    assert cells.index("optim.lr") < cells.index("compile"), "what differs comes first"
    for name, rate in (("a", "0.0020000"), ("b", "0.010000")):
        found = summary(runs / name)
        assert name in cells and rate in cells
        numbers = [float(cell) for cell in cells if re.fullmatch(r"\d\.\d+", cell)]
        for key in ("val_loss", "val_bpc"):
            assert any(number == pytest.approx(found[key], abs=1e-4) for number in numbers), key


def test_the_protocol_buffers_are_where_reports_tensorboard_private_imports_them() -> None:
    assert Event(step=3, summary=Summary(value=[Summary.Value(tag="a")])).summary.value[0].tag == "a"
