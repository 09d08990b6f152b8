"""Plot attention and surprisal as PNG, from arrays. Only this file plots with matplotlib."""

import io
from collections.abc import Iterable
from functools import cache
from typing import Any

import matplotlib
import numpy as np
from matplotlib import font_manager
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap, Normalize, PowerNorm
from matplotlib.figure import Figure
from matplotlib.image import AxesImage

from reports.glyphs import visible

SIZE = (3.6, 3.9)  # inches; about the width of TensorBoard's cards
DPI = 200  # sharp on screens with twice the usual resolution
INK, FAINT = "#1a1a1a", "#767676"
SMALL: dict[str, Any] = {"fontsize": 8, "color": FAINT}  # style of small text
MAX_NATS = 6.0  # upper end of the colour scale of surprisal
COLUMNS, LINES = 36, 18  # of the plotted passage, in characters
ATTENTION_COLOURS = matplotlib.colormaps["Blues"]
SURPRISAL_COLOURS = LinearSegmentedColormap.from_list("", ["#ffffff", "#fde3c1", "#f5a25d", "#d55e00", "#7a2b00"])
FONTS = ["DejaVu Sans Mono", "DejaVu Sans"]  # they come with matplotlib


@cache
def label(character: str) -> str:
    """Return a visible form of a character, or its code point if the fonts lack it, as for Chinese characters."""
    shown = visible(character)
    fonts = [font_manager.get_font(font_manager.findfont(name)) for name in FONTS]
    if all(any(font.get_char_index(ord(each)) for font in fonts) for each in shown):
        return shown
    return f"{ord(character):04X}"


def attention(step: int, head: str, characters: list[str], weights: np.ndarray) -> bytes:
    """Plot the attention weights (T, T) of a head, such as L0H1: one row for each query, one column for each key."""
    figure = Figure(SIZE, dpi=DPI)
    axes = add_axes(figure, f"{head}, step {step:,}: what each row looks at", 0.08, 0.13, 0.99, 0.90, above=0.055)
    # The colour scale is a square root: most weights are small and would look like 0 on a linear scale.
    norm = PowerNorm(0.5, 0, 1)
    image = axes.imshow(weights.astype(np.float32), cmap=ATTENTION_COLOURS, norm=norm, interpolation="nearest")
    size = min(10.0, 255 / len(characters))
    for position, character in enumerate(characters):
        for x, y, align in ((position, -1.1, {"va": "bottom", "ha": "center"}), (-1.1, position, {"ha": "right"})):
            add_character(axes, x, y, character, size, INK, **align)
    add_colour_bar(figure, image, 0.10, "attention", [0, 0.05, 0.2, 0.5, 1])
    return png(figure)


def surprisal(step: int, characters: list[str], nats: np.ndarray) -> bytes:
    """Plot N characters, each on a background coloured by its surprisal in `nats` (N,)."""
    cells, line, column = [], 0, 0
    for character in characters:
        if column == COLUMNS:
            line, column = line + 1, 0
        if line == LINES:
            break
        cells.append((line, column))
        line, column = (line + 1, 0) if character == "\n" else (line, column + 1)
    lines = cells[-1][0] + 1
    costs = nats[: len(cells)].tolist()  # of the characters that fit
    colours = np.full((lines, COLUMNS), np.nan)
    for cell, cost in zip(cells, costs, strict=True):
        colours[cell] = cost
    mean = sum(costs) / len(costs)
    height = 0.8 + 0.17 * lines  # inches
    figure = Figure((SIZE[0], height), dpi=DPI)
    title = f"Surprisal, step {step:,}: mean {mean:.2f} nats"
    axes = add_axes(figure, title, 0.02, 0.5 / height, 0.98, 1 - 0.28 / height)
    image = axes.imshow(
        colours, cmap=SURPRISAL_COLOURS, norm=Normalize(0, MAX_NATS), aspect="auto", interpolation="nearest"
    )
    for (row, column), character, cost in zip(cells, characters[: len(cells)], costs, strict=True):
        if character != " " or cost > 0.7:
            ink = "white" if cost > 3.5 else FAINT if character.isspace() else INK
            add_character(axes, column, row, character, 8.5, ink)
    axes.set_axis_off()
    add_colour_bar(figure, image, 0.38 / height, "nats", range(0, int(MAX_NATS) + 1, 2))
    return png(figure)


def add_axes(
    figure: Figure, title: str, left: float, bottom: float, right: float, top: float, above: float = 0.015
) -> Axes:
    """Add axes with a title; all positions, and the distance `above` the axes, are fractions of the figure's size."""
    axes = figure.add_axes((left, bottom, right - left, top - bottom))
    figure.text(left, top + above, title, fontsize=10, color=INK, va="bottom")
    axes.set(xticks=[], yticks=[])
    axes.tick_params(labelsize=8, colors=INK, length=2)
    for side in axes.spines.values():
        side.set_color("#d0d0d0")
    return axes


def add_character(axes: Axes, x: float, y: float, character: str, size: float, colour: str, **how: Any) -> None:
    """Write a character at (x, y), centred by default; a code point gets a smaller font to fit."""
    shown = label(character)
    size = size if len(shown) < 3 else 1.4 * size / len(shown)
    how = {"ha": "center", "va": "center_baseline", "family": FONTS} | how
    axes.text(x, y, shown, fontsize=size, color=colour, parse_math=False, **how)


def add_colour_bar(figure: Figure, image: AxesImage, top: float, name: str, ticks: Iterable[float]) -> None:
    """Add a horizontal colour bar; `top` is a fraction of the figure's height."""
    height = 0.08 / float(figure.get_figheight())  # 0.08 inches
    axes = figure.add_axes((0.07, top - height, 0.7, height))
    bar = figure.colorbar(image, cax=axes, orientation="horizontal", ticks=list(ticks), format="{x:g}")
    bar.ax.tick_params(labelsize=8, length=2, colors=INK)
    bar.outline.set_visible(False)
    figure.text(0.79, top - height / 2, name, va="center", **SMALL)


def png(figure: Figure) -> bytes:
    """Render a figure as PNG."""
    file = io.BytesIO()
    figure.savefig(file, format="png")
    return file.getvalue()
