"""Prepare what TensorBoard shows: the layout of charts, samples, and pictures of the model's attention."""

import re
import unicodedata
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import cache
from typing import Any

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from base.errors import visible
from data.passages import ATTENDED, passage
from data.text import Text
from gpt.analysis import attention_maps, spread_over
from gpt.model import GPT

NUM_HEADS = 4  # heads whose attention is plotted, evenly spaced among all
WIDTH = 720  # pixels: twice the width of TensorBoard's cards, for screens of high resolution
INK = "#1a1a1a"
FAINT = "#767676"
BLUES = [
    "#f7fbff",
    "#deebf7",
    "#c6dbef",
    "#9ecae1",
    "#6baed6",
    "#4292c6",
    "#2171b5",
    "#08519c",
    "#08306b",
]
# the first installed one
FONTS = ["DejaVuSansMono.ttf", "LiberationMono-Regular.ttf", "Menlo.ttc", "consola.ttf"]
# Unicode's pictures of control characters
SHOWN = {chr(code): chr(0x2400 + code) for code in range(32)}
SHOWN |= {"\n": "↵", "\t": "⇥", " ": "␣", "\x7f": "␡"}


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


def plots(model: GPT, text: Text, step: int) -> Iterator[tuple[str, Image.Image]]:
    """Yield pairs (TensorBoard tag, picture): the attention of heads within a passage of the validation text."""
    config = model.config
    # (T,)
    attended = passage(text, min(ATTENDED, config.context)).to(model.embedding.weight.device)
    maps = attention_maps(model, attended)  # (layers, heads, T, T)
    names = [text.tokenizer.names[token] for token in attended.tolist()]
    for layer, head in spread_over(config.layers, config.heads, NUM_HEADS):
        title = f"layer {layer}, head {head}, step {step:,}: what each row looks at"
        yield f"view_attention/L{layer}H{head}", attention(title, names, maps[layer, head].numpy())


def attention(title: str, characters: Sequence[str], weights: np.ndarray) -> Image.Image:
    """Return a plot of attention weights, (T, T): queries from top to bottom, keys from left to right."""
    image = Image.new("RGB", (WIDTH, 784), "white")
    draw = ImageDraw.Draw(image)
    left = 84  # pixels, of the cells
    top = 94
    side = 600
    # anchor "lm": the point is at the left, in the middle of the height
    draw.text((18, 30), title, INK, ImageFont.load_default(28), "lm")
    cells = Image.fromarray(colours(weights)).resize((side, side), Image.Resampling.NEAREST)
    image.paste(cells, (left, top))
    draw.rectangle(
        (left - 2, top - 2, left + side + 1, top + side + 1), outline="#d0d0d0", width=2
    )
    cell = side / len(characters)
    for position, character in enumerate(characters):
        middle = (position + 0.5) * cell
        write(draw, left + middle, top - 16, character, min(20, 1.2 * cell))
        write(draw, left - 16, top + middle, character, min(20, 1.2 * cell))
    add_colour_bar(image, draw)
    return image


def colours(weights: np.ndarray) -> np.ndarray:
    """Map weights in [0, 1] to RGB colours between evenly spaced `BLUES`: (...) -> (..., 3) uint8."""
    places = np.linspace(0, 1, len(BLUES))
    roots = np.sqrt(weights)  # most weights are small, like 0 on a linear scale
    # (3, blues), of "#rrggbb"
    channels = np.array([[int(blue[i : i + 2], 16) for blue in BLUES] for i in (1, 3, 5)])
    return (
        np.stack([np.interp(roots, places, channel) for channel in channels], -1)
        .round()
        .astype(np.uint8)
    )


def add_colour_bar(image: Image.Image, draw: ImageDraw.ImageDraw) -> None:
    left = 50  # pixels
    top = 716
    width = 504
    small = ImageFont.load_default(22)
    # `colours` and the ticks below are on a scale of square roots.
    gradient = colours(np.linspace(0, 1, width) ** 2)  # (width, 3)
    image.paste(Image.fromarray(np.tile(gradient, (16, 1, 1))), (left, top))
    for weight in (0, 0.05, 0.2, 0.5, 1):
        x = left + weight**0.5 * (width - 1)
        draw.line((x, top + 16, x, top + 21), INK, 2)
        draw.text((x, top + 24), f"{weight:g}", INK, small, "mt")
    draw.text((left + width + 14, top + 8), "attention", FAINT, small, "lm")


def write(draw: ImageDraw.ImageDraw, x: float, y: float, character: str, size: float) -> None:
    """Write a character centred at (x, y), or a symbol for it; the size shrinks with the length of the symbol."""
    shown = symbol(character)
    if len(shown) > 1:
        size *= 1.4 / len(shown)
    draw.text((x, y), shown, INK, font(size), "mm")


@cache
def font(size: float) -> "ImageFont.FreeTypeFont | ImageFont.ImageFont":
    """Return an installed monospace font, or else Pillow's own, which has few characters beyond ASCII."""
    for name in FONTS:
        with suppress(OSError):
            return ImageFont.truetype(name, size)
    return ImageFont.load_default(size)


def symbol(character: str) -> str:
    """Return a visible symbol for an invisible character, such as ↵ for a line break."""
    if len(character) != 1 or character in SHOWN:
        return SHOWN.get(character, character)
    if unicodedata.combining(character) or unicodedata.category(character) == "Mn":
        return f"◌{character}"
    if not character.isprintable():
        return f"U+{ord(character):04X}"
    return character
