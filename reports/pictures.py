"""Plot what a model does with a passage of the validation text: attention, and the surprisal of each character."""

import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFont

from data.passages import ATTENDED, varied_line
from data.text import Text
from gpt.analysis import attention_maps, by_character, letters, token_surprisals
from gpt.evaluation import evaluation_windows, predictions
from gpt.model import GPT

NUM_HEADS = 4  # heads whose attention is plotted, evenly spaced among all
NUM_TOKENS = 320  # tokens of the passage whose surprisal is plotted
WIDTH = 720  # pixels: twice the width of TensorBoard's cards, for screens of high resolution
INK, FAINT = "#1a1a1a", "#767676"
MAX_NATS = 6.0  # surprisal at the upper end of the colour scale
COLUMNS, LINES = 36, 18  # size of the plotted passage in characters
BLUES = ["#f7fbff", "#deebf7", "#c6dbef", "#9ecae1", "#6baed6", "#4292c6", "#2171b5", "#08519c", "#08306b"]
ORANGES = ["#ffffff", "#fde3c1", "#f5a25d", "#d55e00", "#7a2b00"]
FONTS = ["DejaVuSansMono.ttf", "LiberationMono-Regular.ttf", "Menlo.ttc", "consola.ttf"]  # the first installed one
SHOWN = {"\n": "↵", "\t": "⇥", " ": "␣", "\x7f": "␡"}


