"""Turn generated tokens into text: whole characters, stop strings, ends of documents."""

import codecs
from collections.abc import Sequence

from gpt.tokenizer import Tokenizer


def beginning(tokenizer: Tokenizer, end: str) -> str:
    """Return the prompt if none is given: the end mark of documents, a line break, or the first token."""
    if end:
        return end
    return "\n" if "\n" in tokenizer.names else tokenizer.names[0]


def complete_documents(text: str, end: str) -> str:
    """Return the text up to its last end mark, or all of it if no document is complete."""
    if not end:
        return text
    return text.rpartition(end)[0] or text


def readable(text: str, end: str) -> str:
    """Return the text with blank lines for end marks if they are U+0003, which few programs display."""
    if end != "\x03":
        return text
    return text.replace(end, "\n\n")


def find_stop(prompt: str, text: str, stop: str) -> int | None:
    """Return where the first `stop` that ends in `text` begins: below 0 in the prompt, None if there is none."""
    first = max(0, len(prompt) - len(stop) + 1)  # an earlier one would end in the prompt
    position = (prompt + text).find(stop, first)
    if position < 0:
        return None
    return position - len(prompt)


class Continuation:
    """The text that is generated after `prompt`, built token by token until the first stop string ends in it.

    The prompt must end with a complete character, because the first byte is decoded without it.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        stops: list[str],
        prompt: str = "",
        kept_stops: Sequence[str] = (),
    ) -> None:
        self.tokenizer = tokenizer
        self.stops = stops
        self.kept_stops = kept_stops  # those of which the text keeps what is not in the prompt
        self.before = prompt  # text before `undecided` in which a stop string may begin
        self.pieces: list[str] = []  # final text
        self.undecided = ""  # text that may be the beginning of a stop string
        # the stop strings that ended the text: then no token may follow
        self.stopped_by: list[str] = []
        self.stop_in_prompt = 0  # characters of the prompt that belong to the stop string
        self.utf8 = codecs.getincrementaldecoder("utf-8")(errors="replace")

    @property
    def text(self) -> str:
        return "".join(self.pieces) + self.undecided

    def add(self, token: int) -> None:
        """Append a token; one that completes a stop string ends the text before it or, if it is kept, after it."""
        self.undecided += self.utf8.decode(self.tokenizer.utf8([token]))
        positions: list[int] = []
        for stop in self.stops:
            position = find_stop(self.before, self.undecided, stop)
            if position is not None:
                self.stopped_by.append(stop)
                positions.append(position)
        if positions:
            first = min(positions)
            self.stop_in_prompt = max(0, -first)
            if set(self.stopped_by) <= set(self.kept_stops):
                first += len(self.stopped_by[positions.index(first)])
            self.undecided = self.undecided[: max(0, first)]
            return
        read = self.before + self.undecided
        begun = [  # lengths of the beginnings of stop strings with which the text ends
            n for stop in self.stops for n in range(1, len(stop)) if read.endswith(stop[:n])
        ]
        final = len(self.undecided) - max(begun, default=0)  # characters in no stop string
        if final > 0:
            self.pieces.append(self.undecided[:final])
            self.undecided = self.undecided[final:]
            self.before = ""

    def close(self) -> None:
        """Make all text final, with U+FFFD for an incomplete last character."""
        if not self.stopped_by:
            self.undecided += self.utf8.decode(b"", final=True)
        self.pieces.append(self.undecided)
        self.undecided = ""
