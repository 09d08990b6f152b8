"""Find the longest passage that a text copies from the training text, to tell a new text from a memorised one."""

import json
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from base.errors import printable
from base.progress import Progress, count
from gpt.tokenizer import Tokenizer

MAX_SEARCHED = 200_000_000  # tokens of a training text that is searched, in less than 20 s
FIRST_CHUNK, CHUNK = 2**12, 2**18  # tokens; after short first chunks, few windows exceed the longest copy so far
SHOWN = 80  # characters of a passage in a message
BASE = 0x9E3779B97F4A7C15  # odd, so it has an inverse modulo 2^64


class Copy(NamedTuple):
    """The longest passage of a text that the training text contains: `length` tokens from `begin` on."""

    begin: int
    length: int


def longest_copies(texts: Sequence[np.ndarray], trained: np.ndarray) -> list[Copy]:
    """Return for each text its longest passage that also occurs in the training text."""
    longest = max(map(len, texts), default=0)
    powers, inverses = (_powers(base, max(CHUNK, longest) + longest) for base in (BASE, pow(BASE, -1, 2**64)))
    searches = [_Search(_Hashes(tokens, powers, inverses)) for tokens in texts]
    begin, size, filters = 0, FIRST_CHUNK, _filters(searches)
    with Progress("comparing with the training text", len(trained)) as progress:
        while begin < len(trained) and filters:
            part = trained[begin : begin + size + longest - 1]  # a window that begins in this chunk may reach beyond it
            chunk = _Hashes(part, powers, inverses)
            improved = [each.search(chunk, size) for each in filters]
            if any(improved):
                filters = _filters(searches)
            progress.update(len(part[:size]))
            begin, size = begin + size, min(2 * size, max(CHUNK, longest))
    return [search.best for search in searches]


def repeats(documents: Sequence[np.ndarray], trained: np.ndarray, end: np.ndarray) -> list[bool]:
    """Return for each document whether an equal document occurs in the training text."""
    marked = [np.concatenate((end, document, end)) for document in documents]
    copied = [copy.length for copy in longest_copies(marked, trained)]
    whole = [each[len(end) :] for each in marked]  # the training text begins with a document, not with an end mark
    return [
        copy == len(each) or np.array_equal(own, trained[: len(own)])
        for copy, each, own in zip(copied, marked, whole, strict=True)
    ]


def _powers(base: int, length: int) -> np.ndarray:
    powers = np.full(length, base, np.uint64)
    powers[:1] = 1
    return powers.cumprod(dtype=np.uint64)


class _Hashes:
    """Rolling hashes of `tokens`: the hash of any window of k successive tokens, for any k, takes constant time."""

    def __init__(self, tokens: np.ndarray, powers: np.ndarray, inverses: np.ndarray) -> None:
        self.tokens, self.inverses = tokens, inverses
        self.sums = np.zeros(len(tokens) + 1, np.uint64)  # sums[i] is that of the first i tokens
        terms = tokens.astype(np.uint64)
        terms += np.uint64(1)
        terms *= powers[: len(tokens)]
        np.cumsum(terms, out=self.sums[1:])

    def all(self, k: int, most: int) -> np.ndarray:
        """Return the hashes of the windows of k tokens that begin at positions 0, 1, ..., `most` - 1: (n,) uint64."""
        n = max(0, min(most, len(self.sums) - k))
        hashes = self.sums[k : k + n] - self.sums[:n]
        hashes *= self.inverses[:n]
        return hashes

    def at(self, positions: np.ndarray, k: int) -> np.ndarray:
        """Return the hashes of the windows of k tokens that begin at `positions`, in the order of `positions`."""
        return (self.sums[positions + k] - self.sums[positions]) * self.inverses[positions]


