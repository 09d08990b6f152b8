"""Build report.html of a sweep, which compares its runs, from the template sweep_page.html."""

import html
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from base.html import embedded, fill

TEMPLATE = Path(__file__).with_name("assets") / "sweep_page.html"


def page(about: Mapping[str, Any]) -> str:
    """Return the page of a sweep as HTML.

    Args:
        about: a dict. `name`: name of the sweep. `caution`: a warning, or "". `unit`: what losses are per, such as
            character. `tables`: a list of tables, each a list of rows, where the first row contains the headings and a
            row is a list of cells. The last table has a row for each run. `colours`: for each table a list with the
            number of each row's colour, without the headings. `runs`: for each run [name, [[step, nats] for each
            validation]].
    """
    return fill(TEMPLATE, title=html.escape(about["name"]), data=embedded(about))
