"""Draw what a model has learned: plain arrays in, PNG out. The only file with matplotlib."""

import io
from collections.abc import Iterable
from functools import cache, lru_cache
from typing import Any

import matplotlib
import numpy as np
from matplotlib import font_manager
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import LinearSegmentedColormap, Normalize, PowerNorm
from matplotlib.figure import Figure
from matplotlib.ft2font import FT2Font
from matplotlib.image import AxesImage, imsave
from matplotlib.text import Text

from reports.glyphs import visible

SIZE = (3.6, 3.9)  # inches; TensorBoard's cards are about as wide
DPI = 200  # twice a screen's
INK, FAINT = "#1a1a1a", "#767676"
SMALL: dict[str, Any] = {"fontsize": 8, "color": FAINT}
MAX_BITS = 8.0  # a character that costs more has the same colour
COLUMNS = 36  # characters in a line of a passage
LINES = 18
WEIGHTS = matplotlib.colormaps["Blues"]
COSTS = LinearSegmentedColormap.from_list("costs", ["#ffffff", "#fde3c1", "#f5a25d", "#d55e00", "#7a2b00"])
# Fonts with scripts that DejaVu, which comes with matplotlib, does not have; whichever is installed.
FONTS = (
    "DejaVu Sans Mono", "DejaVu Sans", "Noto Sans Mono CJK JP", "Noto Sans CJK JP", "Noto Sans CJK SC", "Hiragino Sans",
    "PingFang SC", "MS Gothic", "Microsoft YaHei", "WenQuanYi Micro Hei", "Arial Unicode MS", "Noto Sans Devanagari",
    "Noto Sans Bengali", "Noto Sans Thai", "Noto Emoji", "Segoe UI Symbol", "Apple Symbols",
)  # fmt: skip


@cache
def fonts() -> dict[str, FT2Font]:
    """The fonts that are there, by name, in the order in which they are asked for a character."""
    found: dict[str, FT2Font] = {}
    there = {entry.name for entry in font_manager.fontManager.ttflist}
    for name in FONTS:
        if name in there:
            found[name] = font_manager.get_font(font_manager.findfont(name))
    return found


@cache
def label(character: str) -> str:
    """A character as these fonts can show it: by its code point where they cannot."""
    shown = visible(character)
    if all(any(font.get_char_index(ord(each)) for font in fonts().values()) for each in shown):
        return shown
    return f"{ord(character):04X}"


def attention(step: int, head: str, characters: list[str], weights: np.ndarray) -> bytes:
    """What each character of a passage (rows) looks at (columns) in one head.

    Args:
        step: steps taken.
        head: its name, such as L0H1.
        characters: T tokens as text.
        weights: (T, T), each row adding up to 1.
    """
    canvas, ground, axes, image, title = _ground(tuple(characters))
    canvas.restore_region(ground)
    image.set_data(weights.astype(np.float32))
    title.set_text(f"{head}, step {step:,}: what each row looks at")
    axes.draw_artist(image)
    axes.draw_artist(title)
    return encoded(canvas)


@lru_cache(1)
def _ground(characters: tuple[str, ...]) -> tuple[FigureCanvasAgg, Any, Axes, AxesImage, Text]:
    """What is the same for every head and step, drawn once: most of the time goes into the characters."""
    figure = Figure(SIZE, dpi=DPI)
    canvas = FigureCanvasAgg(figure)
    axes, title = add(figure, "", 0.08, 0.13, 0.99, 0.90, above=0.055)
    title.set_animated(True)
    nothing = np.zeros((len(characters), len(characters)), np.float32)
    # By the square root: most weights are small, and would all look like none.
    norm = PowerNorm(0.5, 0, 1)
    image = axes.imshow(nothing, cmap=WEIGHTS, norm=norm, interpolation="nearest", animated=True)
    size = min(10.0, 255 / len(characters))
    for place, character in enumerate(characters):
        for x, y, towards in ((place, -1.1, {"va": "bottom", "ha": "center"}), (-1.1, place, {"ha": "right"})):
            write(axes, x, y, character, size, INK, **towards)
    scale(figure, image, 0.10, "attention", [0, 0.05, 0.2, 0.5, 1])
    canvas.draw()
    return canvas, canvas.copy_from_bbox(figure.bbox), axes, image, title


