"""Make self-contained HTML pages, which load no other file."""

import base64
import hashlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

SCRIPT = Path(__file__).with_name("page.js")  # functions that the scripts of all pages call


def render(template: Path, styles: Iterable[Path], scripts: Iterable[Path], **values: Any) -> str:
    """Render a Jinja2 template, which escapes `values`; its `policy` allows only its `style` and `script`.

    Its filter `tojson` is safe inside a `<script>` element: no string in the JSON can close the
    element.
    """
    # 35 ms, which only a page needs
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    policy = ["default-src 'none'", "base-uri 'none'", "form-action 'none'"]
    for tag, files in (("style", styles), ("script", [SCRIPT, *scripts])):
        values[tag] = "".join(file.read_text("utf-8") for file in files).rstrip()
        sha256 = base64.b64encode(hashlib.sha256(values[tag].encode()).digest()).decode()
        policy.append(f"{tag}-src 'sha256-{sha256}'")  # of all between the tags
    loader = FileSystemLoader(template.parent)
    environment = Environment(
        loader=loader, autoescape=True, undefined=StrictUndefined, keep_trailing_newline=True
    )
    environment.trim_blocks = environment.lstrip_blocks = True
    environment.policies["json.dumps_kwargs"] = {}  # keeps the order of keys
    return environment.get_template(template.name).render(values, policy="; ".join(policy))
