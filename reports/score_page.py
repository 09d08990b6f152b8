"""Build the HTML page of score.py, a text coloured by surprisal."""

import base64
import zlib
from typing import Any

import torch

from gpt.analysis import Surprisals
from reports.page import render_page


class Columns:
    """A model's surprisals of a text's characters, and the most likely tokens at each, stored as bytes."""

    def __init__(self, vocabulary: int) -> None:
        self.nats = bytearray()  # surprisal in thousandths of a nat, uint16
        self.likely = bytearray()  # the top-k tokens, uint8 or uint16
        self.chances = bytearray()  # their probabilities in thousandths, uint16
        self._token = torch.uint8 if vocabulary <= 256 else torch.uint16

    def add(self, characters: Surprisals) -> None:
        self.nats += characters.millinats.to(torch.uint16).numpy().tobytes()
        self.likely += characters.top.to(self._token).numpy().tobytes()
        self.chances += (characters.probabilities * 1000).round().to(torch.uint16).numpy().tobytes()


def page(about: dict[str, Any], text: str, columns: list[Columns]) -> str:
    """Return the page of a text: `about` is what its script reads, and `columns` has an entry for each model."""
    data: dict[str, bytes | bytearray] = {"letters": text.encode()}
    for number, column in enumerate(columns):
        data |= {f"{name}{number}": getattr(column, name) for name in ("nats", "likely", "chances")}
    packed = {name: base64.b64encode(zlib.compress(raw, 6)).decode() for name, raw in data.items()}
    return render_page("score_page", about["title"], about, packed)
