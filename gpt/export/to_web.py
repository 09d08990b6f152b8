"""Export to one HTML file that generates text in a browser; `web_page/gpt.js` computes the logits."""

import base64
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from base.html import render
from base.progress import count
from gpt.facts import describe_context, describe_shape, in_nats, rounded
from gpt.model import GPT
from gpt.tokenizer import tokenizer_from

TEMPLATE = Path(__file__).with_name("web_page") / "index.html"


def write(
    model: GPT,
    meta: dict[str, Any],
    path: Path,
    passages: Sequence[str] | None = None,
    title: str | None = None,
) -> None:
    """Write an HTML page that contains a model, with weights rounded to bf16, and generates text with it.

    `passages` are the texts of the game, if there is one. The default title names the training
    text.
    """
    unit = tokenizer_from(meta["vocabulary"]).unit
    loss = meta["val_loss"]
    num_weights = model.num_parameters()
    size = count(num_weights, "weight")
    if num_weights >= 1e5:
        size = f"{rounded(num_weights / 1e6, 2)} million weights"
    about = f"A GPT with {size}, trained for {count(meta['step'], 'step')} on {meta['text']}"
    facts = [
        describe_shape(model.config),
        describe_context(model.config),
        f"{model.vocabulary:,} {unit}s",
    ]
    if loss is not None:
        about += f"; {loss:.2f} nats per {unit} on held-out text"
        facts.append(f"validation loss {in_nats(loss)} per {unit}")
    # (weights,)
    weights = torch.cat([weight.detach().bfloat16().flatten() for weight in model.parameters()])
    halves = weights.view(torch.int16).numpy().astype("<i2")  # (weights,): NumPy has no bf16
    described = {
        "config": vars(model.config),
        "vocabulary": meta["vocabulary"],
        "size": model.vocabulary,
        "tensors": [(name, tensor.numel()) for name, tensor in model.named_parameters()],
        "name": meta["text"],
        "about": about,
        "unit": unit,
        "facts": facts,
        "passages": passages,
        "title": title,
        "end": meta["documents"]["end"] if meta["documents"] else "",
    }
    page = render(
        TEMPLATE,
        sorted(TEMPLATE.parent.glob("*.css")),
        sorted(TEMPLATE.parent.glob("*.js")),
        title=f"{title or meta['text']} · chargpt",
        unit=unit,
        Units=f"{unit}s".title(),
        model=described,
        weights=base64.b64encode(halves.tobytes()).decode(),
    )
    path.write_text(page, encoding="utf-8", newline="\n")
