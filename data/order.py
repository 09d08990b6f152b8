"""Choose the windows of training batch k from the seed and k alone.

This file is for a text in one array: an epoch takes all windows of the text in random order. For a text in shards see
data/remote/epoch.py.
"""

import numpy as np

GOLDEN = 0x9E3779B97F4A7C15  # 2**64 / golden ratio: the increment of splitmix64


def mix(x: np.ndarray) -> np.ndarray:
    """Hash uint64 numbers: the finalizer of splitmix64 (Steele, Lea, Flood 2014)."""
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB
    return x ^ (x >> 31)


def permute(index: np.ndarray, size: int, key: np.ndarray) -> np.ndarray:
    """Apply a pseudorandom permutation of 0..size-1 to each number in `index`.

    A Feistel network permutes 0..2^bits-1 with the fewest bits that hold `size` numbers. A result of at least `size` is
    permuted again until it is smaller ("cycle walking", Black and Rogaway 2002). The key of a row chooses the row's
    permutation. All arrays are (rows,) uint64.
    """
    bits = (size - 1).bit_length()
    low_bits = (bits + 1) // 2
    low_mask, high_mask = (1 << low_bits) - 1, (1 << (bits - low_bits)) - 1
    # Few bits mix slowly: with 6 rounds, some permutations of 5 numbers came 10 % too often; with 16 rounds, none.
    rounds = 6 if bits > 5 else 16
    keys = [mix(key + GOLDEN * i % 2**64) for i in range(1, rounds + 1)]
    inside = np.zeros(index.shape, bool)
    while not inside.all():
        low, high = index & low_mask, index >> low_bits
        for even, odd in zip(keys[::2], keys[1::2], strict=True):
            # Each of these lines is invertible, whatever `mix` returns. So together they are a permutation.
            high = high ^ (mix(low + even) & high_mask)
            low = low ^ (mix(high + odd) & low_mask)
        index = np.where(inside, index, high << low_bits | low)
        inside = index < size
    return index


def windows_per_epoch(length: int, context: int) -> int:
    """Return the number of windows in an epoch of `length` tokens, the same at every phase (see `window_starts`)."""
    return (length - min(context, length - context)) // context


def window_starts(length: int, seed: int, step: int, batch: int, context: int) -> np.ndarray:
    """Return where the windows of batch `step` begin in a text of `length` tokens: (batch,) int64.

    Batches are consecutive slices of an endless sequence of epochs. Epoch e takes the windows that begin at
    phase_e + i * context, in an order of its own. The phase is random: the position of the first window of the text.
    """
    if length <= context:
        raise ValueError(f"{length} tokens hold no window of {context} and its targets")
    phases, windows = min(context, length - context), windows_per_epoch(length, context)
    row = np.arange(batch, dtype=np.uint64) + step * batch
    epoch, index = row // windows, row % windows
    key = mix(mix(np.array([seed % 2**64], np.uint64)) + epoch * GOLDEN)
    phase = mix(key) % phases
    return (phase + permute(index, windows, key) * context).astype(np.int64)
