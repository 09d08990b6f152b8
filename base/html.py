"""JSON and hashes as an HTML page without external files needs them."""

import base64
import hashlib
import json
from typing import Any


def embedded(value: Any) -> str:
    """JSON that cannot end the element of the page that holds it, whatever its texts say."""
    text = json.dumps(value)  # ASCII, so U+2028 and the like are escaped already
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def sha256(source: str) -> str:
    """The name by which a Content-Security-Policy allows an inline style or script."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(source.encode()).digest()).decode()}'"
