"""What a page needs that holds everything itself and loads nothing."""

import re
from pathlib import Path

from base.html import sha256

ASSETS = Path(__file__).with_name("assets")
MAX_MILLIBITS = 2**16 - 1  # thousandths of a bit that a page can tell apart


def fill(template: Path, **parts: str) -> str:
    """Make a page that loads nothing; its policy lets it run its own script and no other.

    Args:
        template: a page that says where its `{{parts}}` go, and the `{{policy}}`; in its style and its script
            `{{style}}` and `{{script}}` stand for what all such pages share, `shared.css` and `shared.js`.
        parts: as they are to stand there.
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
