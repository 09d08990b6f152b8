"""Which windows make batch k, as a pure function of (seed, k): nothing is drawn, stored or advanced.

A text in one array is permuted as a whole. One in many shards, which do not all fit on a disk, is permuted block by
block: an epoch takes the shards in a random order, a few of them (a block) at a time, and the windows of a block in a
random order.
"""

from dataclasses import dataclass

import numpy as np

GOLDEN = 0x9E3779B97F4A7C15


def mix(x: np.ndarray) -> np.ndarray:
    """Scramble uint64 numbers: the finalizer of splitmix64 (Steele, Lea, Flood 2014)."""
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB
    return x ^ (x >> 31)


def permute(index: np.ndarray, size: int, key: np.ndarray) -> np.ndarray:
    """Apply the permutation of 0..size-1 that belongs to `key`, computed one by one and never stored.

    A Feistel network permutes 0..2^bits-1, the smallest such range that holds `size` numbers; whatever
    falls outside 0..size-1 goes round again until it is inside (Black and Rogaway 2002, "cycle walking").

    Args:
        index: (rows,) uint64, each below `size`.
        size: how many numbers are permuted.
        key: (rows,) uint64; rows with the same key belong to the same permutation.

    Returns:
        (rows,) uint64, each below `size`.
    """
    bits = (size - 1).bit_length()
    low_bits = (bits + 1) // 2
    low_mask, high_mask = (1 << low_bits) - 1, (1 << (bits - low_bits)) - 1
    # Halves of so few bits mix slowly: with 6 rounds some of 5 numbers came 10 % too often, with 16 none.
    rounds = 6 if bits > 5 else 16
    keys = [mix(key + GOLDEN * turn % 2**64) for turn in range(1, rounds + 1)]
    inside = np.zeros(index.shape, bool)
    while not inside.all():
        low, high = index & low_mask, index >> low_bits
        for even, odd in zip(keys[::2], keys[1::2], strict=True):
            # Each line can be undone by itself, so the whole is a permutation whatever mix does.
            high = high ^ (mix(low + even) & high_mask)
            low = low ^ (mix(high + odd) & low_mask)
        index = np.where(inside, index, high << low_bits | low)
        inside = index < size
    return index


def windows_per_epoch(length: int, context: int) -> int:
    """How many windows of context + 1 tokens, `context` apart, fit into `length` tokens at every phase."""
    return (length - min(context, length - context)) // context


def window_starts(length: int, seed: int, step: int, batch: int, context: int) -> np.ndarray:
    """Where the windows of batch `step` begin in a text of `length` tokens: (batch,) int64.

    The batches are consecutive pieces of an endless sequence of epochs. Epoch e takes all windows
    that begin at phase_e + i * context, in an order of its own; all phases have the same number of them.

    Raises:
        ValueError: the text holds no window of context + 1 tokens.
    """
    if length <= context:
        raise ValueError(f"{length} tokens hold no window of {context} and its targets")
    phases, windows = min(context, length - context), windows_per_epoch(length, context)
    row = np.arange(batch, dtype=np.uint64) + step * batch
    epoch, index = row // windows, row % windows
    key = mix(mix(np.array([seed % 2**64], np.uint64)) + epoch * GOLDEN)
    phase = mix(key) % phases
    return (phase + permute(index, windows, key) * context).astype(np.int64)


@dataclass(frozen=True)
class Epoch:
    """The order of one epoch of a text in shards: all the windows that fit into each, once.

    Attributes:
        key: of the epoch, (1,) uint64.
        context: windows are this long.
        order: the shards in the order they are taken in, (shards,) int64.
        ends: windows of the epoch up to the end of each of these, (shards,) int64.
        blocks: likewise up to the end of each block of them, (blocks,) int64.
        phase: where the first window begins in each shard, (shards,) int64, in the order of the shards themselves.
    """

    key: np.ndarray
    context: int
    order: np.ndarray
    ends: np.ndarray
    blocks: np.ndarray
    phase: np.ndarray

    def shards_of(self, block: int) -> list[int]:
        """The shards of a block."""
        first = np.searchsorted(self.ends, self.blocks[block - 1], side="right") if block else 0
        return self.order[first : 1 + np.searchsorted(self.ends, self.blocks[block])].tolist()

    def locate(self, index: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Find windows by their place in the epoch.

        Args:
            index: (rows,) int64, each below `blocks[-1]`.

        Returns:
            The block, the shard and where in the shard the window begins, each (rows,) int64.
        """
        block = np.searchsorted(self.blocks, index, side="right")
        begins = np.concatenate(([0], self.blocks))
        place = np.empty_like(index)
        for each in np.unique(block):
            rows, begin = block == each, int(begins[each])
            inside = (index[rows] - begin).astype(np.uint64)
            key = np.repeat(mix(self.key + (int(each) + 1) * GOLDEN % 2**64), len(inside))
            place[rows] = begin + permute(inside, int(self.blocks[each]) - begin, key).astype(np.int64)
        nth = np.searchsorted(self.ends, place, side="right")
        shard = self.order[nth]
        window = place - np.concatenate(([0], self.ends))[nth]
        return block, shard, self.phase[shard] + window * self.context


def plan_epoch(lengths: np.ndarray, seed: int, epoch: int, context: int, block: int) -> Epoch:
    """Put the shards of a text in the order of one epoch, and divide them into blocks.

    Every epoch has the same number of windows, and over the phases every token of a shard but its first is a target.

    Args:
        lengths: tokens of each shard, (shards,) int64, each above `context`.
        seed: of the run.
        epoch: from 0.
        context: window length in tokens.
        block: a block is as many consecutive shards as begin within so many tokens.
    """
    windows = (lengths - np.minimum(context, lengths - context)) // context
    number = np.arange(len(lengths), dtype=np.uint64)
    key = mix(mix(np.array([seed % 2**64], np.uint64)) + epoch * GOLDEN % 2**64)
    order = permute(number, len(lengths), np.repeat(key, len(lengths))).astype(np.int64)
    ends = np.cumsum(windows[order])
    begins = ends - windows[order]
    _, last = np.unique((begins // max(1, block // context))[::-1], return_index=True)
    phase = mix(mix(key) + number * GOLDEN) % (lengths - windows * context).astype(np.uint64)
    return Epoch(key, context, order, ends, ends[::-1][last], phase.astype(np.int64))
