"""The training split of a remote text, which need not fit on this disk.

A shard is the training part of one document, or of several small consecutive ones, joined by newlines. Shards are
encoded on demand and stored in a `Cache`. Validation and test are stored whole, as of any text.
"""

import random
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from pathlib import Path

import numpy as np

from data.corpus import Corpus, DataError, Document
from data.encode import encode_parts
from data.remote.epoch import plan_epoch
from data.remote.shard_cache import Cache
from data.splits import Part
from data.tokenizer import Tokenizer

SHARD = 2**22  # minimum tokens of a shard; smaller documents are joined
BLOCK = 2**27  # approximate tokens of a block, whose windows are shuffled together
FETCHING = 2  # shards of a block that a process fetches at a time
DocumentPart = tuple[Document, Part]
BlockKey = tuple[int, int, int, int]  # seed, epoch, context, number of the block in the epoch


def length_of(joined: list[DocumentPart]) -> int:
    """Return the number of tokens of parts that are joined by newlines."""
    return sum(end - begin for _, (_, begin, end) in joined) + max(0, len(joined) - 1)


def group_into_shards(train: list[DocumentPart]) -> list[list[DocumentPart]]:
    """Group consecutive parts into shards of at least `SHARD` tokens."""
    shards: list[list[DocumentPart]] = [[]]
    length = 0
    for document, part in train:
        if length >= SHARD:
            shards.append([])
            length = 0
        shards[-1].append((document, part))
        length += length_of([(document, part)])
    if len(shards) > 1 and length < SHARD:
        last = shards.pop()
        shards[-1] += last
    return shards


def fetch_parts(
    joined: list[DocumentPart], encoding: str | None, tokenizer: Tokenizer
) -> Iterator[tuple[str, np.ndarray]]:
    """Download the documents of `joined` one after the other; yield (split, tokens) of the parts."""
    parts: dict[Document, list[Part]] = {}
    for document, part in joined:
        parts.setdefault(document, []).append(part)
    return encode_parts(Corpus("", tuple(parts), encoding), list(parts.values()), tokenizer)


@dataclass(eq=False, repr=False)
class Shards:
    """The training tokens of a text in shards: their number, slices and batches."""

    shards: list[list[DocumentPart]]  # parts of documents that each shard consists of
    cache: Cache
    folder: Path  # folder of this text in the cache
    encoding: str | None  # encoding of the documents; None for bytes
    tokenizer: Tokenizer
    largest: int  # bytes of the largest document

    def __post_init__(self) -> None:
        self.lengths = np.array([length_of(each) for each in self.shards], np.int64)
        # Not a method: a reference to `self` would keep mapped shards until the garbage collector runs.
        self._plan = lru_cache(4)(partial(plan_epoch, self.lengths, block=BLOCK))
        self._blocks: dict[BlockKey, _Block] = {}

    def __len__(self) -> int:
        return int(self.lengths.sum())

    def __getitem__(self, part: slice) -> np.ndarray:
        """Return the tokens of a slice."""
        begin, end, step = part.indices(len(self))
        starts = np.cumsum(self.lengths) - self.lengths
        some = np.flatnonzero((starts < end) & (starts + self.lengths > begin))
        gathered = [self.open(each)[max(0, begin - starts[each]) : end - starts[each]] for each in some.tolist()]
        return np.concatenate([np.zeros(0, self.tokenizer.dtype), *gathered])[::step]

    def room_needed(self) -> int:
        """Return the bytes that the cache needs for the two blocks of a batch, the next block and the downloads."""
        whole = min(len(self), 3 * (BLOCK + int(self.lengths.max())))
        return whole * np.dtype(self.tokenizer.dtype).itemsize + FETCHING * self.largest

    def open(self, shard: int) -> np.ndarray:
        """Map the tokens of a shard into memory; fetch and encode the shard if it is not in the cache."""

        def make(copy: Path) -> Iterator[np.ndarray]:
            joined = [(replace(document, path=copy), part) for document, part in self.shards[shard]]
            return (tokens for _, tokens in fetch_parts(joined, self.encoding, self.tokenizer))

        length = int(self.lengths[shard])
        return self.cache.open(self.folder / str(shard), self.tokenizer.dtype, length, make, self.largest)

    def windows(self, seed: int, step: int, batch: int, context: int, rows: slice) -> np.ndarray:
        """Return rows of batch `step`: see `data.batches.train_batch`. `plan_epoch` orders the windows."""
        row = step * batch + np.arange(batch)[rows]
        epoch = row // self._plan(seed, 0, context).blocks[-1]
        gathered = np.empty((len(row), context + 1), np.int64)
        used: dict[BlockKey, _Block] = {}
        for number in np.unique(epoch).tolist():
            plan, inside = self._plan(seed, number, context), np.flatnonzero(epoch == number)
            blocks, shards, starts = plan.locate(row[inside] - number * plan.blocks[-1])
            for block, shard in sorted({*zip(blocks.tolist(), shards.tolist(), strict=True)}):
                key = (seed, number, context, block)
                used[key] = used.get(key) or self._block(key)
                here = (blocks == block) & (shards == shard)
                index = starts[here][:, None] + np.arange(context + 1)  # (windows in this shard, context + 1)
                gathered[inside[here]] = used[key].tokens(shard)[index]
        if all(each.is_fetched() for each in used.values()):  # begin to fetch the next block
            key = (seed, number, context, block + 1) if block + 1 < len(plan.blocks) else (seed, number + 1, context, 0)
            used[key] = self._block(key)
        self._blocks = used  # the shards of all other blocks may be deleted from the cache
        return gathered

    def _block(self, key: BlockKey) -> "_Block":
        return self._blocks.get(key) or _Block(self.open, self._plan(*key[:3]).shards_of(key[3]))


class _Block:
    """The shards of a block, fetched in the background."""

    def __init__(self, open: Callable[[int], np.ndarray], shards: list[int]) -> None:
        self.open = open
        self.fetched: dict[int, Future[np.ndarray]] = {shard: Future() for shard in shards}
        # The order is random, so that processes that share a cache fetch different shards.
        self.waiting = iter(random.Random().sample(shards, len(shards)))
        for _ in range(min(FETCHING, len(shards))):
            threading.Thread(target=self._fetch, daemon=True).start()

    def _fetch(self) -> None:
        for shard in self.waiting:  # the threads share this iterator
            try:
                self.fetched[shard].set_result(self.open(shard))
            except Exception as error:  # `tokens` handles it in the main thread
                self.fetched[shard].set_exception(error)

    def is_fetched(self) -> bool:
        return all(future.done() for future in self.fetched.values())

    def tokens(self, shard: int) -> np.ndarray:
        try:
            return self.fetched[shard].result()
        except (DataError, OSError):  # try once more: the store may be back
            again: Future[np.ndarray] = Future()
            again.set_result(self.open(shard))
            self.fetched[shard] = again
            return again.result()
