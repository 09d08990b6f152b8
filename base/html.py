"""Make self-contained HTML pages, which load no other file."""

import base64
import hashlib
import json
import re
from pathlib import Path
from typing import Any

SCRIPT = Path(__file__).with_name("page.js")  # functions that the scripts of all pages call


def embedded(value: Any) -> str:
    """Return `value` as JSON that is safe inside a `<script>` element: no string in it can close the element."""
    text = json.dumps(value)  # ASCII, so U+2028 and the like are escaped already
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def fill(template: Path, **parts: str) -> str:
    """Return the HTML template in the file `template`, with each `{{name}}` replaced by `parts[name]`.

    `{{style}}` and `{{script}}` are the files beside the template, and `{{policy}}` a Content-Security-Policy that
    allows only these.
    """
    page = template.read_text("utf-8")
    policy = ["default-src 'none'", "base-uri 'none'", "form-action 'none'"]
    styles, scripts = (sorted(template.parent.glob(pattern)) for pattern in ("*.css", "*.js"))
    for tag, files in (("style", styles), ("script", [SCRIPT, *scripts])):
        page = page.replace(f"{{{{{tag}}}}}", "".join(file.read_text("utf-8") for file in files).rstrip())
        content = re.search(f"<{tag}>(.*?)</{tag}>", page, re.DOTALL)
        assert content
        sha256 = base64.b64encode(hashlib.sha256(content[1].encode()).digest()).decode()
        policy.append(f"{tag}-src 'sha256-{sha256}'")
    parts["policy"] = "; ".join(policy)
    return re.sub("{{(\\w+)}}", lambda match: parts[match[1]], page)
