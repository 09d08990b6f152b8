"""Build report.html of a sweep, which compares its runs, from the template sweep_page.html."""

import html
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from base.html import embedded, fill

TEMPLATE = Path(__file__).with_name("assets") / "sweep_page.html"


def page(about: Mapping[str, Any]) -> str:
    """Return the page of a sweep as HTML."""
    return fill(TEMPLATE, title=html.escape(about["name"]), data=embedded(about))
