"""What the lessons share: the import path, the style of the plots, and a plot of a matrix.

Importing this module makes `gpt` and `data` importable, from whichever directory a notebook was
started.
"""

import sys
import warnings
from collections.abc import Sequence
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes

sys.path.insert(0, str(Path(__file__).parents[2]))
# tqdm warns that ipywidgets is missing.
warnings.filterwarnings("ignore", "IProgress not found")
plt.rcParams.update(
    {
        "figure.dpi": 100,
        "figure.constrained_layout.use": True,
        "figure.facecolor": "white",
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.titlesize": 11,
        "font.size": 10,
        "legend.frameon": False,
    }
)


def show(
    matrix: np.ndarray,
    title: str,
    *,
    rows: Sequence[str] = (),
    columns: Sequence[str] = (),
    numbers: bool = False,
    around_zero: bool = False,
    axes: Axes | None = None,
) -> Axes:
    """Plot a matrix as coloured squares.

    Args:
        matrix: (R, C); NaN and infinite entries stay white.
        title: above the plot.
        rows: names of the R rows; may be empty.
        columns: names of the C columns; may be empty.
        numbers: write each value into its square.
        around_zero: use one colour for each sign; otherwise the scale goes from light (smallest)
            to dark.
        axes: where to plot; None creates a figure.
    """
    axes = axes or plt.subplots(figsize=(3.4, 3.2))[1]
    values = np.ma.masked_invalid(np.asarray(matrix, dtype=float))
    if around_zero:
        most = float(np.abs(values).max()) or 1.0
        image = axes.imshow(values, cmap="RdBu_r", vmin=-most, vmax=most)
    else:
        image = axes.imshow(values, cmap="Blues")
    axes.set_title(title)
    for axis, names in ((axes.xaxis, columns), (axes.yaxis, rows)):
        axis.set_ticks(range(len(names)), names)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    if numbers:
        for (row, column), value in np.ma.ndenumerate(values, compressed=True):
            dark = np.dot(image.cmap(image.norm(value))[:3], (0.3, 0.6, 0.1)) < 0.5
            axes.text(
                column,
                row,
                f"{value:.2g}",
                ha="center",
                va="center",
                color="white" if dark else "black",
            )
    return axes
