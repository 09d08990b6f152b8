"""Read text a few tokens at a time, with the keys and values of earlier tokens kept: the KV cache.

The code uses only what NumPy arrays and torch tensors have in common. On a CPU it runs on NumPy: with one token a step,
calls take most of the time, and NumPy's calls take a third as long as torch's. On other devices it runs on torch.

Text of any length can be read. Which tokens a position attends to is the *window rule*, which follows from `positions`:

- rotary, alibi and none: a sliding window. In every block, a position attends to itself and the `context - 1` positions
  before it, as in one forward pass over the whole text with a banded causal mask.
- learned and sinusoidal: when `context` positions are full, the decoder forgets the text and reads its last
  `context // 2` tokens again, from position 0. New tokens follow after them.

Up to `context` tokens, both rules give the logits of the model's own forward pass. In both, `model.window` limits the
reach of attention and the length of the cache.
Source: "Fast Transformer Decoding", arXiv:1911.02150, section 2.4, for the cache; Mistral 7B, arXiv:2310.06825,
section 2, for the sliding window and its rolling buffer.

Shapes: B texts, n tokens read at once, m keys attended to, C = dim, H heads of size D, T = context, S = attention
window (the longest cache), V = vocabulary, R = rotary dimensions, K = taps of the convolution.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from gpt.inference.weights import Array, Convolution, Layer, Weights

CHUNK = 256  # tokens worth reading at once, slots of a new cache, positions in a table of encodings
MAX_SCORES = 2**24  # attention scores in memory at once while a long text is read


class Decoder:
    """Reads B texts in one batch and returns the logits after each token."""

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
        """Make the cache at least min(`length`, S) slots long."""
        w, S = self.weights, self.weights.config.attention_window
        if min(length, S) <= self.slots:
            return
        added = min(max(length, 2 * self.slots), S) - self.slots
        more = w.zeros(self.rows, w.config.heads, added, w.config.head_dim)
        self.slots += added
        for cache in (self.keys, self.values):
            cache[:] = [w.xp.concatenate((old, more), axis=2) for old in cache]
        self.ring = w.ring(self.slots)  # (H, 1, 2 * slots)

    def read(self, tokens: np.ndarray, rows: np.ndarray | None = None) -> np.ndarray:
        """Read n tokens of each text, n >= 1, and return the logits after each: (B, n) int64 -> (B, n, V) float64.

        `rows` are the indices of the texts to which `tokens` belong; None: all texts, in order.
        """
        config = self.weights.config
        rows = self.all_rows if rows is None else rows
        logits, start = [], 0
        while start < tokens.shape[1]:
            self._restart_full(rows)
            filled = int(self.position[rows].max())
            # In chunks of about the attention window: most scores of a longer chunk would be masked.
            length = min(tokens.shape[1] - start, max(config.attention_window, CHUNK))
            if config.absolute:
                length = min(length, config.context - filled)
            keys = min(filled, config.attention_window) + length
            length = min(length, max(1, MAX_SCORES // (len(rows) * config.heads * keys)))
            self._grow(filled + length)
            logits.append(self._read(tokens[:, start : start + length], rows))
            start += length
        return np.concatenate(logits, axis=1)

    def step(self, tokens: np.ndarray) -> np.ndarray:
        """Read one token of each text: (B,) int64 -> (B, V) float64, as `read` does, but faster."""
        w, S = self.weights, self.weights.config.attention_window
        rows = self.all_rows
        self._restart_full(rows)
        position: Any = self.position
        if (position == position[0]).all():
            position = int(position[0])
            self._grow(position + 1)
            filled, bias = min(position + 1, S), None
            if w.slopes is not None:
                newest = self.slots - position % S
                bias = self.ring[:, :, newest : newest + filled]  # (H, 1, m)
            at: Any = (slice(None), slice(None), position % S)
        else:
            self._grow(int(position.max()) + 1)
            filled = min(int(position.max()) + 1, S)
            slots = np.arange(filled)
            distance = (position[:, None] - slots) % S  # (B, m)
            bias = self._bias(distance[:, None], (slots <= position[:, None])[:, None])  # (B, 1 or H, 1, m)
            at = (w.to_array(rows), slice(None), w.to_array(position % S))
            position = position[:, None]  # (B, 1)
        own, rest = (*at, slice(self.own)), (*at, slice(self.own, None))

        def store(i: int, k: Array, v: Array) -> tuple[Array, Array]:
            """Store one key and value of each text, (B, 1, H, D), in its slot; return the filled slots."""
            keys, values = self.keys[i], self.values[i]
            keys[own] = k[:, 0, :, : self.own]
            if w.config.key_offset:
                keys[rest] = self.moved[i]
                self.moved[i] = k[:, 0, :, self.own :]
            values[at] = v[:, 0]
            return keys[:, :, :filled], values[:, :, :filled]

        return self._forward(tokens[:, None], rows, position, bias, store)[:, 0]

    def _read(self, tokens: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """Read a chunk that fits into the cache: (B, n) -> (B, n, V) float64."""
        w, S = self.weights, self.weights.config.attention_window
        positions = self.position[rows][:, None] + np.arange(tokens.shape[1])  # (B, n)
        # Attend to the cached keys and the chunk's own keys, then store the chunk's: stored first, they would overwrite
        # slots that the chunk's first tokens still attend to.
        filled = min(int(self.position[rows].max()), S)
        newest = self.position[rows][:, None] - 1
        cached = newest - (newest - np.arange(filled)) % S  # (B, filled): position in each slot, below 0 if empty
        key_positions = np.concatenate((cached, positions), axis=1)  # (B, m)
        distance = positions[:, :, None] - key_positions[:, None]  # (B, n, m)
        bias = self._bias(distance, (distance >= 0) & (distance < S) & (key_positions >= 0)[:, None])
        row, slots, join = w.to_array(rows), w.to_array(positions[:, -S:] % S), w.xp.concatenate

        def store(i: int, k: Array, v: Array) -> tuple[Array, Array]:
            """Store keys and values (B, n, H, D); return the cached ones followed by these, 2 x (B, H, m, D)."""
            if w.config.key_offset:
                moved = k[..., self.own :]
                shifted = join((self.moved[i][row][:, None], moved[:, :-1]), axis=1)  # (B, n, H, D / 2)
                self.moved[i][row] = moved[:, -1]
                k = join((k[..., : self.own], shifted), axis=3)  # (B, n, H, D)
            keys = join((self.keys[i][row][:, :, :filled], k.swapaxes(1, 2)), axis=2)  # (B, H, m, D)
            values = join((self.values[i][row][:, :, :filled], v.swapaxes(1, 2)), axis=2)  # (B, H, m, D)
            self.keys[i][row[:, None], :, slots] = k[:, -S:]
            self.values[i][row[:, None], :, slots] = v[:, -S:]
            return keys, values

        return self._forward(tokens, rows, positions, bias, store)

    def _bias(self, distance: np.ndarray, visible: np.ndarray) -> Array:
        """Return what is added to the scores of keys at these distances: (B, n, m) -> (B, 1 or H, n, m)."""
        w = self.weights
        bias = w.numbers(np.where(visible, 0.0, -np.inf))[:, None]  # (B, 1, n, m)
        return bias if w.slopes is None else bias - w.slopes * w.numbers(np.where(visible, distance, 0.0))[:, None]

    def _forward(
        self, tokens: np.ndarray, rows: np.ndarray, positions: Any, bias: Array | None, store: Callable[..., Any]
    ) -> np.ndarray:
        """Apply the whole model and advance the texts: (B, n) -> (B, n, V) float64.

        Args:
            tokens: (B, n).
            rows: indices of the texts to which the tokens belong, (B,).
            positions: of the tokens, (B, n), or one int if all texts are at the same position.
            bias: added to the scores, (B, 1 or H, n, m) or (H, 1, m), -inf for masked keys; None: no bias.
            store: `store(i, k, v)` caches block i's keys and values and returns all to attend to, 2 x (B, H, m, D).
        """
        w, n = self.weights, tokens.shape[1]
        row: Any = slice(None) if rows is self.all_rows else rows  # slices are faster
        encoding = self._encoding(positions) if w.config.positions in ("rotary", "sinusoidal") else None
        x = w.embedding[w.to_array(tokens)]  # (B, n, C)
        if w.config.token_shift:
            previous = self.previous[row][:, None]  # (B, 1)
            if n > 1:
                previous = np.concatenate((previous, tokens[:, :-1]), axis=1)  # (B, n)
            x = x + w.shifted[w.to_array(previous)]
        if w.config.positions == "learned":
            x = x + w.positions[w.to_array(positions) if isinstance(positions, np.ndarray) else positions]
        if w.config.positions == "sinusoidal":
            x, encoding = x + encoding, None
        for i, layer in enumerate(w.layers):
            h = self._norm(x)  # (B, n, C)
            if layer.convolution:
                h = self._convolve(i, layer.convolution, h, rows, positions)
            q, k, v = self._project(layer, h, encoding)  # 3 x (B, n, H, D)
            keys, values = store(i, k, v)  # 2 x (B, H, m, D)
            y = self._attend(q.swapaxes(1, 2), keys, values, bias).swapaxes(1, 2)  # (B, n, H, D)
            x = x + layer.proj(y.reshape(x.shape))  # (B, n, C)
            x = x + self._mlp(layer, x)
        logits = w.head(self._norm(x))  # (B, n, V)
        if w.config.absolute:
            self.tokens[rows[:, None], self.position[rows][:, None] + np.arange(n)] = tokens
        self.position[row] += n
        self.previous[row] = tokens[:, -1]
        return logits.astype(np.float64) if w.numpy else logits.cpu().double().numpy()

    def _restart_full(self, rows: np.ndarray) -> None:
        """Apply the window rule of absolute positions: restart texts that fill the context with their last half."""
        T = self.weights.config.context
        if not self.weights.config.absolute or self.position[rows].max() < T:
            return
        full = rows[self.position[rows] == T]
        self.position[full], self.previous[full] = 0, -1
        for moved, pending in zip(self.moved, self.pending, strict=True):
            moved[self.weights.to_array(full)] = pending[:, self.weights.to_array(full)] = 0
        if T > 1:
            self._read(self.tokens[full, T - T // 2 :], full)

    def _encoding(self, positions: Any) -> Array:
        """Return `Weights.encoding` of the positions; a single position is looked up in a table of CHUNK positions."""
        if not isinstance(positions, int):
            return self.weights.encoding(positions)
        if positions // CHUNK != self.block:
            self.block = positions // CHUNK
            self.table = self.weights.encoding(self.block * CHUNK + np.arange(CHUNK))
        return self.table[positions % CHUNK]

    def _norm(self, x: Array) -> Array:
        """Return x / sqrt(sum of squares + C * eps): RMS norm without its factor sqrt(C), which is in the weights."""
        return x / self.weights.xp.sqrt(self.weights.vecdot(x, x) + self.weights.norm_eps)[..., None]

    def _convolve(self, i: int, convolution: Convolution, h: Array, rows: np.ndarray, positions: Any) -> Array:
        """Apply block i's convolution to its normalised input, and keep what the next positions need: (B, n, C)."""
        w, n, reach = self.weights, h.shape[1], len(convolution.taps) - 1
        h = h.swapaxes(0, 1)  # (n, B, C)
        if n == 1:
            mixed = h * convolution.taps  # (K, B, C): for this position and the next K - 1
        else:
            mixed = w.zeros(n + reach, *h.shape[1:])
            for back, tap in enumerate(convolution.taps):
                mixed[back : back + n] += h * tap
        if rows is self.all_rows and n == 1:
            mixed[:reach] += self.pending[i]
            self.pending[i] = mixed[1:]
        else:
            row = w.to_array(rows)
            mixed[:reach] += self.pending[i][:, row]
            self.pending[i][:, row] = mixed[n:]
        mixed = mixed[:n].swapaxes(0, 1)  # (B, n, C)
        if convolution.bias is not None:
            mixed += convolution.bias[w.to_array(np.atleast_1d(np.minimum(positions, reach)))]
        return mixed

    def _project(self, layer: Layer, h: Array, rotation: Array) -> tuple[Array, Array, Array]:
        """Return queries, keys and values; q . k includes attention's 1 / sqrt(D): (..., C) -> 3 x (..., H, D)."""
        w = self.weights
        qkv = layer.qkv(h).reshape(*h.shape[:-1], 3, w.config.heads, w.config.head_dim)  # (..., 3, H, D)
        qk = qkv[..., :2, :, :]
        if w.config.qk_norm:
            qk /= w.xp.sqrt(w.vecdot(qk, qk) * w.qk_scale + w.qk_eps)[..., None]
        if rotation is not None:
            pairs = qk[..., : 2 * rotation.shape[-1]].view(rotation.dtype)  # (..., 2, H, R/2)
            pairs *= rotation
        return qkv[..., 0, :, :], qkv[..., 1, :, :], qkv[..., 2, :, :]

    def _attend(self, q: Array, keys: Array, values: Array, bias: Array | None) -> Array:
        """softmax(q k^T + bias) v: (B, H, n, D), 2 x (B, H, m, D) -> (B, H, n, D)."""
        xp = self.weights.xp
        scores = q @ keys.swapaxes(2, 3)  # (B, H, n, m)
        if bias is not None:
            scores += bias
        if not self.weights.bounded:
            scores -= xp.amax(scores, -1, keepdims=True)
        weights = xp.exp(scores, out=scores)
        return (weights @ values) / weights.sum(-1)[..., None]

    def _mlp(self, layer: Layer, x: Array) -> Array:
        w = self.weights
        h = layer.up(self._norm(x))
        if w.config.activation == "relu2":
            h = w.xp.maximum(h, w.zero)
            h *= h
        else:
            h = w.gelu(h)
        return layer.down(h)


def first_needed(weights: Weights, length: int) -> int:
    """Return the first token of a prompt of `length` tokens that can influence what follows the prompt."""
    config = weights.config
    T = config.context
    if config.absolute:  # the window rule restarts a long prompt several times
        step = T - T // 2
        return -(-max(0, length - T) // step) * step
    # Each block reaches back S - 1 positions by attention, 1 by offset keys and K - 1 by the convolution. The token
    # shift reaches back 1 more. With the last token itself, the sum is layers * (S + K - 1) + 2.
    return max(0, length - config.layers * (config.attention_window + config.conv_taps - 1) - 2)
