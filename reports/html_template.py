"""Fill the templates of self-contained HTML pages."""

import re
from pathlib import Path

from base.html import sha256

ASSETS = Path(__file__).with_name("assets")
MAX_MILLIBITS = 2**16 - 1  # largest surprisal of a page, in thousandths of a bit


def fill(template: Path, **parts: str) -> str:
    """Make a page that loads nothing; its Content-Security-Policy allows its own style and script only.

    Args:
        template: a page with `{{part}}` for each part, `{{policy}}`, and `{{style}}` and `{{script}}` for `shared.css`
            and `shared.js`.
        parts: their contents, as HTML.
    """
    page = template.read_text("utf-8")
    policy = ["default-src 'none'", "base-uri 'none'", "form-action 'none'"]
    for tag, name in (("style", "shared.css"), ("script", "shared.js")):
        page = page.replace(f"{{{{{tag}}}}}", (ASSETS / name).read_text("utf-8").rstrip())
        content = re.search(f"<{tag}>(.*?)</{tag}>", page, re.DOTALL)
        assert content
        policy.append(f"{tag}-src {sha256(content[1])}")
    parts["policy"] = "; ".join(policy)
    return re.sub("{{(\\w+)}}", lambda match: parts[match[1]], page)