class _Search:
    """Searches the training text, chunk by chunk, for the longest passage that it shares with one text."""

    def __init__(self, hashes: _Hashes) -> None:
        self.hashes, self.best = hashes, Copy(0, 0)
        self.letters = _as_string(hashes.tokens)
        self.known: tuple[int, np.ndarray] = (0, np.empty(0))  # k, the sorted hashes of all windows of k tokens

    def windows(self, k: int) -> np.ndarray:
        """Return the sorted hashes of all windows of k tokens of the text (not of the training text): (n,) uint64."""
        if self.known[0] != k:
            self.known = k, np.sort(self.hashes.all(k, len(self.letters)))
        return self.known[1]

    def improve(self, chunk: _Hashes, positions: np.ndarray) -> bool:
        """Update `best` from a chunk of the training text, and return whether it has become longer."""
        before = self.best
        while len(places := self._common(chunk, positions, self.best.length + 1)):
            length, most = self.best.length + 1, len(self.letters)
            while length < most:
                middle = (length + most + 1) // 2
                if len(longer := self._common(chunk, places, middle)):
                    places, length = longer, middle
                else:
                    most = middle - 1
            passage, equal = _as_string(chunk.tokens[places[0] : places[0] + length]), length
            while passage[:equal] not in self.letters:  # the hashes have collided
                equal -= 1
            if equal > self.best.length:
                self.best = Copy(self.letters.index(passage[:equal]), equal)
            if equal == length:  # no other position has a longer copy
                break
            positions = positions[positions != places[0]]
        return self.best != before

    def _common(self, chunk: _Hashes, positions: np.ndarray, k: int) -> np.ndarray:
        """Return the elements of `positions` at which the window of k tokens of `chunk` also occurs in the text."""
        positions = positions[positions + k < len(chunk.sums)]
        if not len(positions) or k > len(self.letters):
            return positions[:0]
        hashes, windows = chunk.at(positions, k), self.windows(k)
        nearest = np.minimum(np.searchsorted(windows, hashes), len(windows) - 1)
        return positions[windows[nearest] == hashes]


class _Filter:
    """Finds the positions in the training text at which a copied passage longer than the best so far could begin."""

    def __init__(self, k: int, searches: Sequence[_Search]) -> None:
        self.k, self.searches = k, searches
        hashes = np.concatenate([search.hashes.all(k, len(search.letters)) for search in searches])
        bits = min(24, max(16, len(hashes).bit_length() + 5))
        self.shift = np.uint64(64 - bits)  # the upper bits: the lower ones of such a hash are less random
        self.table = np.zeros(2**bits, bool)
        self.table[hashes >> self.shift] = True

    def search(self, chunk: _Hashes, size: int) -> bool:
        """Search a chunk of the training text, and return whether a longer copy was found."""
        hashes = chunk.all(self.k, size)
        hashes >>= self.shift
        positions = np.flatnonzero(self.table[hashes.view(np.int64)])
        return any([search.improve(chunk, positions) for search in self.searches])


def _filters(searches: Iterable[_Search]) -> list[_Filter]:
    """Return the filters for the next chunk of the training text, each for one window length and several texts.

    A text whose longest copy so far has n tokens needs windows of n + 1 tokens. A text that is already copied as a
    whole needs no filter. From 16 tokens on, window lengths are rounded down to 2^i or 1.5 * 2^i, so that there are few
    filters and yet few windows match by chance.
    """
    groups = defaultdict(list)
    for search in searches:
        k = search.best.length + 1
        if k <= len(search.letters):
            power = 2 ** (k.bit_length() - 1)
            groups[k if k < 16 else power + (power // 2 if 2 * k >= 3 * power else 0)].append(search)
    return [_Filter(k, group) for k, group in groups.items()]


def _as_string(tokens: np.ndarray) -> str:
    """Return tokens as a string with one code point per token, because searching in strings is fast."""
    return tokens.astype("<u4").tobytes().decode("utf-32-le", "surrogatepass")


def skipped(trained: np.ndarray, unit: str) -> str:
    """Return a line that says why the training text is not searched, or "" if it is."""
    if len(trained) <= MAX_SEARCHED:
        return ""
    return f"longest copy: skipped, because the training text has more than {count(MAX_SEARCHED, unit)}"


def describe(copy: Copy, tokens: np.ndarray, tokenizer: Tokenizer) -> str:
    """Return one line that says how long a text's longest copy, `copy`, is and how it begins."""
    passage = tokenizer.decode(tokens[copy.begin : copy.begin + copy.length])
    shown = printable(json.dumps(passage[:SHOWN], ensure_ascii=False)[1:-1]) + "…" * (len(passage) > SHOWN)
    return f"longest copy: {copy.length:,} of {count(len(tokens), tokenizer.unit)}" + (
        f', "{shown}"' if passage else ""
    )
