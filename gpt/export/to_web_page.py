"""Export to one HTML file that generates text in a browser, without a server or a network.

The page is plain HTML, CSS and JavaScript from `web_page/`; `web_page/gpt.js` computes the model.
"""

import base64
import math
from collections.abc import Sequence
from pathlib import Path
from string import Template
from typing import Any

from base.html import SCRIPT, embedded, sha256
from base.progress import count
from gpt.model import GPT

PAGE = Path(__file__).with_name("web_page")


def write_web(model: GPT, meta: dict[str, Any], path: Path, passages: Sequence[str] | None = None) -> None:
    """Write the page to an .html file; the arguments are those of `page`."""
    path.write_text(page(model, meta, passages), encoding="utf-8", newline="\n")


def page(model: GPT, meta: dict[str, Any], passages: Sequence[str] | None = None) -> str:
    """Return the HTML for the model and the description that `load_checkpoint` returns; `passages` add the game."""
    style = (PAGE / "style.css").read_text("utf-8")
    scripts = [SCRIPT, *(PAGE / name for name in ("gpt.js", "game.js", "page.js"))]
    script = "".join(path.read_text("utf-8") for path in scripts)
    tensors = {name: tensor.detach().cpu().float().numpy() for name, tensor in model.named_parameters()}
    weights, unit = model.num_parameters(), unit_of(meta)
    described = {
        "config": vars(model.config),
        "vocabulary": meta["vocabulary"],
        "size": model.vocabulary,
        "tensors": [(name, tensor.size) for name, tensor in tensors.items()],
        "name": text_name(meta["text"]),
        "weightCount": f"{weights / 1e6:.2g} M weights" if weights >= 1e5 else count(weights, "weight"),
        "unit": unit,
        "facts": facts(model, meta),
        "passages": passages,
    }
    # Allow only the style and the script of this file, and load nothing.
    policy = f"default-src 'none'; img-src data:; style-src {sha256(style)}; script-src {sha256(script)}"
    return Template((PAGE / "index.html").read_text("utf-8")).substitute(
        policy=f"{policy}; base-uri 'none'; form-action 'none'",
        unit=unit,
        Units=f"{unit}s".title(),
        style=style,
        script=script,
        model=embedded(described),
        weights=base64.b64encode(b"".join(tensor.astype("<f4").tobytes() for tensor in tensors.values())).decode(),
    )


def text_name(text: str) -> str:
    """Return the last part of a text's path; return a glob or a list of paths unchanged."""
    name = text.rstrip("/").rpartition("/")[2]
    return text if set(name) & set("*?[],") else name


def unit_of(meta: dict[str, Any]) -> str:
    """Return what a token of a model is: `byte` or `character`."""
    return "byte" if meta["vocabulary"]["kind"] == "byte" else "character"


def facts(model: GPT, meta: dict[str, Any]) -> list[str]:
    """Return short phrases that describe the model: its shape, vocabulary, training steps and validation loss."""
    config, unit = model.config, unit_of(meta)
    loss = meta["val_loss"]
    return [
        f"{count(config.layers, 'layer')}, {count(config.heads, 'head')}, {config.dim} wide",
        f"context {config.context}" + (f", window {config.window}" if config.window else ""),
        f"{model.vocabulary:,} {unit}s",
        f"trained for {meta['step']:,} steps",
        *([] if loss is None else [f"validation loss {loss:.4f} nats ({loss / math.log(2):.4f} bits) per {unit}"]),
    ]
