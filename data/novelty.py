"""Find the longest passage that a text copies from the training text, to tell a new text from a memorised one."""

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from base.progress import Progress, count

MAX_SEARCHED = 200_000_000  # tokens of a training text that is searched, in less than 20 s
FIRST_CHUNK = 2**12  # tokens
CHUNK = 2**18  # tokens
BASE = 0x9E3779B97F4A7C15  # odd, so it has an inverse modulo 2^64


class Copy(NamedTuple):
    """The longest passage of a text that the training text contains: `length` tokens from `begin` on."""

    begin: int
    length: int


def longest_copies(texts: Sequence[np.ndarray], trained: np.ndarray) -> list[Copy]:
    """Return for each text, (n,) tokens, its longest passage that also occurs in the training text, (N,).

    The training text is read once, in chunks. The first ones are short: most of the ever longer
    copies are found there, and each costs a look at the whole chunk.
    """
    longest = max(map(len, texts), default=0)
    max_size = max(CHUNK, longest)  # of a chunk
    forward = powers(BASE, max_size + longest)  # (max_size + longest,)
    inverses = powers(pow(BASE, -1, 2**64), max_size + longest)  # (max_size + longest,)
    hashed = [Hashed(text, forward, inverses) for text in texts]
    copies = [Copy(0, 0)] * len(texts)
    begin = 0
    size = FIRST_CHUNK
    with Progress("comparing with the training text", len(trained)) as progress:
        while begin < len(trained):
            # A window that begins in this chunk may reach beyond it.
            chunk = Hashed(trained[begin : begin + size + longest - 1], forward, inverses)
            for i, text in enumerate(hashed):
                longer = _copy_above(copies[i].length, text, chunk, size)
                while longer is not None:
                    copies[i] = longer
                    longer = _copy_above(longer.length, text, chunk, size)
            progress.update(min(size, len(trained) - begin))
            begin += size
            size = min(2 * size, max_size)
    return copies


class Hashed:
    """Tokens, (n,), with rolling hashes of their windows of any length k in constant time per window."""

    def __init__(self, tokens: np.ndarray, forward: np.ndarray, inverses: np.ndarray) -> None:
        self.tokens = tokens  # (n,)
        # `forward` are powers of BASE, `inverses` those of its inverse, (n or more,) uint64
        self.inverses = inverses
        self.known: dict[int, tuple[np.ndarray, np.ndarray]] = {}  # the `windows` of each k so far
        # (n + 1,), sums[i] is the hash of the first i tokens: the sum of token * BASE**j
        self.sums = np.zeros(len(tokens) + 1, np.uint64)
        terms = tokens.astype(np.uint64) * forward[: len(tokens)]  # (n,)
        np.cumsum(terms, out=self.sums[1:])

    def windows(self, k: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the hashes of all windows of k tokens, (n - k + 1,) uint64, and their upper 16 bits, uint16."""
        if k not in self.known:  # several texts ask for the same k
            number = max(0, len(self.sums) - k)  # n - k + 1
            # The inverse powers make the hash of a window independent of its position.
            hashes = (self.sums[k:] - self.sums[:number]) * self.inverses[:number]  # (n - k + 1,)
            upper = (hashes >> np.uint64(48)).astype(np.uint16)  # the lower bits are less random
            self.known[k] = hashes, upper
        return self.known[k]


def _copy_above(length: int, text: Hashed, chunk: Hashed, size: int) -> Copy | None:
    """Return a copy of more than `length` tokens that begins in the first `size` tokens of a chunk, if there is one."""
    if length == len(text.tokens):
        return None
    hashes, upper = text.windows(length + 1)  # 2 x (windows of the text,)
    chunk_hashes, chunk_upper = chunk.windows(length + 1)  # 2 x (windows of the chunk,)

    # Few windows are left after a look at the upper bits, which is faster than `np.isin`.
    in_text = np.zeros(2**16, bool)  # by upper bits
    in_text[upper] = True
    candidates = np.flatnonzero(in_text[chunk_upper[:size]])
    candidates = candidates[np.isin(chunk_hashes[candidates], hashes)]
    for place in candidates:
        for begin in np.flatnonzero(hashes == chunk_hashes[place]):
            one = text.tokens[begin:]
            other = chunk.tokens[place:]
            common = min(len(one), len(other))  # tokens that are equal from the beginning on
            differing = np.flatnonzero(one[:common] != other[:common])
            if len(differing):
                common = int(differing[0])
            if common > length:  # otherwise, different windows have the same hash
                return Copy(int(begin), common)
    return None


@lru_cache(maxsize=4)
def powers(base: int, size: int) -> np.ndarray:
    """Return `base` ** i modulo 2**64 for i = 0, ..., size - 1: (size,) uint64."""
    factors = np.full(size, base, np.uint64)  # (size,)
    factors[:1] = 1
    return factors.cumprod(dtype=np.uint64)  # (size,)


def repeats(documents: Sequence[np.ndarray], trained: np.ndarray, end: np.ndarray) -> list[bool]:
    """Return for each document, (n,) tokens, whether the training text contains it whole, between end marks, (M,).

    It does not contain an empty document, which stands for an incomplete one.
    """
    width = trained.itemsize
    # an end mark before the first document, too
    joined = np.concatenate((end.astype(trained.dtype), trained)).tobytes()
    contained: list[bool] = []
    for document in documents:
        marked = np.concatenate((end, document, end)).astype(trained.dtype).tobytes()
        place = joined.find(marked)
        while place > 0 and place % width:  # within a token
            place = joined.find(marked, place + 1)
        contained.append(len(document) > 0 and place >= 0)
    return contained


def skipped(trained: np.ndarray, unit: str) -> str:
    """Return a line that says why the training text is not searched, or "" if it is."""
    if len(trained) <= MAX_SEARCHED:
        return ""
    return f"the training text has more than {count(MAX_SEARCHED, unit)}"
