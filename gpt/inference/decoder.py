"""Reading text a token at a time, with the keys and values of earlier tokens kept: the KV cache.

Written with what NumPy arrays and torch tensors have in common. On a CPU it runs on NumPy, whose calls cost a third
of torch's and which loads in a tenth of the time: with one token a step, calls are what takes the time. Elsewhere it
runs on torch.

Text of any length can be read. What a place sees of it is the *window rule*, which follows from `positions`:

- rotary, alibi and none: a sliding window. A place attends to itself and the `context - 1` places before it, in every
  block, as in one forward pass over the whole text with a banded causal mask.
- learned and sinusoidal: when `context` places are full, the last `context // 2` tokens are read anew from place 0 on,
  and the text goes on behind them, as in a forward pass over the tokens since then.

Up to `context` tokens, both are the model's own forward pass. Where the model has a `window`, attention sees no more
than that in both, and no more keys and values are kept.
Source: "Fast Transformer Decoding", arXiv:1911.02150, section 2.4, for what is kept; Mistral 7B, arXiv:2310.06825,
section 2, for the sliding window and its rolling buffer.

Shapes: B texts, n tokens read at once, m keys looked at, C = dim, H heads of size D, T = context, S = span (how many
places attention sees, and slots of the cache), V = vocabulary.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from gpt.config import NORM_EPS
from gpt.inference.weights import Array, Layer, Weights

PIECE = 256  # tokens worth reading at once, slots that a cache begins with, positions tabulated at once
MAX_SCORES = 2**24  # numbers held at once for attention while a long text is read


class Decoder:
    """Reads B texts side by side and gives the logits of what follows."""

    def __init__(self, weights: Weights, rows: int = 1) -> None:
        config = weights.config
        self.weights, self.rows, self.slots = weights, rows, 0
        H, D = config.heads, config.head_dim
        self.keys = [weights.zeros(rows, H, 0, D) for _ in range(config.layers)]
        self.values = self.keys[:]
        # The part of a key that goes to the place after it, see `gpt.attention.offset_keys`.
        self.own = D - D // 2 if config.key_offset else D
        self.offset = config.key_offset
        self.moved = [weights.zeros(rows, H, D - self.own) for _ in range(config.layers)]
        self.place = np.zeros(rows, np.int64)  # where the next token of each text goes
        self.before = np.full(rows, -1)  # the last token of each text; -1 is none
        self.block, self.table = -1, np.empty(0)  # what `Weights.at` gives, and of which PIECE places
        self.tokens = np.zeros((rows, config.context * config.absolute), np.int64)  # the token at each place
        self._grow(PIECE)

    def _grow(self, filled: int) -> None:
        """Have room for so many keys and values, or for all that attention sees."""
        w, S = self.weights, self.weights.config.span
        if min(filled, S) <= self.slots:
            return
        added = min(max(filled, 2 * self.slots), S) - self.slots
        more = w.zeros(self.rows, w.config.heads, added, w.config.head_dim)
        self.slots += added
        for cache in (self.keys, self.values):
            cache[:] = [w.xp.concatenate((each, more), axis=2) for each in cache]
        self.ring = w.ring(self.slots)  # (H, 1, 2R)

    def read(self, tokens: np.ndarray, rows: np.ndarray | None = None) -> np.ndarray:
        """Read n tokens of each text.

        Args:
            tokens: (B, n) int64, n at least 1.
            rows: which texts these are; None is all, in order.

        Returns:
            (B, n, V) float64, the logits of what follows each token.
        """
        config = self.weights.config
        rows = np.arange(self.rows) if rows is None else rows
        logits, start = [], 0
        while start < tokens.shape[1]:
            self._make_room(rows)
            place = int(self.place[rows].max())
            # In pieces about as long as what a place sees: of a longer one, most scores would be hidden.
            room = min(tokens.shape[1] - start, max(config.span, PIECE))
            if config.absolute:
                room = min(room, config.context - place)
            room = min(room, max(1, MAX_SCORES // (len(rows) * config.heads * (min(place, config.span) + room))))
            self._grow(place + room)
            logits.append(self._read(tokens[:, start : start + room], rows))
            start += room
        return np.concatenate(logits, axis=1)

    def step(self, tokens: np.ndarray) -> np.ndarray:
        """Read one token of each text: (B,) int64 -> (B, V) float64, as `read` does, but faster."""
        w, S = self.weights, self.weights.config.span
        rows = np.arange(self.rows)
        self._make_room(rows)
        self._grow(int(self.place.max()) + 1)
        place: Any = self.place
        if (place == place[0]).all():
            place = int(place[0])
            filled, bias = min(place + 1, S), None
            if w.slopes is not None:
                newest = self.slots - place % S
                bias = self.ring[:, :, newest : newest + filled]  # (H, 1, m)
            at: Any = (slice(None), slice(None), place % S)
        else:
            filled = min(int(place.max()) + 1, S)
            slots = np.arange(filled)
            distance = (place[:, None] - slots) % S  # (B, m)
            bias = self._bias(distance[:, None], (slots <= place[:, None])[:, None])  # (B, 1 or H, 1, m)
            at = (w.integers(rows), slice(None), w.integers(place % S))
            place = place[:, None]  # (B, 1)
        own, rest = (*at, slice(self.own)), (*at, slice(self.own, None))

        def keep(i: int, k: Array, v: Array) -> tuple[Array, Array]:
            """Put one key and value of each text, (B, 1, H, D), into their slots, and show what is filled."""
            keys, values = self.keys[i], self.values[i]
            keys[own] = k[:, 0, :, : self.own]
            if self.offset:
                keys[rest] = self.moved[i]
                self.moved[i] = k[:, 0, :, self.own :]
            values[at] = v[:, 0]
            return keys[:, :, :filled], values[:, :, :filled]

        x = self._embed(tokens[:, None], self.before[:, None], place)
        logits = self._blocks(x, self._turn(place), bias, keep)  # (B, 1, V)
        self._remember(tokens[:, None], rows)
        return logits[:, 0]

    def _read(self, tokens: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """Read a piece of at most T tokens, for which there is room: (B, n) -> (B, n, V) float64."""
        w, S = self.weights, self.weights.config.span
        n = tokens.shape[1]
        places = self.place[rows][:, None] + np.arange(n)  # (B, n)
        # The keys that are kept come first, then those of the piece: `n` new ones would take slots that are looked at.
        held = min(int(self.place[rows].max()), S)
        newest = self.place[rows][:, None] - 1
        kept = newest - (newest - np.arange(held)) % S  # (B, held): the place in each slot, below 0 where there is none
        key_places = np.concatenate((kept, places), axis=1)  # (B, m)
        distance = places[:, :, None] - key_places[:, None]  # (B, n, m)
        bias = self._bias(distance, (distance >= 0) & (distance < S) & (key_places >= 0)[:, None])
        before = np.concatenate((self.before[rows][:, None], tokens[:, :-1]), axis=1)  # (B, n)
        row, slots, join = w.integers(rows), w.integers(places[:, -S:] % S), w.xp.concatenate

        def keep(i: int, k: Array, v: Array) -> tuple[Array, Array]:
            """Put keys and values (B, n, H, D) into their slots, and show them behind those that were there."""
            if self.offset:
                moved = k[..., self.own :]
                shifted = join((self.moved[i][row][:, None], moved[:, :-1]), axis=1)  # (B, n, H, D / 2)
                self.moved[i][row] = moved[:, -1]
                k = join((k[..., : self.own], shifted), axis=3)  # (B, n, H, D)
            keys = join((self.keys[i][row][:, :, :held], k.swapaxes(1, 2)), axis=2)  # (B, H, m, D)
            values = join((self.values[i][row][:, :, :held], v.swapaxes(1, 2)), axis=2)  # (B, H, m, D)
            self.keys[i][row[:, None], :, slots] = k[:, -S:]
            self.values[i][row[:, None], :, slots] = v[:, -S:]
            return keys, values

        logits = self._blocks(self._embed(tokens, before, places), self._turn(places), bias, keep)
        self._remember(tokens, rows)
        return logits

    def _bias(self, distance: np.ndarray, seen: np.ndarray) -> Array:
        """What is added to scores, from how far keys are and whether they are seen: (B, n, m) -> (B, 1 or H, n, m)."""
        w = self.weights
        bias = w.numbers(np.where(seen, 0.0, -np.inf))[:, None]  # (B, 1, n, m)
        return bias if w.slopes is None else bias - w.slopes * w.numbers(np.where(seen, distance, 0.0))[:, None]

    def _blocks(self, x: Array, turn: Array, bias: Array | None, keep: Callable[..., Any]) -> np.ndarray:
        """All blocks and the head: (B, n, C) -> (B, n, V) float64.

        Args:
            x: what enters the first block.
            turn: of the places, see `_turn`.
            bias: what is added to the scores, (B, 1 or H, n, m) or (H, 1, m), -inf for keys that a place does not see;
                None where it sees all.
            keep: remembers a block's new keys and values and returns all that may be looked at, 2 x (B, H, m, D).
        """
        for i, layer in enumerate(self.weights.layers):
            q, k, v = self._project(layer, x, turn)  # 3 x (B, n, H, D)
            keys, values = keep(i, k, v)  # 2 x (B, H, m, D)
            y = self._attend(q.swapaxes(1, 2), keys, values, bias).swapaxes(1, 2)  # (B, n, H, D)
            x = x + layer.proj(y.reshape(x.shape))  # (B, n, C)
            x = x + self._mlp(layer, x)
        return self._logits(x)

    def _make_room(self, rows: np.ndarray) -> None:
        """The window rule of absolute positions: where all places are full, begin anew with the last half."""
        T = self.weights.config.context
        if not self.weights.config.absolute or self.place[rows].max() < T:
            return
        full = rows[self.place[rows] == T]
        self.place[full], self.before[full] = 0, -1
        for moved in self.moved:
            moved[self.weights.integers(full)] = 0
        if T > 1:
            self._read(self.tokens[full, T - T // 2 :], full)

    def _remember(self, tokens: np.ndarray, rows: np.ndarray) -> None:
        if self.weights.config.absolute:
            self.tokens[rows[:, None], self.place[rows][:, None] + np.arange(tokens.shape[1])] = tokens
        self.place[rows] += tokens.shape[1]
        self.before[rows] = tokens[:, -1]

    def _embed(self, tokens: np.ndarray, before: np.ndarray, places: Any) -> Array:
        """What enters the first block: (..., C)."""
        w = self.weights
        x = w.embedding[w.integers(tokens)]
        if w.config.token_shift:
            x = x + w.shifted[w.integers(before)]
        if w.config.positions == "learned":
            x = x + w.positions[w.integers(places) if isinstance(places, np.ndarray) else places]
        if w.config.positions == "sinusoidal":
            x = x + self._at(places)
        return x

    def _turn(self, places: Any) -> Array:
        """The turn of rotary positions as complex numbers e^(i angle): (..., 1, 1, R/2)."""
        return self._at(places) if self.weights.config.positions == "rotary" else None

    def _at(self, places: Any) -> Array:
        """See `Weights.at`."""
        if not isinstance(places, int):
            return self.weights.at(places)
        if places // PIECE != self.block:  # a table for this place and those to come
            self.block = places // PIECE
            self.table = self.weights.at(self.block * PIECE + np.arange(PIECE))
        return self.table[places % PIECE]

    def _unit(self, x: Array) -> Array:
        """What a norm makes of a place, over sqrt(C): x / sqrt(sum of squares + C * eps)."""
        return x / self.weights.xp.sqrt(self.weights.vecdot(x, x) + x.shape[-1] * NORM_EPS)[..., None]

    def _project(self, layer: Layer, x: Array, turn: Array) -> tuple[Array, Array, Array]:
        """Queries, which hold attention's 1 / sqrt(D), keys and values: (..., C) -> 3 x (..., H, D)."""
        w = self.weights
        qkv = layer.qkv(self._unit(x)).reshape(*x.shape[:-1], 3, w.config.heads, w.config.head_dim)  # (..., 3, H, D)
        qk = qkv[..., :2, :, :]
        if w.config.qk_norm:
            qk /= w.xp.sqrt(w.vecdot(qk, qk) * w.share + w.eps)[..., None]
        if turn is not None:
            pairs = qk[..., : 2 * turn.shape[-1]].view(turn.dtype)  # (..., 2, H, R/2)
            pairs *= turn
        return qkv[..., 0, :, :], qkv[..., 1, :, :], qkv[..., 2, :, :]

    def _attend(self, q: Array, keys: Array, values: Array, bias: Array | None) -> Array:
        """softmax(q k^T + bias) v: (B, H, n, D), 2 x (B, H, m, D) -> (B, H, n, D)."""
        xp = self.weights.xp
        scores = q @ keys.swapaxes(2, 3)  # (B, H, n, m)
        if bias is not None:
            scores += bias
        if not self.weights.bounded:
            scores -= xp.amax(scores, -1, keepdims=True)
        shares = xp.exp(scores, out=scores)
        return (shares @ values) / shares.sum(-1)[..., None]

    def _mlp(self, layer: Layer, x: Array) -> Array:
        w = self.weights
        h = layer.up(self._unit(x))
        if w.config.activation == "relu2":
            h = w.xp.maximum(h, w.zero)
            h *= h
        else:
            h = w.gelu(h)
        return layer.down(h)

    def _logits(self, x: Array) -> np.ndarray:
        logits = self.weights.head(self._unit(x))
        return logits.astype(np.float64) if self.weights.numpy else logits.cpu().double().numpy()


def first_needed(weights: Weights, length: int) -> int:
    """Where to begin with a prompt of `length` tokens: what comes before has no influence on what follows it."""
    config = weights.config
    T = config.context
    if config.absolute:  # begun anew as often as it takes; see gpt/inference/decoder.py
        step = T - T // 2
        return -(-max(0, length - T) // step) * step
    # Each block looks S - 1 places back, and one more for its offset keys; the token shift looks back one.
    return max(0, length - config.layers * config.span - 2)
