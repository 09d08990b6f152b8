"""The order of shards, blocks and windows in an epoch of a remote text.

Not all shards fit on the disk. So an epoch takes the shards in a random order, a few of them (a block) at a time, and
the windows of a block in a random order.
"""

from dataclasses import dataclass

import numpy as np

from data.order import GOLDEN, mix, permute


@dataclass(frozen=True)
class Epoch:
    """The order of one epoch: all windows that fit into each shard, once."""

    key: np.ndarray  # of the epoch, (1,) uint64
    context: int  # window length
    order: np.ndarray  # the shards in the order they are taken, (shards,) int64
    ends: np.ndarray  # windows of the epoch up to the end of each of these, (shards,) int64
    blocks: np.ndarray  # likewise up to the end of each block of them, (blocks,) int64
    phase: np.ndarray  # start of the first window in each shard, (shards,) int64, in the order of the text

    def shards_of(self, block: int) -> list[int]:
        """Return the shards of a block."""
        first = np.searchsorted(self.ends, self.blocks[block - 1], side="right") if block else 0
        return self.order[first : 1 + np.searchsorted(self.ends, self.blocks[block])].tolist()

    def locate(self, index: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Find windows by their index in the epoch, (rows,) int64: return block, shard and start in it, likewise."""
        block = np.searchsorted(self.blocks, index, side="right")
        begins = np.concatenate(([0], self.blocks))
        permuted = np.empty_like(index)
        for each in np.unique(block):
            rows, begin = block == each, int(begins[each])
            inside = (index[rows] - begin).astype(np.uint64)
            key = np.repeat(mix(self.key + (int(each) + 1) * GOLDEN % 2**64), len(inside))
            permuted[rows] = begin + permute(inside, int(self.blocks[each]) - begin, key).astype(np.int64)
        nth = np.searchsorted(self.ends, permuted, side="right")
        shard = self.order[nth]
        window = permuted - np.concatenate(([0], self.ends))[nth]
        return block, shard, self.phase[shard] + window * self.context


def plan_epoch(lengths: np.ndarray, seed: int, epoch: int, context: int, block: int) -> Epoch:
    """Order the shards of a text, of more than `context` tokens each, for an epoch, and divide them into blocks.

    A block is the consecutive shards that begin within `block` tokens. Every epoch has the same number of windows, and
    over the phases every token of a shard but its first is a target.
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