def plots(model: GPT, text: Text, step: int) -> Iterator[tuple[str, Image.Image]]:
    """Yield pairs (TensorBoard tag, picture) for a passage of validation text: attention of heads, then surprisal."""
    begin, context, tokenizer = varied_line(text), model.config.context, text.tokenizer
    passage = text.validation[begin : begin + NUM_TOKENS].astype("int64")
    attended = torch.from_numpy(passage[: min(ATTENDED, context)]).to(model.embedding.weight.device)
    maps, names = attention_maps(model, attended), [tokenizer.names[token] for token in attended.tolist()]
    for layer, head in spread_over(model.config.layers, model.config.heads, NUM_HEADS):
        title = f"layer {layer}, head {head}, step {step:,}: what each row looks at"
        yield f"view_attention/L{layer}H{head}", attention(title, names, maps[layer, head].numpy())

    around = text.validation[max(0, begin - context) : begin + NUM_TOKENS]
    # With this stride, each token is predicted from at least half a context, if the text has that much.
    predicted = predictions(model, evaluation_windows(around, context, batch=4, stride=max(1, context // 2)))
    starts = torch.from_numpy(tokenizer.token_sizes[:, 0])  # (V,) whether a token begins a character
    (found,) = by_character(token_surprisals(predicted, int(around[0]), model.vocabulary, 1), starts, len(around))
    count = max(1, int(starts[passage].sum()))  # characters that begin in the passage
    yield "view/surprisal", surprisal(step, letters(found, tokenizer.decode)[-count:], found.nats[-count:].tolist())


def spread_over(layers: int, heads: int, most: int) -> list[tuple[int, int]]:
    """Return up to `most` pairs (layer, head), evenly spaced among all heads; each layer has `heads`."""
    chosen = np.linspace(0, layers * heads - 1, min(most, layers * heads))
    return [divmod(round(index), heads) for index in chosen.tolist()]


def attention(title: str, characters: Sequence[str], weights: np.ndarray) -> Image.Image:
    """Return a plot of attention weights, (T, T): queries from top to bottom, keys from left to right."""
    left, top, side = 84, 94, 600  # pixels
    image, draw = canvas(784, title)
    # The colour scale is a square root: most weights are small and would look like 0 on a linear scale.
    cells = Image.fromarray(colours(np.sqrt(weights), BLUES)).resize((side, side), Image.Resampling.NEAREST)
    image.paste(cells, (left, top))
    draw.rectangle((left - 2, top - 2, left + side + 1, top + side + 1), outline="#d0d0d0", width=2)
    cell = side / len(characters)
    for position, character in enumerate(characters):
        middle = (position + 0.5) * cell
        write(draw, left + middle, top - 16, character, min(20, 1.2 * cell))
        write(draw, left - 16, top + middle, character, min(20, 1.2 * cell))
    add_colour_bar(image, 716, BLUES, {f"{weight:g}": weight**0.5 for weight in (0, 0.05, 0.2, 0.5, 1)}, "attention")
    return image


def surprisal(step: int, characters: Sequence[str], nats: Sequence[float]) -> Image.Image:
    """Return a picture of a text in which the colour behind each character shows its surprisal."""
    cells, line, column = [], 0, 0
    for character in characters:
        line, column = (line + 1, 0) if column == COLUMNS else (line, column)
        if line == LINES:
            break
        cells.append((column, line))
        line, column = (line + 1, 0) if character == "\n" else (line, column + 1)
    characters, nats = characters[: len(cells)], nats[: len(cells)]
    mean, bottom = sum(nats) / len(nats), 60 + 34 * (cells[-1][1] + 1)
    image, draw = canvas(bottom + 94, f"Surprisal, step {step:,}: mean {mean:.2f} nats")
    shades = colours(np.array(nats) / MAX_NATS, ORANGES).tolist()
    for (column, line), character, cost, shade in zip(cells, characters, nats, shades, strict=True):
        x, y = 18 + 19 * column, 60 + 34 * line
        draw.rectangle((x, y, x + 18, y + 33), fill=tuple(shade))
        if character != " " or cost > 0.7:
            ink = "white" if cost > 3.5 else FAINT if character.isspace() else INK
            write(draw, x + 9.5, y + 17, character, 24, ink)
    add_colour_bar(image, bottom + 26, ORANGES, {str(nats): nats / MAX_NATS for nats in (0, 2, 4, 6)}, "nats")
    return image


def colours(values: np.ndarray, stops: list[str]) -> np.ndarray:
    """Map values in [0, 1] to RGB colours between evenly spaced `stops`: (...) -> (..., 3) uint8."""
    at = np.linspace(0, 1, len(stops))
    channels = np.array([[int(stop[i : i + 2], 16) for stop in stops] for i in (1, 3, 5)])  # (3, stops)
    return np.stack([np.interp(values, at, channel) for channel in channels], -1).round().astype(np.uint8)


def canvas(height: int, title: str) -> tuple[Image.Image, ImageDraw.ImageDraw]:
    image = Image.new("RGB", (WIDTH, height), "white")
    draw = ImageDraw.Draw(image)
    draw.text((18, 30), title, INK, ImageFont.load_default(28), "lm")
    return image, draw


def add_colour_bar(image: Image.Image, top: int, stops: list[str], ticks: Mapping[str, float], name: str) -> None:
    """Add a horizontal colour bar; `ticks` are positions from 0 to 1 by label."""
    left, width, draw, small = 50, 504, ImageDraw.Draw(image), ImageFont.load_default(22)
    image.paste(Image.fromarray(np.tile(colours(np.linspace(0, 1, width), stops), (16, 1, 1))), (left, top))
    for tick, at in ticks.items():
        x = left + at * (width - 1)
        draw.line((x, top + 16, x, top + 21), INK, 2)
        draw.text((x, top + 24), tick, INK, small, "mt")
    draw.text((left + width + 14, top + 8), name, FAINT, small, "lm")


def write(draw: ImageDraw.ImageDraw, x: float, y: float, character: str, size: float, ink: str = INK) -> None:
    """Write a character centred at (x, y); one that the font lacks is written as its code point, smaller."""
    shown = label(character)
    draw.text((x, y), shown, ink, font(size if len(shown) < 2 else 1.4 * size / len(shown)), "mm")


@cache
def font(size: float) -> "ImageFont.FreeTypeFont | ImageFont.ImageFont":
    """Return an installed monospace font, or else Pillow's own, which has few characters beyond ASCII."""
    for name in FONTS:
        with suppress(OSError):
            return ImageFont.truetype(name, size)
    return ImageFont.load_default(size)


@cache
def label(character: str) -> str:
    """Return a visible form of a character, or its code point, such as 4E2D, if the font lacks the character."""
    shown, lacking = visible(character), bytes(font(24).getmask("\U0010ffff"))
    if all(bytes(font(24).getmask(each)) != lacking for each in shown):
        return shown
    return {"\n": "\\n", "\t": "\\t", " ": "·"}.get(character, f"{ord(character):04X}")


def visible(character: str) -> str:
    """Return a visible symbol for an invisible character, such as ↵ for a line break."""
    if len(character) != 1:
        return character
    if character in SHOWN:
        return SHOWN[character]
    if character < " ":
        return chr(0x2400 + ord(character))  # Unicode's pictures of control characters
    if unicodedata.combining(character) or unicodedata.category(character) == "Mn":
        return f"◌{character}"
    return character if character.isprintable() else f"U+{ord(character):04X}"
