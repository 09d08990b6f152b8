"""Fill a template to make an HTML page that loads no other file."""

import re
from pathlib import Path

from base.html import SCRIPT, sha256

ASSETS = Path(__file__).with_name("assets")
MAX_MILLINATS = 2**16 - 1  # largest surprisal of a page, in thousandths of a nat


def fill(template: Path, **parts: str) -> str:
    """Replace `{{style}}`, `{{script}}`, `{{policy}}` and, by `parts`, each other `{{name}}` in an HTML template.

    The policy (Content-Security-Policy) allows only the page's own style and script.
    """
    page = template.read_text("utf-8")
    policy = ["default-src 'none'", "base-uri 'none'", "form-action 'none'"]
    for tag, files in (("style", [ASSETS / "shared.css"]), ("script", [SCRIPT, ASSETS / "shared.js"])):
        page = page.replace(f"{{{{{tag}}}}}", "".join(file.read_text("utf-8") for file in files).rstrip())
        content = re.search(f"<{tag}>(.*?)</{tag}>", page, re.DOTALL)
        assert content
        policy.append(f"{tag}-src {sha256(content[1])}")
    parts["policy"] = "; ".join(policy)
    return re.sub("{{(\\w+)}}", lambda match: parts[match[1]], page)
