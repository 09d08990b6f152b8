"""Build the HTML page of score.py, a text coloured by surprisal, from the template score_page.html."""

import base64
import html
import zlib
from pathlib import Path
from typing import Any

import torch

from base.html import embedded, fill
from gpt.analysis import Surprisals

TEMPLATE = Path(__file__).with_name("assets") / "score_page.html"


class Columns:
    """The surprisal of each character under one model, and the most likely tokens there, for a page."""

    def __init__(self, vocabulary: int) -> None:
        self.nats = bytearray()  # surprisal in thousandths of a nat, uint16
        self.likely = bytearray()  # the top-k tokens, uint8 or uint16
        self.chances = bytearray()  # their probabilities in thousandths, uint16
        self._token = torch.uint8 if vocabulary <= 256 else torch.uint16

    def add(self, characters: Surprisals) -> None:
        """Append the surprisals of further characters of the text, and the most likely tokens at each character."""
        self.nats += characters.millinats.to(torch.uint16).numpy().tobytes()
        self.likely += characters.top.to(self._token).numpy().tobytes()
        self.chances += (characters.probabilities * 1000).round().to(torch.uint16).numpy().tobytes()


def page(about: dict[str, Any], text: str, columns: list[Columns]) -> str:
    """Return the HTML page of a text whose characters are coloured by their surprisal."""
    parts = [("about", "application/json", embedded(about))]
    data = [("letters", text.encode())]
    for number, column in enumerate(columns):
        data += [(f"{name}{number}", getattr(column, name)) for name in ("nats", "likely", "chances")]
    for name, raw in data:
        parts.append((name, "text/plain", base64.b64encode(zlib.compress(raw, 6)).decode()))
    filled = "\n".join(f'<script type="{kind}" id="{name}">{content}</script>' for name, kind, content in parts)

    return fill(TEMPLATE, title=html.escape(about["title"]), data=filled)
