"""Decode with a KV cache, on NumPy on a CPU, where the overhead of calls dominates, and on torch elsewhere.

For up to `context` tokens, the logits equal those of the model's forward pass. Longer texts follow
the *window rule*:

- rotary and none: a sliding window. In every block, a position attends to itself and the `context - 1` positions
  before it, as in one forward pass over the whole text with a banded causal mask.
- learned and sinusoidal: when `context` positions are full, the decoder forgets the text and reads its last `context //
  2` tokens again, from position 0.

Source: "Fast Transformer Decoding", arXiv:1911.02150, section 2.4, for the cache; Mistral 7B,
arXiv:2310.06825, section 2, for the sliding window and its rolling buffer. Shapes: B texts, n
tokens read at once, m keys attended to, C = dim, H heads of size D, T = context, S = attention
window (the longest cache), V = vocabulary, R = rotary dimensions, K = taps of the convolution.
"""

from typing import Any, NamedTuple

import numpy as np

from gpt.inference.weights import Array, Layer, Weights

# tokens worth reading at once, slots of a new cache, positions in a table of encodings
CHUNK = 256
MAX_SCORES = 2**24  # attention scores in memory at once while a long text is read


class Chunk(NamedTuple):
    """The next n tokens of B texts: where the cache, a ring buffer, stores them, and what they attend to."""

    texts: Any  # indices of the B texts, (B,), or a slice of all texts, for NumPy arrays
    rows: Any  # (B,), the same for arrays of the weights' library, NumPy or torch
    positions: Any  # (B, n), or one int if n is 1 and all texts are at the same position
    # index of a cache (rows, slots, H, D): where the last S of the n tokens are stored
    slots: tuple[Any, Any]
    # slots to attend to; if n > 1, the keys of the n tokens themselves come after them
    filled: int
    # added to the scores, (B, 1, n, m), -inf for masked keys; None: all are visible
    mask: Array | None


