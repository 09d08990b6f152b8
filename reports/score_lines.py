"""Format the table and the JSON lines that score.py prints."""

import json
import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from reports.scoring import Piece

if TYPE_CHECKING:
    from gpt.analysis import Costs
    from gpt.evaluation import Score


def json_lines(piece: Piece, names: list[list[str]]) -> Iterator[str]:
    """Yield a line of JSON for each character; the key "other" has the values of the second model."""
    values = [list(json_costs(costs, names_of)) for costs, names_of in zip(piece.costs, names, strict=True)]
    for offset, (letter, first) in enumerate(zip(piece.text, values[0], strict=True)):
        line = {"position": piece.position + offset, "character": letter} | first
        if len(values) > 1:
            line["other"] = values[1][offset]
        yield json.dumps(line) + "\n"


def json_costs(costs: "Costs", names: list[str]) -> Iterator[dict[str, Any]]:
    """Yield for each character the surprisal in nats, and the probabilities of the top-k tokens."""
    for nats, top, probs in zip(costs.nats.tolist(), costs.top.tolist(), costs.probabilities.tolist(), strict=True):
        best = {names[token]: round(p, 6) for token, p in zip(top, probs, strict=True) if p > 0}
        yield {"nats": round(nats, 9), "likely": best}


def figures(score: "Score") -> list[str]:
    """Format nats per character, bits per character and bits per byte."""
    return [f"{value:.6f}" for value in (score.bpc * math.log(2), score.bpc, score.bpb)]


def difference(a: "Score", b: "Score") -> list[str]:
    """Format the figures of B minus those of A."""
    return [f"{value:+.6f}" for value in ((b.bpc - a.bpc) * math.log(2), b.bpc - a.bpc, b.bpb - a.bpb)]


def row(name: str, cells: list[str]) -> str:
    """Format a row of the table."""
    return f"{name:<42}" + "".join(f"{cell:>16}" for cell in cells)
