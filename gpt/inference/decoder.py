"""Decode with a KV cache, on NumPy on a CPU, where the overhead of calls dominates, and on torch elsewhere.

For up to `context` tokens, the logits equal those of the model's forward pass. Longer texts follow the *window rule*:

- rotary and none: a sliding window. In every block, a position attends to itself and the `context - 1` positions
  before it, as in one forward pass over the whole text with a banded causal mask.
- learned and sinusoidal: when `context` positions are full, the decoder forgets the text and reads its last `context //
  2` tokens again, from position 0.

Source: "Fast Transformer Decoding", arXiv:1911.02150, section 2.4, for the cache; Mistral 7B, arXiv:2310.06825, section
2, for the sliding window and its rolling buffer.
Shapes: B texts, n tokens read at once, m keys attended to, C = dim, H heads of size D, T = context, S = attention
window (the longest cache), V = vocabulary, R = rotary dimensions, K = taps of the convolution.
"""

from typing import Any, NamedTuple

import numpy as np

from gpt.inference.weights import Array, Layer, Weights

CHUNK = 256  # tokens worth reading at once, slots of a new cache, positions in a table of encodings
MAX_SCORES = 2**24  # attention scores in memory at once while a long text is read


class Chunk(NamedTuple):
    """The next n tokens of B texts: where the cache, a ring buffer, stores them, and what they attend to."""

    texts: Any  # indices of the B texts, (B,), or a slice of all texts, for NumPy arrays
    rows: Any  # the same for arrays of the weights' library, NumPy or torch
    positions: Any  # (B, n), or one int if n is 1 and all texts are at the same position
    slots: tuple[Any, Any]  # index of a cache (rows, slots, H, D): where the last S of the n tokens are stored
    filled: int  # slots to attend to; if n > 1, the keys of the n tokens themselves come after them
    mask: Array | None  # added to the scores, (B, 1, n, m), -inf for masked keys; None: all are visible


