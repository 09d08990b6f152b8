"""Fill the templates of self-contained HTML pages."""

import re
from pathlib import Path

from base.html import SCRIPT, sha256

ASSETS = Path(__file__).with_name("assets")
MAX_MILLIBITS = 2**16 - 1  # largest surprisal of a page, in thousandths of a bit


def fill(template: Path, **parts: str) -> str:
    """Make a page that loads nothing; its Content-Security-Policy allows its own style and script only.

    Args:
        template: a page with `{{part}}` for each part, `{{policy}}`, and `{{style}}` for `shared.css`
            and `{{script}}` for `base/page.js` and `shared.js`.
        parts: their contents, as HTML.
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