def surprisal(step: int, characters: list[str], bits: np.ndarray) -> bytes:
    """A passage, each character on the colour of what it cost.

    Args:
        step: steps taken.
        characters: N of them.
        bits: (N,) what each cost.
    """
    places, line, column = [], 0, 0
    for character in characters:
        if column == COLUMNS:
            line, column = line + 1, 0
        if line == LINES:
            break
        places.append((line, column))
        line, column = (line + 1, 0) if character == "\n" else (line, column + 1)
    lines = places[-1][0] + 1
    costs = bits[: len(places)].tolist()  # of what there is room for
    cells = np.full((lines, COLUMNS), np.nan)
    for place, cost in zip(places, costs, strict=True):
        cells[place] = cost
    mean = sum(costs) / len(costs)
    height = 0.8 + 0.17 * lines  # inches
    figure = Figure((SIZE[0], height), dpi=DPI)
    title = f"Cost of characters, step {step:,}: {mean:.2f} bits"
    axes, _ = add(figure, title, 0.02, 0.5 / height, 0.98, 1 - 0.28 / height)
    image = axes.imshow(cells, cmap=COSTS, norm=Normalize(0, MAX_BITS), aspect="auto", interpolation="nearest")
    for (row, column), character, cost in zip(places, characters[: len(places)], costs, strict=True):
        if character != " " or cost > 1:
            write(axes, column, row, character, 8.5, "white" if cost > 5 else FAINT if character.isspace() else INK)
    axes.set_axis_off()
    scale(figure, image, 0.38 / height, "bits", range(0, int(MAX_BITS) + 1, 2))
    return drawn(figure)


def calibration(step: int, counts: np.ndarray, confidence: np.ndarray, accuracy: np.ndarray, error: float) -> bytes:
    """How often the most likely character came, by how sure the model was of it.

    Args:
        step: steps taken.
        counts: (M,) predictions in each bin of confidence.
        confidence: (M,) their mean confidence.
        accuracy: (M,) the share of them that were right.
        error: the expected calibration error.
    """
    figure = Figure(SIZE, dpi=DPI)
    upper, _ = add(figure, f"How sure, and how right? Step {step:,}", 0.15, 0.35, 0.97, 0.92)
    lower, _ = add(figure, "", 0.15, 0.13, 0.97, 0.30)
    edges, width, there = np.linspace(0, 1, len(counts) + 1)[:-1], 1 / len(counts), counts > 0
    upper.bar(edges, accuracy, width, align="edge", color="#9ecae1", edgecolor="white")
    upper.plot([0, 1], [0, 1], "--", color=FAINT, linewidth=1)
    upper.plot(confidence[there], accuracy[there], "o-", color="#0072b2", markersize=4, linewidth=1.2)
    upper.set(xlim=(0, 1), ylim=(0, 1), xticks=[], yticks=np.linspace(0, 1, 6))
    upper.set_ylabel("how often it was right", fontsize=9, color=INK)
    said = f"expected calibration error {error:.3f}\nabove the dashes: too modest\nbelow: too sure"
    upper.text(0.03, 0.97, said, transform=upper.transAxes, va="top", fontsize=8, color=INK, linespacing=1.4)
    lower.bar(edges, counts, width, align="edge", color="#c0c0c0", edgecolor="white")
    most = int(counts.max())
    lower.set(xlim=(0, 1), ylim=(0, 1.05 * max(most, 1)), xticks=np.linspace(0, 1, 6), yticks=[])
    lower.text(0.02, 0.9, f"{most:,} at most", transform=lower.transAxes, va="top", **SMALL)
    lower.set_ylabel("how many", fontsize=9, color=INK)
    lower.set_xlabel("how sure of the likeliest character", fontsize=9, color=INK)
    return drawn(figure)


def add(
    figure: Figure, title: str, left: float, bottom: float, right: float, top: float, above: float = 0.015
) -> tuple[Axes, Text]:
    """Axes at a place of a figure, in shares of it, and a title so far above them."""
    axes = figure.add_axes((left, bottom, right - left, top - bottom))
    text = figure.text(left, top + above, title, fontsize=10, color=INK, va="bottom")
    axes.set(xticks=[], yticks=[])
    axes.tick_params(labelsize=8, colors=INK, length=2)
    for side in axes.spines.values():
        side.set_color("#d0d0d0")
    return axes, text


def write(axes: Axes, x: float, y: float, character: str, size: float, colour: str, **how: Any) -> None:
    """Put a character somewhere, in the middle unless told; a code point takes several, which are smaller."""
    shown = label(character)
    how = {"ha": "center", "va": "center_baseline", "family": list(fonts())} | how
    axes.text(
        x, y, shown, fontsize=size if len(shown) < 3 else 1.4 * size / len(shown), color=colour, parse_math=False, **how
    )


def scale(figure: Figure, image: AxesImage, top: float, name: str, ticks: Iterable[float]) -> None:
    """A scale of colours from the left to the right of a figure."""
    height = 0.08 / float(figure.get_figheight())  # a tenth of an inch
    axes = figure.add_axes((0.07, top - height, 0.7, height))
    bar = figure.colorbar(image, cax=axes, orientation="horizontal", ticks=list(ticks), format="{x:g}")
    bar.ax.tick_params(labelsize=8, length=2, colors=INK)
    bar.outline.set_visible(False)
    figure.text(0.79, top - height / 2, name, va="center", **SMALL)


def drawn(figure: Figure) -> bytes:
    """A figure as a file."""
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    return encoded(canvas)


def encoded(canvas: FigureCanvasAgg) -> bytes:
    """What has been drawn, as PNG."""
    file = io.BytesIO()
    imsave(file, np.asarray(canvas.buffer_rgba()), format="png")
    return file.getvalue()
