"""A text that grows: stop strings, whole characters, log-probabilities."""

import codecs
from collections.abc import Sequence
from typing import Any, Protocol


class Decodes(Protocol):
    """What a tokenizer must offer."""

    @property
    def vocabulary(self) -> dict[str, Any]:
        """The vocabulary as plain data; `kind` is `char` or `byte`."""

    def decode(self, tokens: Sequence[int], /) -> str:
        """Tokens to text."""


class Continuation:
    """What is written after a prompt, as it grows."""

    def __init__(self, tokenizer: Decodes, stops: list[str]) -> None:
        self.tokenizer, self.stops = tokenizer, stops
        self.pieces: list[str] = []  # what is sure to stay
        self.held = ""  # what may turn out to begin a stop
        self.ended = False
        self.logprobs: list[float] = []  # of each character; of one of several bytes, their sum
        self.pending = 0.0  # of bytes that are no character yet
        self.utf8 = codecs.getincrementaldecoder("utf-8")(errors="replace")

    @property
    def text(self) -> str:
        """All of it."""
        return "".join(self.pieces) + self.held

    def add(self, token: int, logprob: float | None = None) -> None:
        """Go on by one token."""
        bytewise = self.tokenizer.vocabulary["kind"] == "byte"
        new = self.utf8.decode(bytes([token])) if bytewise else self.tokenizer.decode([token])
        if logprob is not None:
            self.pending += logprob
            self._count(new)
        self.held += new
        if places := [place for stop in self.stops if (place := self.held.find(stop)) >= 0]:
            self.held = self.held[: min(places)]
            self._end()
            return
        begun = [n for stop in self.stops for n in range(1, len(stop)) if self.held.endswith(stop[:n])]
        sure = len(self.held) - max(begun, default=0)
        self.pieces.append(self.held[:sure])
        self.held = self.held[sure:]

    def close(self) -> None:
        """Nothing comes after this: bytes that wait for others are no character."""
        if not self.ended:
            rest = self.utf8.decode(b"", final=True)
            self._count(rest)
            self.held += rest
            self._end()

    def _end(self) -> None:
        self.pieces.append(self.held)
        self.ended, self.held = True, ""
        del self.logprobs[len(self.text) :]  # those of the stop

    def _count(self, new: str) -> None:
        if new:
            self.logprobs += [self.pending] + [0.0] * (len(new) - 1)
            self.pending = 0.0
