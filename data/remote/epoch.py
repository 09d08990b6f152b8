"""Order the windows of an epoch of a remote text.

Not all shards fit on the disk. So an epoch puts the shards in a random order and groups consecutive ones into blocks.
Training takes one block after the other, and the windows of a block in a random order.
"""

from dataclasses import dataclass

import numpy as np

from data.order import GOLDEN, mix, permute


@dataclass(frozen=True)
class Epoch:
    """The order of one epoch, which takes each window of each shard once."""

    key: np.ndarray  # seeds the random choices of the epoch, (1,) uint64
    context: int  # window length
    order: np.ndarray  # numbers of the shards, in the order of the epoch, (shards,) int64
    ends: np.ndarray  # number of windows up to the end of each shard of `order`, (shards,) int64
    blocks: np.ndarray  # number of windows up to the end of each block, (blocks,) int64
    phase: np.ndarray  # first token of the first window of shards 0, 1, ..., (shards,) int64

    def shards_of(self, block: int) -> list[int]:
        """Return the shards of a block."""
        first = np.searchsorted(self.ends, self.blocks[block - 1], side="right") if block else 0
        return self.order[first : 1 + np.searchsorted(self.ends, self.blocks[block])].tolist()

    def locate(self, index: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return (block, shard, start in the shard) of windows by their index in the epoch: all (rows,) int64."""
        block = np.searchsorted(self.blocks, index, side="right")
        begins = np.concatenate(([0], self.blocks))
        permuted = np.empty_like(index)
        for number in np.unique(block).tolist():
            rows, begin = block == number, int(begins[number])
            inside = (index[rows] - begin).astype(np.uint64)
            key = np.repeat(mix(self.key + (number + 1) * GOLDEN % 2**64), len(inside))
            permuted[rows] = begin + permute(inside, int(self.blocks[number]) - begin, key).astype(np.int64)
        nth = np.searchsorted(self.ends, permuted, side="right")
        shard = self.order[nth]
        window = permuted - np.concatenate(([0], self.ends))[nth]
        return block, shard, self.phase[shard] + window * self.context


def plan_epoch(lengths: np.ndarray, seed: int, epoch: int, context: int, block: int) -> Epoch:
    """Order the shards of a text for epoch 0, 1, ... and group them into blocks of about `block` tokens.

    `lengths` are the tokens of each shard, more than `context`: (shards,) int64. Every epoch has the same number of
    windows. Because the phases are random, every token of a shard but the first is a target in some epochs.
    """
    windows = (lengths - np.minimum(context, lengths - context)) // context
    number = np.arange(len(lengths), dtype=np.uint64)
    key = mix(mix(np.array([seed % 2**64], np.uint64)) + epoch * GOLDEN % 2**64)
    order = permute(number, len(lengths), np.repeat(key, len(lengths))).astype(np.int64)
    ends = np.cumsum(windows[order])
    begins = ends - windows[order]
    # The last shard with a block number ends the block: `unique` finds the first one of the reversed order.
    _, last = np.unique((begins // max(1, block // context))[::-1], return_index=True)
    phase = mix(mix(key) + number * GOLDEN) % (lengths - windows * context).astype(np.uint64)
    return Epoch(key, context, order, ends, ends[::-1][last], phase.astype(np.int64))
