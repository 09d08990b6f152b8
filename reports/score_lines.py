"""score.py's rows, JSON lines, and the lines on which two models differ most."""

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

DIFFERENCES = 5  # lines that are named where two models differ
MIN_LINE = 10  # characters that such a line has
MAX_LINES = 80  # characters of it that are shown


# -- What is said of each character ------------------------------------------------------------------
def json_lines(piece: Piece, names: list[list[str]]) -> Iterator[str]:
    """One line of JSON for each character; of the second model, under "other"."""
    said = [list(opinions(costs, names_of)) for costs, names_of in zip(piece.costs, names, strict=True)]
    for offset, (letter, opinion) in enumerate(zip(piece.text, said[0], strict=True)):
        line = {"position": piece.position + offset, "character": letter} | opinion
        if len(said) > 1:
            line["other"] = said[1][offset]
        yield json.dumps(line) + "\n"


def opinions(costs: "Costs", names: list[str]) -> Iterator[dict[str, Any]]:
    """What each character cost, in nats, and the probabilities of the likeliest."""
    for nats, top, probs in zip(costs.nats.tolist(), costs.top.tolist(), costs.probabilities.tolist(), strict=True):
        best = {names[token]: round(p, 6) for token, p in zip(top, probs, strict=True) if p > 0}
        yield {"nats": round(nats, 9), "likely": best}


class Differences:
    """The lines that cost one model much more than the other, as the page ranks them: per character.

    Short lines are left out, for one character may decide them; of lines with the same beginning, one is named.
    """

    def __init__(self) -> None:
        self.best: dict[str, tuple[float, int, float]] = {}  # by what is shown: size, -number, bits per character
        self.line, self.shown, self.length, self.nats = 1, "", 0, 0.0

    def add(self, text: str, nats: "Tensor") -> None:
        """Go on in the text.

        Args:
            text: N characters.
            nats: (N,) how much more each costs B than A.
        """
        parts = text.split("\n")
        # Line ends, which join the parts, cost something as well, but belong to no line.
        ends = accumulate(len(part) + 1 for part in parts)
        for place, (part, end) in enumerate(zip(parts, ends, strict=True)):
            if place:
                self._end()
            self.shown = (self.shown + part[:MAX_LINES])[:MAX_LINES]
            self.length += len(part)
            self.nats += float(nats[end - 1 - len(part) : end - 1].sum())

    def _end(self) -> None:
        if self.length >= MIN_LINE and self.nats:
            bits = self.nats / math.log(2) / self.length
            entry = abs(bits), -self.line, bits
            self.best[self.shown] = max(entry, self.best.get(self.shown, entry))
            if len(self.best) > DIFFERENCES:
                del self.best[min(self.best, key=self.best.__getitem__)]
        self.line, self.shown, self.length, self.nats = self.line + 1, "", 0, 0.0

    def most(self) -> list[str]:
        """Once the text has ended: what they are, to be printed."""
        self._end()
        ranked = sorted(((*entry, shown) for shown, entry in self.best.items()), reverse=True)
        return [f"{-line:>9,}  {bits:+8.2f}  {printable(shown)}" for _, line, bits, shown in ranked]


# -- Figures -----------------------------------------------------------------------------------------
def figures(score: "Score") -> list[str]:
    """Nats per character, bits per character, bits per byte."""
    return [f"{value:.6f}" for value in (score.bpc * math.log(2), score.bpc, score.bpb)]


def difference(a: "Score", b: "Score") -> list[str]:
    """How much more B costs than A."""
    return [f"{value:+.6f}" for value in ((b.bpc - a.bpc) * math.log(2), b.bpc - a.bpc, b.bpb - a.bpb)]


def count(number: int, what: str) -> str:
    """How many there are, in words."""
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def row(name: str, cells: list[str]) -> str:
    """A row of the table."""
    return f"{name:<42}" + "".join(f"{cell:>16}" for cell in cells)
