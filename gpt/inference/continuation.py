"""Turn generated tokens into text: whole characters, stop strings, ends of documents."""

import codecs
from collections.abc import Mapping

from gpt.tokenizer import Tokenizer


def readable(text: str, end: str) -> str:
    """Return the text with blank lines for end marks if they are U+0003, which few programs display."""
    if end != "\x03":
        return text
    return text.replace(end, "\n\n")


def complete_documents(text: str, end: str) -> str:
    """Return the documents that are complete, or all of the text if none is, in readable form."""
    return readable(text.rpartition(end)[0] or text, end)


def find_stop(prompt: str, text: str, stop: str) -> int | None:
    """Return where the first `stop` that ends in `text` begins: below 0 in the prompt, None if there is none."""
    # one that begins earlier would end in the prompt
    position = (prompt + text).find(stop, max(0, len(prompt) - len(stop) + 1))
    if position < 0:
        return None
    return position - len(prompt)


class Continuation:
    """The text that is generated after `prompt`, built token by token until the first stop string ends in it.

    The prompt must end with a complete character, because the first byte is decoded without it.
    """

    def __init__(self, tokenizer: Tokenizer, stops: Mapping[str, bool], prompt: str = "") -> None:
        self.tokenizer = tokenizer
        # stop string -> whether the text keeps it, without what is in the prompt
        self.stops = stops
        self.before = prompt  # text before `undecided` in which a stop string may begin
        self.pieces: list[str] = []  # final text
        self.undecided = ""  # its end, in which a stop string may begin
        self.max_undecided = max(map(len, stops), default=1) - 1
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
        # also the end of a kept stop, whose last character the token has just added
        end = len(self.undecided)
        for stop, is_kept in self.stops.items():
            begin = find_stop(self.before, self.undecided, stop)
            if begin is None:
                continue
            self.stopped_by.append(stop)
            self.stop_in_prompt = max(self.stop_in_prompt, -begin)
            if not is_kept:
                end = min(end, max(0, begin))
        if self.stopped_by:
            self.undecided = self.undecided[:end]
            return
        # leading characters in which no stop string can begin any more
        final = len(self.undecided) - self.max_undecided
        if final > 0:
            self.pieces.append(self.undecided[:final])
            self.undecided = self.undecided[final:]
            self.before = ""

    def close(self) -> None:
        """Make all text final, with U+FFFD for an incomplete last character."""
        if not self.stopped_by:  # otherwise the text ends before an incomplete character
            self.undecided += self.utf8.decode(b"", final=True)
        self.pieces.append(self.undecided)
        self.undecided = ""
