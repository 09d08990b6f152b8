"""One HTML file that holds a model and everything it takes to write with it: no server, no network.

The page is plain HTML, CSS and JavaScript from `page/`; what it computes is in `page/gpt.js`.
"""

import base64
from pathlib import Path
from string import Template
from typing import Any

from torch import Tensor

from base.html import embedded, sha256
from gpt.model import GPT

PAGE = Path(__file__).with_name("web_page")


def write_web(model: GPT, meta: dict[str, Any], path: Path) -> None:
    """Write a model as a page that any browser opens, also from a disk."""
    path.write_text(page(model, meta), encoding="utf-8", newline="\n")


def page(model: GPT, meta: dict[str, Any]) -> str:
    """The text of the page for a model and what `load_checkpoint` returns beside it."""
    style = (PAGE / "style.css").read_text("utf-8")
    script = "".join((PAGE / name).read_text("utf-8") for name in ("gpt.js", "page.js"))
    tensors = dict(model.named_parameters())  # tied ones once
    shown = {
        "config": vars(model.config),
        "vocabulary": meta["vocabulary"],
        "size": model.vocabulary,
        "tensors": [(name, tensor.numel()) for name, tensor in tensors.items()],
        "name": meta["text"],
        "facts": facts(model, meta),
    }
    # Nothing but the style and the script of this file runs, and nothing at all is loaded.
    policy = f"default-src 'none'; img-src data:; style-src {sha256(style)}; script-src {sha256(script)}"
    return Template((PAGE / "index.html").read_text("utf-8")).substitute(
        policy=f"{policy}; base-uri 'none'; form-action 'none'",
        style=style,
        script=script,
        model=embedded(shown),
        weights=base64.b64encode(b"".join(map(little_endian, tensors.values()))).decode(),
    )


def facts(model: GPT, meta: dict[str, Any]) -> list[str]:
    """What is known of a model, in a few words each."""
    config = model.config
    unit = "byte" if meta["vocabulary"]["kind"] == "byte" else "character"
    known = [
        f"{model.num_parameters():,} parameters",
        f"{config.layers} layers, {config.heads} heads, {config.dim} wide",
        f"context {config.context}" + (f", window {config.window}" if config.window else ""),
        f"{model.vocabulary:,} {unit}s",
        f"trained for {meta['step']:,} steps",
    ]
    if meta["val_loss"] is not None:
        known.append(f"validation loss {meta['val_loss']:.4f} nats per {unit}")
    return known


def little_endian(tensor: Tensor) -> bytes:
    """The fp32 values of a tensor in order."""
    return tensor.detach().cpu().float().numpy().astype("<f4").tobytes()
