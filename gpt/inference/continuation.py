"""The text after a prompt, token by token: stop strings, whole characters, log-probabilities; documents in it."""

import codecs

from gpt.tokenizer import Tokenizer


def beginning(tokenizer: Tokenizer, end: str) -> str:
    """Return the prompt of a text that begins at a beginning: the end mark of documents, or a line break."""
    return end or ("\n" if "\n" in tokenizer.names else tokenizer.names[0])


def complete_documents(text: str, end: str) -> str:
    """Cut a text after its last complete document, if it has any; `end` is the end mark, "" if there are none."""
    return (text.rpartition(end)[0] if end else "") or text


def readable(text: str, end: str) -> str:
    """Replace the end mark by a blank line if it is U+0003, which few programs display."""
    return text.replace(end, "\n\n") if end == "\x03" else text


class Continuation:
    """The text after a prompt, as it grows; from a prompt of whole characters."""

    def __init__(self, tokenizer: Tokenizer, stops: list[str]) -> None:
        self.tokenizer, self.stops = tokenizer, stops
        self.pieces: list[str] = []  # final text
        self.held = ""  # text that may turn out to begin a stop
        self.ended = False
        self.stopped_by: list[str] = []  # the stops that ended it
        self.logprobs: list[float] = []  # one for each character: the sum over its bytes
        self.pending = 0.0  # log-probability of bytes that are not yet a whole character
        self.utf8 = codecs.getincrementaldecoder("utf-8")(errors="replace")

    @property
    def text(self) -> str:
        """All text so far."""
        return "".join(self.pieces) + self.held

    def add(self, token: int, logprob: float | None = None) -> None:
        """Append a token."""
        new = self.utf8.decode(self.tokenizer.utf8([token]))
        if logprob is not None:
            self.pending += logprob
            self._count(new)
        self.held += new
        if found := {stop: position for stop in self.stops if (position := self.held.find(stop)) >= 0}:
            self.held, self.stopped_by = self.held[: min(found.values())], list(found)
            self._end()
            return
        begun = [n for stop in self.stops for n in range(1, len(stop)) if self.held.endswith(stop[:n])]
        sure = len(self.held) - max(begun, default=0)
        self.pieces.append(self.held[:sure])
        self.held = self.held[sure:]

    def close(self) -> None:
        """End the text: bytes of an unfinished character become U+FFFD."""
        if not self.ended:
            rest = self.utf8.decode(b"", final=True)
            self._count(rest)
            self.held += rest
            self._end()

    def _end(self) -> None:
        self.pieces.append(self.held)
        self.ended, self.held = True, ""
        del self.logprobs[len(self.text) :]  # the stop's characters are not in the text

    def _count(self, new: str) -> None:
        if new:
            self.logprobs += [self.pending] + [0.0] * (len(new) - 1)
            self.pending = 0.0
