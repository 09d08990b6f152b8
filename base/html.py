"""Embed JSON in self-contained HTML pages and hash their scripts and styles."""

import base64
import hashlib
import json
from pathlib import Path
from typing import Any

SCRIPT = Path(__file__).with_name("page.js")  # functions that the scripts of all pages call


def embedded(value: Any) -> str:
    """Return JSON that is safe inside a `<script>` element: no text in it can close the element."""
    text = json.dumps(value)  # ASCII, so U+2028 and the like are escaped already
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def sha256(source: str) -> str:
    """Return the hash source that allows an inline style or script in a Content-Security-Policy."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(source.encode()).digest()).decode()}'"
