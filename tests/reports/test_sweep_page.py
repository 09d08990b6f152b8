import itertools
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

from conf.schema import Config, to_yaml
from sweeps.sweep import make_trial
from sweeps.table import write_page, write_table
from tests.stores import make

HOSTILE = "</script><b onclick=x>&{{data}}\N{RIGHT-TO-LEFT OVERRIDE}"
CURVES = {"lr=1": [(5, 3.0), (10, 2.0), (20, 1.5)], "lr=2": [(5, 3.5), (10, 2.5)], "lr=3": []}


def sweep(folder: Path, curves: dict[str, list], seeds: tuple[int, ...] = (1, 2)) -> None:
    """Make a sweep of runs with these validation losses; those of the seed n are n / 10 higher."""
    varied = {}
    for setting, seed in itertools.product(curves, seeds):
        given = [f"data.path={setting}", f"seed={seed}"]
        trial = make_trial(folder.name, ["seed", "data.path"], given)
        entries = {step: loss + seed / 10 for step, loss in curves[setting]}
        loss = min(entries.values(), default=None)
        said = {"status": "finished", "validations": entries, "val_loss": loss}
        said["val_bpc"] = loss and loss / math.log(2)
        files = {"config.yaml": to_yaml(Config()), "summary.json": json.dumps(said)}
        make(trial.run.directory, files)
        varied[trial.run] = trial.varied
    write_page(folder, write_table(folder, varied, {}))


def test_the_page_compares_the_runs(workplace: Path, visit: Callable[..., Any]) -> None:
    sweep(Path("runs/<i>&{{name}}"), CURVES | {HOSTILE: [(5, 4.0), (10, math.nan)]})
    for width in (1280, 360):
        shown = visit("runs/<i>&{{name}}/report.html", viewport={"width": width, "height": 800})
        assert shown.title() == shown.inner_text("h1") == "<i>&{{name}}"
        assert shown.locator("main b, main i, main script").count() == 0
        assert shown.evaluate("document.documentElement.scrollWidth") == width
        # Every run has a curve, and runs that differ only in the seed have one colour: that of
        # their rows.
        rows = shown.locator("#tables table").last.locator("tr").all()[1:]
        names = [row.locator("td").nth(1).text_content() for row in rows]
        assert names[:4] == ["lr=1", "lr=1", "lr=2", "lr=2"]
        assert "</script><b onclick=x>&{{data}}\ufffd" in names
        paths = shown.locator("#plot path.validation").all()
        assert [path.get_attribute("d").count(" ") for path in paths] == [3, 3, 2, 2, 1, 1]
        colours = [each.evaluate("e => getComputedStyle(e).stroke") for each in paths]
        assert colours[::2] == colours[1::2] and len(set(colours)) == 3
        edge = "e => getComputedStyle(e).borderLeftColor"
        assert [row.locator("td").first.evaluate(edge) for row in rows][:6] == colours
        means = shown.locator("#tables table").first.locator("tr").all_text_contents()
        assert means[:2] == ["data.pathrunsmean lossspread", "lr=121.65000.0707"]


def test_runs_without_a_loss(workplace: Path, visit: Callable[..., Any]) -> None:
    sweep(Path("runs/s"), {"lr=1": []}, (1,))
    assert visit("runs/s/report.html").inner_text("#plot") == "No run has a validation loss."
