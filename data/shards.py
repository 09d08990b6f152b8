"""Text at addresses such as `s3://bucket/dir/*.txt`, which need not fit on this disk.

A shard is the training part of one document, or of several small ones that follow each other, joined by newlines.
Shards are encoded when they are needed, and kept in a `Cache`. Validation and test are kept whole, as of any text.
"""

import hashlib
import json
import math
import random
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock

from conf.fields import printable
from conf.progress import Progress
from data.arrays import FORMAT, SPLITS, Part, Text, cannot_keep, check_lengths, cuts, keep, load, make_tokenizer, pieces
from data.cache import GB, Cache
from data.config import DataConfig
from data.corpus import Corpus, DataError, Document, cache_dir
from data.manifest import Scanned, fetch, make_manifest
from data.order import Epoch, plan_epoch
from data.tokenizer import Tokenizer

SHARD = 2**22  # tokens: smaller documents are joined until they have so many
BLOCK = 2**27  # tokens: the windows of about so many are shuffled together
FETCHING = 2  # shards of a block that a process fetches at a time
Piece = tuple[Document, Part]


def open_shards(config: DataConfig, context: int, known: str, *, as_before: bool) -> Text:
    """Open a text that lies at addresses; see `data.arrays.open_text`.

    Raises:
        DataError: one line that says what is wrong and what is needed.
    """
    assert config.path is not None
    encoding = None if config.tokenizer == "byte" else config.encoding
    folder = cache_dir(config) / "shards" / _digest([FORMAT, config.path, encoding])[:16]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with FileLock(folder / ".lock"):  # of several processes, one reads
            room = config.cache_gb * GB
            scanned = make_manifest(config.path, encoding, folder, room, as_before=as_before)
            return _open(config, context, known, scanned, folder / "held_out.copy")
    except OSError as error:
        raise cannot_keep(folder, error) from None


def _open(config: DataConfig, context: int, known: str, scanned: list[Scanned], copy: Path) -> Text:
    """Open a text whose manifest is known; `copy` is where its documents may be kept while they are read."""
    names = _names([each.address for each in scanned])
    encoding = None if config.tokenizer == "byte" else config.encoding
    contents = [[name, each.sha256] for name, each in zip(names, scanned, strict=True)]
    shares = [float(share) for share in config.split]
    fingerprint = _digest([FORMAT, SHARD, BLOCK, contents, encoding, shares, known])
    documents = tuple(
        Document(name, copy, address=each.address, fetch=partial(fetch, each))
        for name, each in zip(names, scanned, strict=True)
    )
    corpus = Corpus(printable(config.path), documents, encoding)
    distinct = "".join(set().union(*(each.distinct for each in scanned)))
    tokenizer = make_tokenizer(corpus, distinct, known, joined=len(scanned) > 1)
    parts = cuts(corpus, [each.tokens for each in scanned], config.split)
    every = [
        (document, (split, begin, end))
        for document, cut in zip(documents, parts, strict=True)
        for split, begin, end in cut
        if begin < end
    ]
    of = {split: [piece for piece in every if piece[1][0] == split] for split in SPLITS}
    shards = in_shards(of["train"])

    largest = max(each.bytes for each in scanned)
    held_out = {split: range(_length(of[split])) for split in SPLITS[1:]}
    beside = sum(map(len, held_out.values())) * np.dtype(tokenizer.dtype).itemsize
    cache = Cache(cache_dir(config) / "shards", config.cache_gb * GB - beside)
    train = Shards(shards, cache, cache.root / fingerprint, encoding, tokenizer, largest)
    check_lengths({"train": train, **held_out}, config, context, corpus)
    needed = (beside + train.room_needed()) / GB
    if needed > config.cache_gb:
        raise DataError(
            f"data.cache_gb={config.cache_gb:g}: is too little for {corpus.name}, which needs at least "
            f"{math.ceil(1e6 * needed) / 1e6:g}, of which {beside / GB:.2g} for validation and test (data.split)"
        )
    folder = cache_dir(config) / "encoded" / fingerprint
    if load(folder) is None:
        with Progress("encoding validation and test"):
            keep(folder, tokenizer, encode([piece for piece in every if piece[1][0] != "train"], encoding, tokenizer))
    opened = load(folder)
    if opened is None:
        raise DataError(f"{printable(folder)}: the encoded text was damaged as soon as it was written")
    arrays, _, characters = opened
    newlines = len(of["train"]) - len(shards) + sum(max(0, len(of[split]) - 1) for split in SPLITS[1:])
    characters["train"] = sum(each.characters for each in scanned) + newlines - sum(characters.values())
    return Text(
        train=train,
        validation=arrays["validation"],
        test=arrays["test"],
        tokenizer=tokenizer,
        name=corpus.name,
        fingerprint=fingerprint,
        characters=characters,
        known=known,
    )


