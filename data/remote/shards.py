"""The training split of a remote text, which need not fit on this disk.

A shard is the training part of one document, or of several small consecutive ones, joined by newlines. Shards are
encoded on demand and stored in a `Cache`. Validation and test are stored whole, as of any text.
"""

import random
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path

import numpy as np

from data.corpus import Corpus, DataError, Document
from data.encode import pieces
from data.remote.epoch import Epoch, plan_epoch
from data.remote.shard_cache import Cache
from data.text import Part
from data.tokenizer import Tokenizer

SHARD = 2**22  # tokens: smaller documents are joined to this size
BLOCK = 2**27  # tokens whose windows are shuffled together, about
FETCHING = 2  # shards of a block that a process fetches at a time
Piece = tuple[Document, Part]


def length_of(joined: list[Piece]) -> int:
    """Return the tokens of pieces that are joined by newlines."""
    return sum(end - begin for _, (_, begin, end) in joined) + max(0, len(joined) - 1)


def in_shards(train: list[Piece]) -> list[list[Piece]]:
    """Join consecutive pieces until each shard has `SHARD` tokens; the last one takes the rest."""
    shards: list[list[Piece]] = [[]]
    length = 0
    for document, (split, begin, end) in train:
        if length >= SHARD:
            shards.append([])
            length = 0
        shards[-1].append((document, (split, begin, end)))
        length += end - begin
    if len(shards) > 1 and length < SHARD:
        last = shards.pop()
        shards[-1] += last
    return shards


def encode(joined: list[Piece], encoding: str | None, tokenizer: Tokenizer) -> Iterator[tuple[str, np.ndarray]]:
    """Fetch documents one after the other, and yield the tokens of these parts by split."""
    parts: dict[Document, list[Part]] = {}
    for document, part in joined:
        parts.setdefault(document, []).append(part)
    return pieces(Corpus("", tuple(parts), encoding), list(parts.values()), tokenizer)


class Shards:
    """The training tokens of a text in shards, with the operations of an array that batches need.

    Args:
        shards: the pieces of each.
        cache: of the shards.
        folder: of this text, in the cache.
        encoding: of the documents; None for bytes.
        tokenizer: of the text.
        largest: bytes of the largest document.
    """

    def __init__(
        self,
        shards: list[list[Piece]],
        cache: Cache,
        folder: Path,
        encoding: str | None,
        tokenizer: Tokenizer,
        largest: int,
    ) -> None:
        self.shards, self.cache, self.folder = shards, cache, folder
        self.encoding, self.tokenizer, self.largest = encoding, tokenizer, largest
        self.lengths = np.array([length_of(each) for each in shards], np.int64)
        self._plans: dict[tuple[int, int, int], Epoch] = {}
        self._blocks: dict[tuple[int, int, int, int], _Block] = {}

    def __len__(self) -> int:
        """Number of tokens of all shards."""
        return int(self.lengths.sum())

    def __getitem__(self, part: slice) -> np.ndarray:
        """The tokens of a slice, one shard after the other."""
        begin, end, step = part.indices(len(self))
        starts = np.cumsum(self.lengths) - self.lengths
        some = np.flatnonzero((starts < end) & (starts + self.lengths > begin))
        gathered = [self.open(each)[max(0, begin - starts[each]) : end - starts[each]] for each in some.tolist()]
        return np.concatenate([np.zeros(0, self.tokenizer.dtype), *gathered])[::step]

    def room_needed(self) -> int:
        """Return the bytes that the cache needs: for two blocks of a batch, the next one, and what is being fetched."""
        whole = min(len(self), 3 * (BLOCK + int(self.lengths.max())))
        return whole * np.dtype(self.tokenizer.dtype).itemsize + FETCHING * self.largest

    def open(self, shard: int) -> np.ndarray:
        """Map the tokens of a shard into memory.

        Raises:
            DataError: a document is missing, has changed or cannot be fetched.
        """

        def make(copy: Path) -> Iterator[np.ndarray]:
            joined = [(replace(document, path=copy), part) for document, part in self.shards[shard]]
            return (tokens for _, tokens in encode(joined, self.encoding, self.tokenizer))

        length = int(self.lengths[shard])
        return self.cache.open(self.folder / str(shard), self.tokenizer.dtype, length, make, self.largest)

    def windows(self, seed: int, step: int, batch: int, context: int, rows: slice) -> np.ndarray:
        """Return rows of batch `step` as `data.batches.train_batch`, in the order of `data.remote.epoch.plan_epoch`."""
        row = step * batch + np.arange(batch)[rows]
        epoch = row // self._plan(seed, 0, context).blocks[-1]
        gathered = np.empty((len(row), context + 1), np.int64)
        used: dict[tuple[int, int, int, int], _Block] = {}
        for each in np.unique(epoch).tolist():
            plan, inside = self._plan(seed, each, context), np.flatnonzero(epoch == each)
            blocks, shards, starts = plan.locate(row[inside] - each * plan.blocks[-1])
            for block, shard in sorted({*zip(blocks.tolist(), shards.tolist(), strict=True)}):
                key = (seed, context, each, block)
                used[key] = used.get(key) or self._blocks.get(key) or _Block(self.open, plan.shards_of(block))
                some = (blocks == block) & (shards == shard)
                index = starts[some][:, None] + np.arange(context + 1)  # (some, context + 1)
                gathered[inside[some]] = used[key].tokens(shard)[index]
        if all(block.is_there() for block in used.values()):
            plan = self._plan(seed, each, context)
            block, each = (block + 1, each) if block + 1 < len(plan.blocks) else (0, each + 1)
            key, plan = (seed, context, each, block), self._plan(seed, each, context)
            used[key] = self._blocks.get(key) or _Block(self.open, plan.shards_of(block))
        self._blocks = used  # shards of other blocks may be deleted from the cache
        return gathered

    def _plan(self, seed: int, epoch: int, context: int) -> Epoch:
        key = (seed, epoch, context)
        if key not in self._plans:
            self._plans = dict(list(self._plans.items())[-3:])
            self._plans[key] = plan_epoch(self.lengths, seed, epoch, context, BLOCK)
        return self._plans[key]


class _Block:
    """The shards of a block, fetched in the background."""

    def __init__(self, open: Callable[[int], np.ndarray], shards: list[int]) -> None:
        self.open = open
        self.fetched: dict[int, Future[np.ndarray]] = {shard: Future() for shard in shards}
        # In a random order, so that processes that share a cache also share the work.
        self.waiting = iter(random.Random().sample(shards, len(shards)))
        for _ in range(min(FETCHING, len(shards))):
            threading.Thread(target=self._fetch, daemon=True).start()

    def _fetch(self) -> None:
        for shard in self.waiting:  # each goes to one thread
            try:
                self.fetched[shard].set_result(self.open(shard))
            except Exception as error:  # raised in the main thread when it needs this shard
                self.fetched[shard].set_exception(error)

    def is_there(self) -> bool:
        return all(future.done() for future in self.fetched.values())

    def tokens(self, shard: int) -> np.ndarray:
        try:
            return self.fetched[shard].result()
        except (DataError, OSError):  # try once more: the store may be back
            again: Future[np.ndarray] = Future()
            again.set_result(self.open(shard))
            self.fetched[shard] = again
            return again.result()