class Decoder:
    """Reads `rows` texts in one batch, a few tokens at a time, and computes the logits after each token."""

    def __init__(self, weights: Weights, rows: int = 1) -> None:
        config = weights.config
        self.weights, self.rows, self.slots = weights, rows, 0
        H, D = config.heads, config.head_dim
        self.keys = [weights.zeros(rows, H, 0, D) for _ in range(config.layers)]
        self.values = self.keys[:]
        # With key_offset, channels from `own` on belong to the next position's key, see `gpt.attention.offset_keys`.
        self.own = D - D // 2 if config.key_offset else D
        self.moved = [weights.zeros(rows, H, D - self.own) for _ in range(config.layers)]
        # What the tokens read so far add to the convolution at the next K - 1 positions.
        self.pending = [weights.zeros(config.conv_taps - 1, rows, config.dim) for _ in range(config.layers)]
        self.all_rows = np.arange(rows)
        self.position = np.zeros(rows, np.int64)  # of the next token of each text
        self.previous = np.full(rows, -1)  # the last token of each text; -1: no token yet
        self.block, self.table = -1, np.empty(0)  # the encodings of CHUNK positions from block * CHUNK on
        self.tokens = np.zeros((rows, config.context * config.absolute), np.int64)  # the token at each position
        self._grow(CHUNK)

    def _grow(self, length: int) -> None:
        w, S = self.weights, self.weights.config.attention_window
        if min(length, S) <= self.slots:
            return
        added = min(max(length, 2 * self.slots), S) - self.slots
        more = w.zeros(self.rows, w.config.heads, added, w.config.head_dim)
        self.slots += added
        for cache in (self.keys, self.values):
            cache[:] = [w.xp.concatenate((old, more), axis=2) for old in cache]

    def read(self, tokens: np.ndarray, rows: np.ndarray | None = None) -> np.ndarray:
        """Read the next n >= 1 tokens of B texts and return the logits after each: (B, n) int64 -> (B, n, V) float64.

        `rows`, (B,), are the indices of the texts that `tokens` continue; None: all texts, in order.
        """
        config, n = self.weights.config, tokens.shape[1]
        texts: Any = slice(None) if rows is None else rows  # slices are faster
        logits, start = [], 0
        while start < n:
            self._restart_full(texts)
            filled = int(self.position[texts].max())
            # In chunks of about the attention window: most scores of a longer chunk would be masked.
            length = min(n - start, max(config.attention_window, CHUNK))
            if config.absolute:
                length = min(length, config.context - filled)
            keys = min(filled, config.attention_window) + length
            length = min(length, max(1, MAX_SCORES // (len(tokens) * config.heads * keys)))
            self._grow(filled + length)
            logits.append(self._forward(tokens[:, start : start + length], self._chunk(texts, filled, length)))
            start += length
        return logits[0] if len(logits) == 1 else np.concatenate(logits, axis=1)

    def _chunk(self, texts: Any, longest: int, n: int) -> Chunk:
        w, S = self.weights, self.weights.config.attention_window
        rows = texts if isinstance(texts, slice) else w.to_array(texts)
        starts = self.position[texts]  # (B,)
        stored = int(n == 1)  # `_store` stores one token before attention, several after it
        filled = min(longest + stored, S)
        if stored and starts.min() == longest:  # the usual case while generating: no mask, slices instead of indices
            slot = longest % S
            return Chunk(texts, rows, longest, (rows, slice(slot, slot + 1)), filled, None)
        positions = starts[:, None] + np.arange(n)  # (B, n)
        newest = starts[:, None] - 1 + stored  # (B, 1)
        keys = newest - (newest - np.arange(filled)) % S  # (B, filled): position in each slot, below 0 if empty
        if not stored:
            keys = np.concatenate((keys, positions), axis=1)  # (B, m)
        distance = positions[:, :, None] - keys[:, None]  # (B, n, m)
        visible = (distance >= 0) & (distance < S) & (keys >= 0)[:, None]  # (B, n, m)
        mask = w.numbers(np.where(visible, 0.0, -np.inf))[:, None]  # (B, 1, n, m)
        each = w.to_array(self.all_rows[texts][:, None])  # (B, 1)
        return Chunk(texts, rows, positions, (each, w.to_array(positions[:, -S:] % S)), filled, mask)

    def _forward(self, tokens: np.ndarray, chunk: Chunk) -> np.ndarray:
        """Return the logits after each of n tokens, and update all state: (B, n) -> (B, n, V) float64."""
        w, n = self.weights, tokens.shape[1]
        encoding = self._encoding(chunk.positions) if w.encoded else None
        x = w.embedding[w.to_array(tokens)]  # (B, n, C)
        if w.config.token_shift:
            previous = self.previous[chunk.texts][:, None]  # (B, 1)
            if n > 1:
                previous = np.concatenate((previous, tokens[:, :-1]), axis=1)  # (B, n)
            x = x + w.shifted[w.to_array(previous)]
        if w.config.positions == "learned":
            x = x + w.positions[chunk.positions if isinstance(chunk.positions, int) else w.to_array(chunk.positions)]
        if w.config.positions == "sinusoidal":
            x, encoding = x + encoding, None
        for i, layer in enumerate(w.layers):
            h = self._norm(x)  # (B, n, C)
            q, k, v = self._project(layer, h, encoding)  # 3 x (B, n, H, D)
            if w.config.key_offset:
                self._offset(i, k, chunk.rows)
            keys, values = self._store(self.keys[i], k, chunk), self._store(self.values[i], v, chunk)
            y = self._attend(q.swapaxes(1, 2), keys, values, chunk.mask).swapaxes(1, 2)  # (B, n, H, D)
            x = x + layer.proj(y.reshape(x.shape))  # (B, n, C)
            y = self._mlp(layer, x)  # (B, n, C)
            x = x + (y if layer.taps is None else self._convolve(i, layer.taps, y, chunk))
        logits = w.head(self._norm(x))  # (B, n, V)
        if w.config.absolute:
            starts = self.position[chunk.texts][:, None]  # (B, 1)
            self.tokens[self.all_rows[chunk.texts][:, None], starts + np.arange(n)] = tokens
        self.position[chunk.texts] += n
        self.previous[chunk.texts] = tokens[:, -1]
        return logits.astype(np.float64) if w.numpy else logits.cpu().double().numpy()

    def _offset(self, i: int, k: Array, rows: Any) -> None:
        """Offset the keys (B, n, H, D) of block i in place, as `gpt.attention.offset_keys` does."""
        moved = k[..., self.own :]  # (B, n, H, D / 2)
        shifted = self.weights.xp.concatenate((self.moved[i][rows][:, None], moved), axis=1)  # (B, n + 1, H, D / 2)
        moved[:] = shifted[:, :-1]
        self.moved[i][rows] = shifted[:, -1]

    def _store(self, cache: Array, new: Array, chunk: Chunk) -> Array:
        """Store `new` keys or values, (B, n, H, D), and return all to attend to: (B, H, m, D)."""
        by_slot = cache.swapaxes(1, 2)  # (rows, slots, H, D)
        if new.shape[1] == 1:  # overwrites the position that has just left the window
            by_slot[chunk.slots] = new
            return cache[chunk.rows, :, : chunk.filled]
        # Several tokens are stored last: they overwrite slots to which the first of them still attend.
        everything = self.weights.xp.concatenate((cache[chunk.rows, :, : chunk.filled], new.swapaxes(1, 2)), axis=2)
        by_slot[chunk.slots] = new[:, -self.weights.config.attention_window :]
        return everything

    def _restart_full(self, texts: Any) -> None:
        """Read the last `context // 2` tokens of texts without free positions again, from position 0."""
        T = self.weights.config.context
        if not self.weights.config.absolute or self.position[texts].max() < T:
            return
        full = self.all_rows[texts][self.position[texts] == T]
        rows = self.weights.to_array(full)
        self.position[full], self.previous[full] = 0, -1
        for moved, pending in zip(self.moved, self.pending, strict=True):
            moved[rows] = pending[:, rows] = 0
        if T > 1:
            self.read(self.tokens[full, T - T // 2 :], full)

    def _encoding(self, positions: Any) -> Array:
        if not isinstance(positions, int):
            return self.weights.encoding(positions)
        if positions // CHUNK != self.block:
            self.block = positions // CHUNK
            self.table = self.weights.encoding(self.block * CHUNK + np.arange(CHUNK))
        return self.table[positions % CHUNK]

    def _norm(self, x: Array) -> Array:
        """Return x / sqrt(sum of squares + C * eps): RMS norm without sqrt(C), which is in the following weights."""
        return x / self.weights.xp.sqrt(self.weights.vecdot(x, x) + self.weights.norm_eps)[..., None]

    def _convolve(self, i: int, taps: Array, y: Array, chunk: Chunk) -> Array:
        """Return the convolution of y with `taps`, (K, 1, C), in block i: (B, n, C) -> (B, n, C)."""
        w, n, reach = self.weights, y.shape[1], len(taps) - 1
        y = y.swapaxes(0, 1)  # (n, B, C)
        if n == 1:
            mixed = y * taps  # (K, B, C): for this position and the next K - 1
        else:
            mixed = w.zeros(n + reach, *y.shape[1:])
            for back, tap in enumerate(taps):
                mixed[back : back + n] += y * tap
        mixed[:reach] += self.pending[i][:, chunk.rows]
        self.pending[i][:, chunk.rows] = mixed[n:]
        return w.centred(mixed[:n].swapaxes(0, 1))  # (B, n, C)

    def _project(self, layer: Layer, h: Array, rotation: Array) -> tuple[Array, Array, Array]:
        """Return rotated queries and keys, scaled so that q . k includes 1 / sqrt(D), and values: 3 x (..., H, D)."""
        w = self.weights
        qkv = layer.qkv(h).reshape(*h.shape[:-1], 3, w.config.heads, w.config.head_dim)  # (..., 3, H, D)
        qk = qkv[..., :2, :, :]
        if w.config.qk_norm:
            qk /= w.xp.sqrt(w.vecdot(qk, qk) * w.qk_scale + w.qk_eps)[..., None]
        if rotation is not None:
            pairs = qk[..., : 2 * rotation.shape[-1]].view(rotation.dtype)  # (..., 2, H, R/2)
            pairs *= rotation
        return qkv[..., 0, :, :], qkv[..., 1, :, :], qkv[..., 2, :, :]

    def _attend(self, q: Array, k: Array, v: Array, mask: Array | None) -> Array:
        """Return softmax(q k^T + mask) v: (B, H, n, D), 2 x (B, H, m, D) -> (B, H, n, D)."""
        xp = self.weights.xp
        scores = q @ k.swapaxes(2, 3)  # (B, H, n, m)
        if mask is not None:
            scores += mask
        if not self.weights.bounded:
            scores -= xp.amax(scores, -1, keepdims=True)
        weights = xp.exp(scores, out=scores)
        return (weights @ v) / weights.sum(-1)[..., None]

    def _mlp(self, layer: Layer, x: Array) -> Array:
        w = self.weights
        return layer.down(ACTIVATIONS[w.config.activation](w, layer.up(self._norm(x))))


def _relu2(w: Weights, h: Array) -> Array:
    h = w.xp.maximum(h, w.zero)
    h *= h
    return h


ACTIVATIONS = {"gelu": lambda w, h: w.gelu(h), "relu2": _relu2}


def first_needed(weights: Weights, length: int) -> int:
    """Return the index of the first token of a prompt of `length` tokens that can influence the text after it."""
    config = weights.config
    T = config.context
    if config.absolute:  # the window rule restarts a long prompt several times
        step = T - T // 2
        return -(-max(0, length - T) // step) * step
    # Each block reaches back S - 1 positions by attention, 1 by offset keys and K - 1 by the convolution. The token
    # shift reaches back 1 more. With the last token itself, the sum is layers * (S + K - 1) + 2.
    return max(0, length - config.layers * (config.attention_window + config.conv_taps - 1) - 2)