def _digest(settings: list[Any]) -> str:
    return hashlib.sha256(json.dumps(settings).encode()).hexdigest()


def _names(addresses: list[str]) -> list[str]:
    """Addresses below the directory that all have in common: a text that is moved stays the same text."""
    parts = [address.split("/") for address in addresses]
    common = min(map(len, parts)) - 1
    while len({tuple(each[:common]) for each in parts}) > 1:
        common -= 1
    return ["/".join(each[common:]) for each in parts] if len(parts) > 1 else [""]


def _length(joined: list[Piece]) -> int:
    """Tokens of pieces that are joined by newlines."""
    return sum(end - begin for _, (_, begin, end) in joined) + max(0, len(joined) - 1)


def in_shards(train: list[Piece]) -> list[list[Piece]]:
    """Join small pieces with those that follow until each shard has `SHARD` tokens; the last takes what is left."""
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
    """Fetch documents one after the other and yield the tokens of the given parts of them, by split."""
    parts: dict[Document, list[Part]] = {}
    for document, part in joined:
        parts.setdefault(document, []).append(part)
    return pieces(Corpus("", tuple(parts), encoding), list(parts.values()), tokenizer)


class Shards:
    """The training tokens of a text in shards: those operations of an array that batches are made with."""

    def __init__(
        self,
        shards: list[list[Piece]],
        cache: Cache,
        folder: Path,
        encoding: str | None,
        tokenizer: Tokenizer,
        largest: int,
    ) -> None:
        """Keep what shards are made from; nothing is fetched yet.

        Args:
            shards: the pieces of each.
            cache: where they are kept.
            folder: theirs in the cache.
            encoding: of the documents; None where tokens are bytes.
            tokenizer: which makes the tokens.
            largest: bytes of the largest document.
        """
        self.shards, self.cache, self.folder = shards, cache, folder
        self.encoding, self.tokenizer, self.largest = encoding, tokenizer, largest
        self.lengths = np.array([_length(each) for each in shards], np.int64)
        self._plans: dict[tuple[int, int, int], Epoch] = {}
        self._blocks: dict[tuple[int, int, int, int], _Block] = {}

    def __len__(self) -> int:
        """Tokens of all shards."""
        return int(self.lengths.sum())

    def __getitem__(self, part: slice) -> np.ndarray:
        """The tokens of a slice, one shard after the other."""
        begin, end, step = part.indices(len(self))
        starts = np.cumsum(self.lengths) - self.lengths
        some = np.flatnonzero((starts < end) & (starts + self.lengths > begin))
        gathered = [self.open(each)[max(0, begin - starts[each]) : end - starts[each]] for each in some.tolist()]
        return np.concatenate([np.zeros(0, self.tokenizer.dtype), *gathered])[::step]

    def room_needed(self) -> int:
        """Bytes that must fit into the cache: two blocks that a batch may lie in, the next one, and what is fetched."""
        whole = min(len(self), 3 * (BLOCK + int(self.lengths.max())))
        return whole * np.dtype(self.tokenizer.dtype).itemsize + FETCHING * self.largest

    def open(self, shard: int) -> np.ndarray:
        """The tokens of a shard, mapped into memory.

        Raises:
            DataError: a document is missing, has changed or cannot be fetched.
        """

        def make(copy: Path) -> Iterator[np.ndarray]:
            joined = [(replace(document, path=copy), part) for document, part in self.shards[shard]]
            return (tokens for _, tokens in encode(joined, self.encoding, self.tokenizer))

        length = int(self.lengths[shard])
        return self.cache.open(self.folder / str(shard), self.tokenizer.dtype, length, make, self.largest)

    def windows(self, seed: int, step: int, batch: int, context: int, rows: slice) -> np.ndarray:
        """Rows of batch `step`; see `data.batches.train_batch`.

        Windows lie within a shard. An epoch takes each window once, in the order of `data.order.plan_epoch`.
        """
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
        self._blocks = used  # what is in no block any more may leave the cache
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
        # In an order of its own, so that processes that share a cache also share the work.
        self.waiting = iter(random.Random().sample(shards, len(shards)))
        for _ in range(min(FETCHING, len(shards))):
            threading.Thread(target=self._fetch, daemon=True).start()

    def _fetch(self) -> None:
        for shard in self.waiting:  # of each of which one thread gets hold
            try:
                self.fetched[shard].set_result(self.open(shard))
            except Exception as error:  # for the thread that trains, when it comes to this shard
                self.fetched[shard].set_exception(error)

    def is_there(self) -> bool:
        return all(future.done() for future in self.fetched.values())

    def tokens(self, shard: int) -> np.ndarray:
        try:
            return self.fetched[shard].result()
        except (DataError, OSError):  # the store may be back
            again: Future[np.ndarray] = Future()
            again.set_result(self.open(shard))
            self.fetched[shard] = again
            return again.result()
