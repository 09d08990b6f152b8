"""The order of shards, blocks and windows in an epoch of a remote text."""

from dataclasses import dataclass

import numpy as np

from data.order import GOLDEN, mix, permute


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
