"""What a page needs that holds everything itself and loads nothing."""

import base64
import hashlib
import json
import re
from pathlib import Path
from typing import Any


def embedded(value: Any) -> str:
    """JSON that cannot end the element of the page that holds it, whatever its texts say."""
    text = json.dumps(value)  # ASCII, so U+2028 and the like are escaped already
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def sha256(source: str) -> str:
    """The name by which a Content-Security-Policy allows an inline style or script."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(source.encode()).digest()).decode()}'"


def fill(template: Path, **parts: str) -> str:
    """Make a page that loads nothing; its policy lets it run its own script and no other.

    Args:
        template: a page that says where its `{{parts}}` go, and the `{{policy}}`.
        parts: as they are to stand there.
    """
    page = template.read_text("utf-8")
    policy = ["default-src 'none'", "base-uri 'none'", "form-action 'none'"]
    for tag in ("style", "script"):
        content = re.search(f"<{tag}>(.*?)</{tag}>", page, re.DOTALL)
        assert content
        policy.append(f"{tag}-src {sha256(content[1])}")
    parts["policy"] = "; ".join(policy)
    return re.sub("{{(\\w+)}}", lambda match: parts[match[1]], page)
