"""Prepare what TensorBoard shows: the layout of charts, samples, and pictures of the model's attention."""

import re
from collections.abc import Iterator
from typing import Any

import numpy as np

from base.errors import visible
from data.passages import ATTENDED, passage
from data.text import Text
from gpt.analysis import attention_maps, spread_over
from gpt.model import GPT

NUM_HEADS = 4  # heads whose attention is plotted, evenly spaced among all
# pixels, at least: twice the width of TensorBoard's cards, for screens of high resolution
SIDE = 720
BLUES = "f7fbff deebf7 c6dbef 9ecae1 6baed6 4292c6 2171b5 08519c 08306b".split()


def _chart(*tags: str) -> list[Any]:
    # TensorBoard matches these regular expressions from the start
    return ["Multiline", [f"{tag}$" for tag in tags]]


def layout(peak_is_known: bool) -> dict[str, dict[str, list[Any]]]:
    """Return the charts of TensorBoard's page CUSTOM SCALARS, {group: {title: chart}}."""
    share_of_peak = {}
    if peak_is_known:
        share_of_peak["share of peak (MFU)"] = _chart("perf/mfu")
    return {
        "Does it learn?": {
            "loss (nats per token)": _chart("train/loss", "val/loss"),
            "bits per character": _chart("train/bpc", "val/bpc"),
        },
        "Are the steps right?": {
            "learning rate": _chart("optim/lr"),
            "gradient norm": _chart("optim/grad_norm"),
            "update / weight of a step, by group": _chart("update/.*"),
        },
        "Is the machine busy?": {
            "characters per second": _chart("perf/chars_per_s"),
            **share_of_peak,
            "memory (GiB)": _chart("perf/memory_gib"),
        },
    }


def as_markdown(samples: list[tuple[str, str]]) -> str:
    """Format `samples`, pairs (prompt, text), as Markdown in which TensorBoard shows every character literally."""

    def block(text: str) -> str:
        # Markdown and HTML do not interpret numeric entities.
        literal = re.sub("[^0-9A-Za-z]", lambda match: f"&#{ord(match[0])};", visible(text))
        return f"<pre><code>{literal}</code></pre>"

    parts = []
    for prompt, text in samples:
        if prompt:
            parts += ["**prompt**", block(prompt), "**the model continues**"]
        else:
            parts.append("**the model writes**")
        parts.append(block(text))
    return "\n\n".join(parts)


def plots(model: GPT, text: Text) -> Iterator[tuple[str, np.ndarray]]:
    """Yield (TensorBoard tag, picture): the attention of heads within a passage of the validation text.

    A picture, (height, width, 3) uint8, has a row for each query. Its colours lie between evenly
    spaced `BLUES`, on a scale of square roots, because most weights are small.
    """
    config = model.config
    # (T,)
    attended = passage(text, min(ATTENDED, config.context)).to(model.embedding.weight.device)
    roots = attention_maps(model, attended).sqrt().numpy()  # (layers, heads, T, T)
    places = np.linspace(0, 1, len(BLUES))
    # (3, blues), of "rrggbb"
    channels = np.array([[int(blue[i : i + 2], 16) for blue in BLUES] for i in (0, 2, 4)])
    cell = -(-SIDE // len(attended))  # pixels, rounded up
    for layer, head in spread_over(config.layers, config.heads, NUM_HEADS):
        shades = roots[layer, head]  # (T, T)
        colours = [np.interp(shades, places, channel) for channel in channels]
        cells = np.stack(colours, -1).round().astype(np.uint8)  # (T, T, 3)
        picture = cells.repeat(cell, 0).repeat(cell, 1)
        yield f"view_attention/L{layer}H{head}", picture
