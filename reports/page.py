"""Render the HTML pages of runs and scored texts from the templates in assets/."""

from pathlib import Path
from typing import Any

from base.html import render

ASSETS = Path(__file__).with_name("assets")


def render_page(
    name: str, title: str, data: Any, packed: dict[str, str] | None = None, **values: Any
) -> str:
    """Render assets/NAME.html: the template escapes `values`; the page's script reads `data`, and `packed` by id."""
    parts = ("shared", "curves", name)
    styles = [ASSETS / f"{part}.css" for part in parts]
    scripts = [ASSETS / f"{part}.js" for part in parts]
    template = ASSETS / f"{name}.html"
    return render(template, styles, scripts, title=title, data=data, packed=packed or {}, **values)
