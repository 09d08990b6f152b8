"""Export to one HTML file that generates text in a browser: no server, no network.

The page is plain HTML, CSS and JavaScript from `web_page/`; its model is in `web_page/gpt.js`.
"""

import base64
from collections.abc import Sequence
from pathlib import Path
from string import Template
from typing import Any

from base.html import SCRIPT, embedded, sha256
from gpt.model import GPT

PAGE = Path(__file__).with_name("web_page")


def write_web(model: GPT, meta: dict[str, Any], path: Path, passages: Sequence[str] | None = None) -> None:
    """Write a model as a page that any browser opens, also from disk; `passages` are for the game."""
    path.write_text(page(model, meta, passages), encoding="utf-8", newline="\n")


def page(model: GPT, meta: dict[str, Any], passages: Sequence[str] | None = None) -> str:
    """Return the page's HTML for what `load_checkpoint` returns."""
    style = (PAGE / "style.css").read_text("utf-8")
    scripts = [SCRIPT, *(PAGE / name for name in ("gpt.js", "game.js", "page.js"))]
    script = "".join(path.read_text("utf-8") for path in scripts)
    tensors = {
        name: tensor.detach().cpu().float().numpy() for name, tensor in model.named_parameters()
    }  # tied ones once
    shown = {
        "config": vars(model.config),
        "vocabulary": meta["vocabulary"],
        "size": model.vocabulary,
        "tensors": [(name, tensor.size) for name, tensor in tensors.items()],
        "name": text_name(meta["text"]),
        "facts": facts(model, meta),
        "passages": passages,
    }
    # Only the style and the script of this file run, and nothing is loaded.
    policy = f"default-src 'none'; img-src data:; style-src {sha256(style)}; script-src {sha256(script)}"
    return Template((PAGE / "index.html").read_text("utf-8")).substitute(
        policy=f"{policy}; base-uri 'none'; form-action 'none'",
        style=style,
        script=script,
        model=embedded(shown),
        weights=base64.b64encode(b"".join(tensor.astype("<f4").tobytes() for tensor in tensors.values())).decode(),
    )


def text_name(text: str) -> str:
    """Return the file or folder of a text without the path to it; of a glob or a list all that was typed."""
    name = text.rstrip("/").rpartition("/")[2]
    return text if set(name) & set("*?[],") else name


def facts(model: GPT, meta: dict[str, Any]) -> list[str]:
    """Describe a model in a few words each."""
    config = model.config
    unit = "byte" if meta["vocabulary"]["kind"] == "byte" else "character"
    described = [
        f"{model.num_parameters():,} parameters",
        f"{config.layers} layers, {config.heads} heads, {config.dim} wide",
        f"context {config.context}" + (f", window {config.window}" if config.window else ""),
        f"{model.vocabulary:,} {unit}s",
        f"trained for {meta['step']:,} steps",
    ]
    if meta["val_loss"] is not None:
        described.append(f"validation loss {meta['val_loss']:.4f} nats per {unit}")
    return described
