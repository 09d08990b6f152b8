"""Make report.html of a sweep, which compares its runs, from the template sweep_page.html."""

import html
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from base.html import embedded, fill

TEMPLATE = Path(__file__).with_name("assets") / "sweep_page.html"


def page(about: Mapping[str, Any]) -> str:
    """Return the page of a sweep as HTML.

    Args:
        about: `name` of the sweep; `caution`, a sentence or an empty text; `unit` of the losses; `tables`, each a list
            of rows of cells, the first with headings, the last table with a row for each run; `colours`, for each table
            the number of the colour of each further row; `runs`, of each run its name and the losses of its
            validations, [step, nats].
    """
    return fill(TEMPLATE, title=html.escape(about["name"]), data=embedded(about))