class Decoder:
    """Reads `rows` texts in one batch, a few tokens at a time, and computes the logits after each token."""

    def __init__(self, weights: Weights, rows: int = 1) -> None:
        config = weights.config
        H = config.heads
        D = config.head_dim
        # With key_offset, the channels from `unmoved` on belong to the next position's key, see
        # `gpt.attention.offset_keys`.
        moved = D // 2 if config.key_offset else 0
        self.unmoved = D - moved
        self.weights = weights
        self.rows = rows
        self.slots = 0  # of the caches, which `_grow` makes longer

        # For each block: the caches, what waits for the next position's key, and what the tokens
        # read so far add to the convolution at the next K - 1 positions.
        self.keys: list[Array] = []  # (rows, H, slots, D) each
        self.values: list[Array] = []  # (rows, H, slots, D) each
        self.moved: list[Array] = []  # (rows, H, D / 2) each; (rows, H, 0) without key_offset
        self.pending: list[Array] = []  # (K - 1, rows, C) each
        for _ in range(config.layers):
            empty = weights.zeros(rows, H, 0, D)  # (rows, H, 0, D)
            self.keys.append(empty)
            self.values.append(empty)
            self.moved.append(weights.zeros(rows, H, moved))
            self.pending.append(weights.zeros(config.conv_taps - 1, rows, config.dim))

        self.all_rows = np.arange(rows)  # (rows,)
        self.position = np.zeros(rows, np.int64)  # (rows,), of the next token of each text
        self.previous = np.full(rows, -1)  # (rows,), the last token of each text; -1: no token yet
        self.block = -1  # `table` contains the encodings of CHUNK positions from block * CHUNK on
        self.table = np.empty(0)
        # The token at each position, (rows, T); (rows, 0) if the decoder never reads a token
        # twice.
        self.tokens = np.zeros((rows, config.context * config.absolute), np.int64)
        self._grow(CHUNK)

    def _grow(self, length: int) -> None:
        """Give the caches at least `length` slots, or S if that is less."""
        w = self.weights
        S = w.config.attention_window
        if min(length, S) <= self.slots:
            return
        # With fewer than S slots none is overwritten yet, so new slots can follow at the end.
        added = min(max(length, 2 * self.slots), S) - self.slots
        empty = w.zeros(self.rows, w.config.heads, added, w.config.head_dim)  # (rows, H, added, D)
        for caches in (self.keys, self.values):
            for i, cache in enumerate(caches):
                caches[i] = w.xp.concatenate((cache, empty), axis=2)  # (rows, H, slots + added, D)
        self.slots += added

    def read(self, tokens: np.ndarray, rows: np.ndarray | None = None) -> np.ndarray:
        """Read the next n >= 1 tokens of B texts and return the logits after each: (B, n) int64 -> (B, n, V) float64.

        `rows`, (B,), are the indices of the texts that `tokens` continue; None: all texts, in
        order.
        """
        config = self.weights.config
        B, n = tokens.shape
        texts: Any = slice(None) if rows is None else rows  # slices are faster
        logits: list[np.ndarray] = []  # of each chunk, (B, length, V)
        start = 0
        while start < n:
            self._restart_full(texts)  # reads half of a full context again
            filled = int(self.position[texts].max())  # tokens of the longest text so far
            # In chunks of about the attention window: most scores of a longer chunk would be
            # masked.
            length = min(n - start, max(config.attention_window, CHUNK))
            if config.absolute:
                length = min(length, config.context - filled)
            keys = min(filled, config.attention_window) + length  # at most, of a token
            scores_per_token = B * config.heads * keys
            length = min(length, max(1, MAX_SCORES // scores_per_token))
            self._grow(filled + length)
            chunk = self._chunk(texts, filled, length)
            part = tokens[:, start : start + length]  # (B, length)
            logits.append(self._forward(part, chunk))  # and advances `position`
            start += length
        if len(logits) == 1:
            return logits[0]  # (B, n, V)
        return np.concatenate(logits, axis=1)  # (B, n, V)

    def _chunk(self, texts: Any, longest: int, n: int) -> Chunk:
        """Return where the next n tokens of B texts, of which the longest has `longest` tokens, are stored."""
        w = self.weights
        S = w.config.attention_window
        rows = texts if isinstance(texts, slice) else w.to_array(texts)
        starts = self.position[texts]  # (B,), the positions of the first of the n tokens
        if n == 1 and starts.min() == longest:
            # The usual case while generating: no mask, slices instead of indices.
            slot = longest % S
            slots = (rows, slice(slot, slot + 1))
            return Chunk(texts, rows, longest, slots, min(longest + 1, S), mask=None)

        # Texts of several lengths, or several tokens: of each slot of the cache, compute which
        # position it stores. `_store` stores one token before attention, but several tokens after
        # it.
        stored = 1 if n == 1 else 0
        filled = min(longest + stored, S)
        starts = starts[:, None]  # (B, 1)
        positions = starts + np.arange(n)  # (B, n)
        newest = starts - 1 + stored  # (B, 1), the last position in the cache
        age = (newest - np.arange(filled)) % S  # (B, filled), of what is in each slot
        keys = newest - age  # (B, filled), the position in each slot, below 0 if it is empty
        if n > 1:
            keys = np.concatenate((keys, positions), axis=1)  # (B, m)

        distance = positions[:, :, None] - keys[:, None, :]  # (B, n, m)
        in_window = (distance >= 0) & (distance < S)  # (B, n, m)
        visible = in_window & (keys >= 0)[:, None, :]  # (B, n, m)
        mask = w.numbers(np.where(visible, 0.0, -np.inf))  # (B, n, m)
        mask = mask[:, None]  # (B, 1, n, m)

        by_row = w.to_array(self.all_rows[texts][:, None])  # (B, 1)
        by_slot = w.to_array(positions[:, -S:] % S)  # (B, min(n, S))
        return Chunk(texts, rows, positions, (by_row, by_slot), filled, mask)

    def _forward(self, tokens: np.ndarray, chunk: Chunk) -> np.ndarray:
        """Return the logits after each of n tokens, and update all state: (B, n) -> (B, n, V) float64."""
        w = self.weights
        x = self._embed(tokens, chunk)  # (B, n, C)
        rotation = None
        if w.config.rotary_dims:
            rotation = self._encoding(chunk.positions)  # (B, n, 1, 1, R/2), or (1, 1, R/2)
        for i, layer in enumerate(w.layers):
            h = self._norm(x)  # (B, n, C)
            q, k, v = self._project(layer, h, rotation)  # 3 x (B, n, H, D)
            if w.config.key_offset:
                self._offset(i, k, chunk.rows)
            q = q.swapaxes(1, 2)  # (B, H, n, D)
            keys = self._store(self.keys[i], k, chunk)  # (B, H, m, D)
            values = self._store(self.values[i], v, chunk)  # (B, H, m, D)
            y = self._attend(q, keys, values, chunk.mask)  # (B, H, n, D)
            y = y.swapaxes(1, 2).reshape(x.shape)  # (B, n, C)
            x = x + layer.proj(y)  # (B, n, C)
            y = self._mlp(layer, x)  # (B, n, C)
            if layer.taps is not None:
                y = self._convolve(i, layer.taps, y, chunk)  # (B, n, C)
            x = x + y  # (B, n, C)
        logits = w.head(self._norm(x))  # (B, n, V)
        self._advance(tokens, chunk)
        if w.numpy:
            return logits.astype(np.float64)  # (B, n, V)
        return logits.cpu().double().numpy()  # (B, n, V)

    def _embed(self, tokens: np.ndarray, chunk: Chunk) -> Array:
        """Return the input of the first block, as `GPT.embed` does: (B, n) -> (B, n, C)."""
        w = self.weights
        x = w.embedding[w.to_array(tokens)]  # (B, n, C)
        if w.config.token_shift:
            previous = self.previous[chunk.texts][:, None]  # (B, 1)
            if tokens.shape[1] > 1:
                previous = np.concatenate((previous, tokens[:, :-1]), axis=1)  # (B, n)
            x = x + w.shifted[w.to_array(previous)]  # (B, n, C)
        if w.config.positions == "learned":
            positions = chunk.positions
            if not isinstance(positions, int):
                positions = w.to_array(positions)  # (B, n)
            x = x + w.positions[positions]  # (B, n, C)
        if w.config.positions == "sinusoidal":
            x = x + self._encoding(chunk.positions)  # (B, n, C)
        return x

    def _advance(self, tokens: np.ndarray, chunk: Chunk) -> None:
        """Count the tokens, (B, n), as read."""
        n = tokens.shape[1]
        if self.weights.config.absolute:
            row = self.all_rows[chunk.texts][:, None]  # (B, 1)
            position = self.position[chunk.texts][:, None] + np.arange(n)  # (B, n)
            self.tokens[row, position] = tokens
        self.position[chunk.texts] += n
        self.previous[chunk.texts] = tokens[:, -1]

    def _offset(self, i: int, k: Array, rows: Any) -> None:
        """Offset the keys (B, n, H, D) of block i in place, as `gpt.attention.offset_keys` does."""
        moved = k[..., self.unmoved :]  # (B, n, H, D / 2), a view of k
        # (B, 1, H, D / 2), of the token before the n tokens
        earlier = self.moved[i][rows][:, None]
        shifted = self.weights.xp.concatenate((earlier, moved), axis=1)  # (B, n + 1, H, D / 2)
        moved[:] = shifted[:, :-1]  # (B, n, H, D / 2)
        self.moved[i][rows] = shifted[:, -1]  # (B, H, D / 2)

    def _store(self, cache: Array, new: Array, chunk: Chunk) -> Array:
        """Store `new` keys or values, (B, n, H, D), and return all to attend to: (B, H, m, D)."""
        S = self.weights.config.attention_window
        by_slot = cache.swapaxes(1, 2)  # (rows, slots, H, D), a view of the cache
        if new.shape[1] == 1:
            by_slot[chunk.slots] = new  # overwrites the position that has just left the window
            return cache[chunk.rows, :, : chunk.filled]  # (B, H, m, D), with m = filled
        # Several tokens are stored last: they overwrite slots to which the first of them still
        # attend.
        stored = cache[chunk.rows, :, : chunk.filled]  # (B, H, filled, D)
        # (B, H, m, D)
        attended = self.weights.xp.concatenate((stored, new.swapaxes(1, 2)), axis=2)
        by_slot[chunk.slots] = new[:, -S:]  # (B, min(n, S), H, D)
        return attended

    def _restart_full(self, texts: Any) -> None:
        """Read the last `context // 2` tokens of texts without free positions again, from position 0."""
        T = self.weights.config.context
        if not self.weights.config.absolute or self.position[texts].max() < T:
            return
        is_full = self.position[texts] == T  # (B,)
        full = self.all_rows[texts][is_full]  # indices of the full texts
        rows = self.weights.to_array(full)
        # Old keys and values stay in their slots, but count as empty until they are overwritten.
        self.position[full] = 0
        self.previous[full] = -1
        for moved in self.moved:
            moved[rows] = 0
        for pending in self.pending:
            pending[:, rows] = 0
        if T > 1:
            self.read(self.tokens[full, T - T // 2 :], full)

    def _encoding(self, positions: Any) -> Array:
        """Return `Weights.encoding` of `Chunk.positions`: (B, n, ...), or (...) of one position."""
        if not isinstance(positions, int):
            return self.weights.encoding(positions)
        block, index = divmod(positions, CHUNK)
        if block != self.block:
            self.table = self.weights.encoding(block * CHUNK + np.arange(CHUNK))  # (CHUNK, ...)
            self.block = block
        return self.table[index]

    def _norm(self, x: Array) -> Array:
        """Return x / sqrt(sum of squares + C * eps): RMS norm without sqrt(C), which is in the following weights."""
        squares = self.weights.vecdot(x, x)  # (B, n)
        return x / self.weights.xp.sqrt(squares + self.weights.norm_eps)[..., None]  # (B, n, C)

    def _convolve(self, i: int, taps: Array, y: Array, chunk: Chunk) -> Array:
        """Return the convolution of y with `taps`, (K, 1, C), in block i: (B, n, C) -> (B, n, C).

        Its outputs are centred here, because the weights of an MLP with taps are not.
        """
        w = self.weights
        B, n, C = y.shape
        reach = len(taps) - 1  # K - 1
        y = y.swapaxes(0, 1)  # (n, B, C)
        if n == 1:
            mixed = y * taps  # (K, B, C): for this position and the next K - 1
        else:
            mixed = w.zeros(n + reach, B, C)  # (n + K - 1, B, C)
            for back, tap in enumerate(taps):  # tap: (1, C)
                mixed[back : back + n] += y * tap  # (n, B, C)
        mixed[:reach] += self.pending[i][:, chunk.rows]  # (K - 1, B, C)
        self.pending[i][:, chunk.rows] = mixed[n:]  # (K - 1, B, C)
        convolved = mixed[:n].swapaxes(0, 1)  # (B, n, C)
        return w.centred(convolved)  # (B, n, C)

    def _project(
        self, layer: Layer, h: Array, rotation: Array | None
    ) -> tuple[Array, Array, Array]:
        """Return rotated queries and keys, scaled so that q . k includes 1 / sqrt(D), and values.

        The scale is in `qk_scale` and `qk_eps` with QK-norm, otherwise in the weights of
        `layer.qkv`. (B, n, C) -> 3 x (B, n, H, D).
        """
        w = self.weights
        B, n, _ = h.shape
        qkv = layer.qkv(h).reshape(B, n, 3, w.config.heads, w.config.head_dim)  # (B, n, 3, H, D)
        qk = qkv[:, :, :2]  # (B, n, 2, H, D), a view, which is changed in place
        if w.config.qk_norm:
            squares = w.vecdot(qk, qk)  # (B, n, 2, H)
            qk /= w.xp.sqrt(squares * w.qk_scale + w.qk_eps)[..., None]  # (B, n, 2, H, 1)
        if rotation is not None:
            R = 2 * rotation.shape[-1]
            # Neighbouring channels are the real and the imaginary part of a complex number.
            pairs = qk[..., :R].view(rotation.dtype)  # (B, n, 2, H, R/2), complex
            pairs *= rotation  # (B, n, 1, 1, R/2), or (1, 1, R/2)
        return qkv[:, :, 0], qkv[:, :, 1], qkv[:, :, 2]  # 3 x (B, n, H, D)

    def _attend(self, q: Array, k: Array, v: Array, mask: Array | None) -> Array:
        """Return softmax(q k^T + mask) v: (B, H, n, D), 2 x (B, H, m, D) -> (B, H, n, D)."""
        xp = self.weights.xp
        scores = q @ k.swapaxes(2, 3)  # (B, H, n, m)
        if mask is not None:
            scores += mask  # (B, 1, n, m), the same in all heads
        if not self.weights.bounded:  # the exponentials could overflow
            scores -= xp.amax(scores, -1, keepdims=True)  # (B, H, n, 1)
        weights = xp.exp(scores, out=scores)  # (B, H, n, m)
        total = weights.sum(-1)[..., None]  # (B, H, n, 1)
        return (weights @ v) / total  # (B, H, n, D)

    def _mlp(self, layer: Layer, x: Array) -> Array:
        """Return the output of the MLP of a block, without its convolution: (B, n, C) -> (B, n, C)."""
        activation = ACTIVATIONS[self.weights.config.activation]
        h = layer.up(self._norm(x))  # (B, n, 4C)
        h = activation(self.weights, h)  # (B, n, 4C)
        return layer.down(h)  # (B, n, C)


def _relu2(w: Weights, h: Array) -> Array:
    h = w.xp.maximum(h, w.zero)
    h *= h
    return h


ACTIVATIONS = {"gelu": lambda w, h: w.gelu(h), "relu2": _relu2}
