"""Find the longest passage that a text copies from the training text, to tell a new text from a memorised one."""

import json
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from base.errors import printable
from base.progress import Progress, count
from gpt.tokenizer import Tokenizer

MAX_SEARCHED = 200_000_000  # tokens of a training text that is searched, in less than 20 s
FIRST_CHUNK, CHUNK = 2**12, 2**18  # tokens
SHOWN = 80  # characters of a passage in a message
BASE = 0x9E3779B97F4A7C15  # odd, so it has an inverse modulo 2^64


class Copy(NamedTuple):
    """The longest passage of a text that the training text contains: `length` tokens from `begin` on."""

    begin: int
    length: int


def longest_copies(texts: Sequence[np.ndarray], trained: np.ndarray) -> list[Copy]:
    """Return for each text, (n,) tokens, its longest passage that also occurs in the training text, (N,).

    The training text is read once, in chunks: the first ones are short, because few windows exceed the longest copy
    after them.
    """
    longest = max(map(len, texts), default=0)
    most = max(CHUNK, longest)
    forward, inverses = (powers(base, most + longest) for base in (BASE, pow(BASE, -1, 2**64)))
    hashed = [Hashed(text, forward, inverses) for text in texts]
    copies, begin, size = [Copy(0, 0)] * len(texts), 0, FIRST_CHUNK
    with Progress("comparing with the training text", len(trained)) as progress:
        while begin < len(trained):
            part = trained[begin : begin + size + longest - 1]  # a window that begins in this chunk may reach beyond it
            chunk = Hashed(part, forward, inverses)
            copies = [_improved(copy, text, chunk, size) for copy, text in zip(copies, hashed, strict=True)]
            progress.update(len(part[:size]))
            begin, size = begin + size, min(2 * size, most)
    return copies


class Hashed:
    """Tokens, (n,), with rolling hashes of their windows of any length k in constant time per window."""

    def __init__(self, tokens: np.ndarray, powers: np.ndarray, inverses: np.ndarray) -> None:
        self.tokens, self.inverses = tokens, inverses
        self.known: dict[int, tuple[np.ndarray, np.ndarray]] = {}
        self.sums = np.zeros(len(tokens) + 1, np.uint64)  # sums[i] is that of the first i tokens
        np.cumsum((tokens.astype(np.uint64) + np.uint64(1)) * powers[: len(tokens)], out=self.sums[1:])

    def windows(self, k: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the hashes of all windows of k tokens, (n - k + 1,) uint64, and their upper 16 bits, uint16."""
        if k not in self.known:  # several texts ask for the same k
            n = max(0, len(self.sums) - k)
            hashes = (self.sums[k:] - self.sums[:n]) * self.inverses[:n]
            self.known[k] = hashes, (hashes >> np.uint64(48)).astype(np.uint16)  # the lower bits are less random
        return self.known[k]


def _improved(copy: Copy, text: Hashed, chunk: Hashed, size: int) -> Copy:
    """Return the longest copy of a text if a longer one than `copy` begins in the first `size` tokens of a chunk."""
    while copy.length < len(text.tokens):
        (own, upper), (windows, uppers) = text.windows(copy.length + 1), chunk.windows(copy.length + 1)
        seen = np.zeros(2**16, bool)
        seen[upper] = True
        places = np.flatnonzero(seen[uppers[:size]])
        places = places[np.isin(windows[places], own)]
        pairs = ((begin, place) for place in places for begin in np.flatnonzero(own == windows[place]))
        found = (Copy(int(begin), _common(text.tokens[begin:], chunk.tokens[place:])) for begin, place in pairs)
        longer = next((each for each in found if each.length > copy.length), None)  # the others are collisions
        if longer is None:
            break
        copy = longer
    return copy


def _common(one: np.ndarray, other: np.ndarray) -> int:
    """Return how many tokens two texts have in common from their beginning on."""
    length = min(len(one), len(other))
    differing = np.flatnonzero(one[:length] != other[:length])
    return int(differing[0]) if len(differing) else length


@lru_cache(maxsize=4)
def powers(base: int, size: int) -> np.ndarray:
    """Return `base` ** i modulo 2**64 for i = 0, ..., size - 1: (size,) uint64."""
    found = np.full(size, base, np.uint64)
    found[:1] = 1
    return found.cumprod(dtype=np.uint64)


def repeats(documents: Sequence[np.ndarray], trained: np.ndarray, end: np.ndarray) -> list[bool]:
    """Return for each document, (n,) tokens, whether the training text contains it whole, between end marks, (M,)."""
    width, joined = trained.itemsize, np.concatenate((end.astype(trained.dtype), trained)).tobytes()

    def contains(passage: bytes) -> bool:
        place = joined.find(passage)
        while place > 0 and place % width:  # within a token
            place = joined.find(passage, place + 1)
        return place >= 0

    marked = (np.concatenate((end, document, end)).astype(trained.dtype) for document in documents)
    return [contains(each.tobytes()) for each in marked]


def skipped(trained: np.ndarray, unit: str) -> str:
    """Return a line that says why the training text is not searched, or "" if it is."""
    if len(trained) <= MAX_SEARCHED:
        return ""
    return f"the training text has more than {count(MAX_SEARCHED, unit)}"


def describe(copy: Copy, tokens: np.ndarray, tokenizer: Tokenizer) -> str:
    """Return one line that says how long a text's longest copy, `copy`, is and how it begins."""
    passage = tokenizer.decode(tokens[copy.begin : copy.begin + copy.length])
    shown = printable(json.dumps(passage[:SHOWN], ensure_ascii=False)[1:-1]) + "…" * (len(passage) > SHOWN)
    return f"longest copy: {copy.length:,} of {count(len(tokens), tokenizer.unit)}" + (
        f', "{shown}"' if passage else ""
    )
