"""Turn generated tokens into text: whole characters, stop strings, ends of documents."""

import codecs

from gpt.tokenizer import Tokenizer


def beginning(tokenizer: Tokenizer, end: str) -> str:
    """Return the prompt if none is given: the end mark of documents, a line break, or the first token."""
    return end or ("\n" if "\n" in tokenizer.names else tokenizer.names[0])


def complete_documents(text: str, end: str) -> str:
    """Return the text up to its last end mark, or all of it if no document is complete."""
    return (text.rpartition(end)[0] if end else "") or text


def readable(text: str, end: str) -> str:
    """Return the text with blank lines for end marks if they are U+0003, which few programs display."""
    return text.replace(end, "\n\n") if end == "\x03" else text


class Continuation:
    """The text that is generated after a prompt, built token by token until the first stop string occurs.

    The prompt must end with a complete character, because the first byte is decoded without it.
    """

    def __init__(self, tokenizer: Tokenizer, stops: list[str]) -> None:
        self.tokenizer, self.stops = tokenizer, stops
        self.pieces: list[str] = []  # final text
        self.held = ""  # text that may be the beginning of a stop string
        self.ended = False
        self.stopped_by: list[str] = []  # the stop strings that ended the text
        self.utf8 = codecs.getincrementaldecoder("utf-8")(errors="replace")

    @property
    def text(self) -> str:
        return "".join(self.pieces) + self.held

    def add(self, token: int) -> None:
        """Append a token; if it completes a stop string, the text ends before the stop string."""
        self.held += self.utf8.decode(self.tokenizer.utf8([token]))
        if found := {stop: position for stop in self.stops if (position := self.held.find(stop)) >= 0}:
            self.stopped_by = list(found)
            self._end(self.held[: min(found.values())])
            return
        begun = [n for stop in self.stops for n in range(1, len(stop)) if self.held.endswith(stop[:n])]
        sure = len(self.held) - max(begun, default=0)
        self.pieces.append(self.held[:sure])
        self.held = self.held[sure:]

    def close(self) -> None:
        """End the text, with U+FFFD for an incomplete last character."""
        if not self.ended:
            self._end(self.held + self.utf8.decode(b"", final=True))

    def _end(self, rest: str) -> None:
        self.pieces.append(rest)
        self.held, self.ended = "", True
