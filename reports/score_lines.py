"""The rows and JSON lines of score.py, and the lines of a text on which two models differ most."""

import json
import math
from collections.abc import Iterator
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from base.errors import printable
from reports.scoring import Piece

if TYPE_CHECKING:
    from torch import Tensor

    from gpt.analysis import Costs
    from gpt.evaluation import Score

NUM_LINES = 5  # lines that are printed
MIN_LENGTH = 10  # characters of a line that is ranked
MAX_SHOWN = 80  # characters of a line that are printed


# -- Characters --------------------------------------------------------------------------------------
def json_lines(piece: Piece, names: list[list[str]]) -> Iterator[str]:
    """Yield a line of JSON for each character; the key "other" is of the second model."""
    said = [list(json_costs(costs, names_of)) for costs, names_of in zip(piece.costs, names, strict=True)]
    for offset, (letter, own) in enumerate(zip(piece.text, said[0], strict=True)):
        line = {"position": piece.position + offset, "character": letter} | own
        if len(said) > 1:
            line["other"] = said[1][offset]
        yield json.dumps(line) + "\n"


def json_costs(costs: "Costs", names: list[str]) -> Iterator[dict[str, Any]]:
    """Yield the surprisal of each character, in nats, and the probabilities of the most likely ones."""
    for nats, top, probs in zip(costs.nats.tolist(), costs.top.tolist(), costs.probabilities.tolist(), strict=True):
        best = {names[token]: round(p, 6) for token, p in zip(top, probs, strict=True) if p > 0}
        yield {"nats": round(nats, 9), "likely": best}


class Differences:
    """Rank the lines by how much their surprisal per character differs between two models, as the page does.

    Short lines are left out, because one character may decide them; lines with the same beginning count once.
    """

    def __init__(self) -> None:
        # printed text -> (|bits|, -line number, bits per character)
        self.best: dict[str, tuple[float, int, float]] = {}
        self.line, self.shown, self.length, self.nats = 1, "", 0, 0.0

    def add(self, text: str, nats: "Tensor") -> None:
        """Add N characters; nats (N,) is the surprisal of B minus that of A."""
        parts = text.split("\n")
        # Line ends have a surprisal, too, but belong to no line.
        ends = accumulate(len(part) + 1 for part in parts)
        for number, (part, end) in enumerate(zip(parts, ends, strict=True)):
            if number:
                self._end()
            self.shown = (self.shown + part[:MAX_SHOWN])[:MAX_SHOWN]
            self.length += len(part)
            self.nats += float(nats[end - 1 - len(part) : end - 1].sum())

    def _end(self) -> None:
        if self.length >= MIN_LENGTH and self.nats:
            bits = self.nats / math.log(2) / self.length
            entry = abs(bits), -self.line, bits
            self.best[self.shown] = max(entry, self.best.get(self.shown, entry))
            if len(self.best) > NUM_LINES:
                del self.best[min(self.best, key=self.best.__getitem__)]
        self.line, self.shown, self.length, self.nats = self.line + 1, "", 0, 0.0

    def most(self) -> list[str]:
        """End the text; return the lines that differ most, as rows to print."""
        self._end()
        ranked = sorted(((*entry, shown) for shown, entry in self.best.items()), reverse=True)
        return [f"{-line:>9,}  {bits:+8.2f}  {printable(shown)}" for _, line, bits, shown in ranked]


# -- Figures -----------------------------------------------------------------------------------------
def figures(score: "Score") -> list[str]:
    """Format nats per character, bits per character and bits per byte."""
    return [f"{value:.6f}" for value in (score.bpc * math.log(2), score.bpc, score.bpb)]


def difference(a: "Score", b: "Score") -> list[str]:
    """Format the figures of B minus those of A."""
    return [f"{value:+.6f}" for value in ((b.bpc - a.bpc) * math.log(2), b.bpc - a.bpc, b.bpb - a.bpb)]


def count(number: int, what: str) -> str:
    """Write a number of things, such as `1 byte` or `2,000 bytes`."""
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def row(name: str, cells: list[str]) -> str:
    """Format a row of the table."""
    return f"{name:<42}" + "".join(f"{cell:>16}" for cell in cells)
