"""Decode with a KV cache: `gpt/model.py` and `gpt/attention.py` once more, in NumPy on a CPU and on torch elsewhere.

For up to `context` tokens, the logits equal those of the model's forward pass. Longer texts follow
the *window rule*:

- rotary and none: a sliding window. In every block, a position attends to itself and the `context - 1` positions
  before it, as in one forward pass over the whole text with a banded causal mask.
- learned and sinusoidal: when `context` positions are full, the decoder forgets the text and reads its last `context //
  2` tokens again, from position 0.

Source: "Fast Transformer Decoding", arXiv:1911.02150, section 2.4, for the cache; Mistral 7B,
arXiv:2310.06825, section 2, for the sliding window. Shapes: B texts, T tokens read at once, M keys
attended to, N = B * T, C = dim, H heads of size D, S = attention window, V = vocabulary, R =
rotary dimensions, K = taps of the convolution.
"""

from collections.abc import Sequence

import numpy as np

from gpt.config import NORM_EPS
from gpt.inference.weights import Array, Block, Layer, Weights
from gpt.positions import rotary_tables, sinusoidal_table

CHUNK = 256  # tokens worth reading at once
SPARE = 256  # slots by which the caches grow at least, because all keys and values are copied
MAX_SCORES = 2**24  # attention scores in memory at once while a long text is read


class Decoder:
    """Reads B = `rows` texts in one batch, a few tokens at a time, and computes the logits after each token.

    The last tokens of all texts are in the same slot of the caches, so a shorter text begins in a
    later slot.
    """

    def __init__(self, weights: Weights, rows: int = 1) -> None:
        config = weights.config
        C = config.dim
        D = config.head_dim
        self.weights = weights
        self.config = config
        self.xp = weights.xp
        self.window = config.attention_window
        # Arrays, because adding a number takes a text 1 % longer.
        self.norm_eps = weights.to_array(NORM_EPS)
        self.qk_eps = weights.to_array(self.xp.finfo(weights.dtype).eps)  # as in torch
        # With QK-norm, scores are at most sqrt(2 D), because with key_offset the halves of a key come
        # from two normalised keys. If that is below 60, their exponentials cannot overflow without
        # their maximum subtracted, which would make a text 6 % slower.
        self.bounded = config.qk_norm and (2 * D) ** 0.5 < 60
        self.end = 0  # the slot of the next token
        # (B,), of the first token of each text; below 0 if it was dropped
        self.start = np.zeros(rows, np.int64)
        self.tokens = np.zeros((rows, 0), np.int64)  # (B, tokens), at least the last `context`
        # The caches: (layers, 2, B, H, slots, D), keys and values in the order of the text. With
        # key_offset, the last D // 2 channels of a key are stored in the next slot: see
        # `gpt.attention.offset_keys`.
        self.keys_values = weights.zeros(config.layers, 2, rows, config.heads, 1, D)
        # (layers, B, K - 1, C), the last outputs of each MLP before its convolution
        self.mlp_outputs = weights.zeros(config.layers, rows, config.conv_taps - 1, C)
        self.embedding = weights.zeros(rows, 1, C)  # (B, 1, C), of the last token
        # A product with this column is the mean of a vector; with `x.mean()` a text takes 13 %
        # longer.
        self.average = {size: weights.zeros(size, 1) + 1 / size for size in (C, D)}

    def begin(self, prompts: Sequence[np.ndarray]) -> np.ndarray:
        """Read a prompt (T,) for each text, of any length >= 1, and return the logits after it: (B, V) float64."""
        lengths = np.array(list(map(len, prompts)))  # (B,)
        longest = int(lengths.max())
        # (B, longest)
        self.tokens = np.array([np.pad(prompt, (longest - len(prompt), 0)) for prompt in prompts])
        # All prompts will end in slot `attended`, where `_replace` copies those of each length.
        attended = min(longest, self.window)
        self._make_room(attended)
        self.end = attended
        logits = np.empty((len(prompts), len(self.weights.embedding)))  # (B, V)
        for length in np.unique(lengths).tolist():
            rows = np.flatnonzero(lengths == length)  # (n,), indices of texts
            start = longest - length + self.config.first_needed(length)
            logits[rows] = self._replace(rows, self.tokens[rows, start:])[:, -1]  # (n, V)
        return logits

    def read(self, tokens: np.ndarray) -> np.ndarray:
        """Read the next T >= 0 tokens of all texts and return the logits after each: (B, T) -> (B, T, V) float64."""
        config = self.config
        B, T = tokens.shape
        logits = np.empty((B, T, len(self.weights.embedding)))  # (B, T, V)
        done = 0
        while done < T:
            # most scores of a longer chunk would be masked
            length = min(T - done, max(self.window, CHUNK))
            if config.absolute:
                full = np.flatnonzero(self.end - self.start == config.context)  # indices of texts
                if len(full) > 0:
                    # With [-(context // 2) :], a context of 1 would read all tokens.
                    first = self.tokens.shape[1] - config.context // 2
                    self._replace(full, self.tokens[full, first:])
                # tokens of the longest text, which is no longer full
                longest = self.end - int(self.start.min())
                length = min(length, config.context - longest)
            # Attention scores of each token of the chunk, at most: their memory limits it, too.
            scores = B * config.heads * (min(self.end, self.window) + length)
            length = min(length, max(1, MAX_SCORES // scores))
            chunk = slice(done, done + length)
            logits[:, chunk] = self._forward(tokens[:, chunk])
            done += length
        return logits

    def _replace(self, rows: np.ndarray, tokens: np.ndarray) -> np.ndarray:
        """Read `tokens` in place of the texts `rows`, and return the logits after each: (n,), (n, T) -> (n, T, V).

        Another decoder reads them, from position 0; its caches are copied so that they end in the
        same slot as ours. `self.tokens` stays.
        """
        part = Decoder(self.weights, len(rows))
        logits = part.read(tokens)  # (n, T, V)
        length = min(part.end, self.end)  # slots: either may have dropped old ones
        # one slot more, because it has half of the last key (key_offset)
        kept = part.keys_values[..., part.end - length : part.end + 1, :]
        self.keys_values[:, :, rows, :, self.end - length : self.end + 1] = kept
        self.mlp_outputs[:, rows] = part.mlp_outputs
        self.embedding[rows] = part.embedding
        self.start[rows] = self.end - part.end + part.start
        return logits

    @property
    def oldest(self) -> int:
        """The slot of the oldest token to which the next token attends."""
        return max(0, self.end + 1 - self.window)

    def _make_room(self, length: int) -> None:
        """Make the caches longer if they have no slots for `length` more tokens; drop keys that are out of reach."""
        *shape, slots, D = self.keys_values.shape
        needed = self.end + length + 1  # the last one for offset keys
        if needed <= slots:
            return
        dropped = self.oldest
        empty = self.weights.zeros(*shape, max(length, SPARE), D)  # (layers, 2, B, H, added, D)
        kept = self.keys_values[..., dropped : self.end + 1, :]  # (layers, 2, B, H, kept, D)
        self.keys_values = self.xp.concatenate((kept, empty), 4)  # (layers, 2, B, H, slots, D)
        self.end -= dropped
        self.start -= dropped

    def _forward(self, tokens: np.ndarray) -> np.ndarray:
        """Return the logits of the next token at each position, as `GPT.logits`: (B, T) -> (B, T, V).

        The keys, values and outputs of the blocks are appended to the caches, in place.
        """
        B, T = tokens.shape
        self._make_room(T)
        positions = self.end - self.start[:, None] + np.arange(T)  # (B, T)
        rotation = self.rotation(positions)  # (B, 1, T, R/2)
        mask = self.mask(T)  # (B, 1, T, M)
        x = self.embed(tokens, positions)  # (N, C)
        for i, block in enumerate(self.weights.blocks):
            x = x + self.attention(
                block, self.norm(block.norm1, x), rotation, mask, self.keys_values[i]
            )  # (N, C)
            x = x + self.mlp(block, self.norm(block.norm2, x), self.mlp_outputs[i])  # (N, C)
        logits = self.weights.head(self.norm(self.weights.norm, x))  # (N, V)
        self.end += T
        if self.config.absolute:
            tokens = np.concatenate((self.tokens, tokens), axis=1)
            self.tokens = tokens[:, -self.config.context :]
        return self.xp.asarray(logits.reshape(B, T, -1), device="cpu")  # (B, T, V)

    def rotation(self, positions: np.ndarray) -> Array | None:
        """Return e^(i angle) for rotary positions: (B, T) -> (B, 1, T, R/2)."""
        if self.config.rotary_dims == 0:
            return None
        cos, sin = rotary_tables(positions, self.config.rotary_dims)  # 2 x (B, T, R/2)
        rotation = self.weights.to_array(cos) + 1j * self.weights.to_array(sin)
        return rotation[:, None]  # (B, 1, T, R/2)

    def mask(self, T: int) -> Array | None:
        """Return what to add to the scores of the next T tokens, as `make_mask`; None if no key is hidden."""
        if T == 1 and self.start.max() <= self.oldest:
            return None
        keys = np.arange(self.oldest, self.end + T)  # (M,), slots
        distance = keys[-T:, None] - keys  # (T, M)
        in_window = (distance >= 0) & (distance < self.window)  # (T, M)
        filled = keys >= self.start[:, None, None]  # (B, 1, M)
        mask = np.where(in_window & filled, 0.0, -np.inf)  # (B, T, M)
        return self.weights.to_array(mask[:, None])  # (B, 1, T, M)

    def embed(self, tokens: np.ndarray, positions: np.ndarray) -> Array:
        """Return the input of the first block, as `GPT.embed`: 2 x (B, T) -> (N, C)."""
        w = self.weights
        x = w.embedding[tokens]  # (B, T, C)
        if self.config.token_shift:
            joined = self.xp.concatenate((self.embedding, x), 1)  # (B, 1 + T, C)
            self.embedding = joined[:, -1:]  # (B, 1, C)
            x = x + w.state["shift"] * joined[:, :-1]  # (B, T, C)
        if self.config.positions == "learned":
            x = x + w.state["position_embedding.weight"][positions]  # (B, T, C)
        if self.config.positions == "sinusoidal":
            table = sinusoidal_table(positions, self.config.dim)  # (B, T, C)
            x = x + w.to_array(table / self.config.dim**0.5)  # (B, T, C)
        # Of (B, T, C), NumPy would compute a matrix product for each text, with which 32
        # texts take 1.2 times as long.
        return x.reshape(-1, self.config.dim)  # (N, C)

    def attention(
        self, block: Block, x: Array, rotation: Array | None, mask: Array | None, cache: Array
    ) -> Array:
        """Return the output of `Attention` and store keys and values in `cache`: (N, C) -> (N, C)."""
        N, C = x.shape
        H = self.config.heads
        D = C // H
        qkv = block.qkv(x).reshape(len(self.start), -1, 3 * H, D)  # (B, T, 3H, D)
        qkv = qkv.swapaxes(1, 2)  # (B, 3H, T, D)
        qk = qkv[:, : 2 * H]  # (B, 2H, T, D), both in one operation: two take a text 7 % longer
        if self.config.qk_norm:
            qk = self.rms_norm(qk, self.qk_eps)
        if rotation is not None:
            # Neighbouring channels are the real and the imaginary part of a complex number.
            R = 2 * rotation.shape[-1]
            pairs = qk[..., :R].view(rotation.dtype)  # (B, 2H, T, R/2), no copy
            pairs *= rotation
        q = qk[:, :H]  # (B, H, T, D)
        k = qk[:, H:]  # (B, H, T, D)

        keys, values = cache  # 2 x (B, H, slots, D)
        end = self.end + k.shape[2]
        kept = D - D // 2  # channels that key_offset does not move to the next slot
        offset = int(self.config.key_offset)  # slots
        keys[:, :, self.end : end, :kept] = k[..., :kept]
        keys[:, :, self.end + offset : end + offset, kept:] = k[..., kept:]
        values[:, :, self.end : end] = qkv[:, 2 * H :]
        k, v = cache[..., self.oldest : end, :]  # 2 x (B, H, M, D)

        scores = (q * D**-0.5) @ k.swapaxes(2, 3)  # (B, H, T, M)
        if mask is not None:
            scores = scores + mask  # (B, H, T, M)
        if not self.bounded:
            scores = scores - self.xp.amax(scores, -1, keepdims=True)  # (B, H, T, M)
        weights = self.xp.exp(scores)  # (B, H, T, M)
        y = (weights @ v) / weights.sum(-1)[..., None]  # (B, H, T, D)
        y = y.swapaxes(1, 2).reshape(N, C)  # (N, C)
        return block.proj(y)  # (N, C)

    def mlp(self, block: Block, x: Array, cache: Array) -> Array:
        """Return the output of `MLP` and store its last ones before the convolution in `cache`: (N, C) -> (N, C)."""
        N, C = x.shape
        h = block.up(x)  # (N, 4C)
        h = gelu(h) if self.config.activation == "gelu" else h.clip(0) ** 2  # (N, 4C)
        y = block.down(h).reshape(len(self.start), -1, C)  # (B, T, C)
        T = y.shape[1]
        joined = self.xp.concatenate((cache, y), 1)  # (B, K - 1 + T, C)
        cache[:] = joined[:, T:]  # (B, K - 1, C)
        for back, factors in enumerate(block.taps, 1):
            y = y + factors * joined[:, -T - back : -back]  # (B, T, C)
        return y.reshape(N, C)  # (N, C)

    def norm(self, layer: Layer, x: Array) -> Array:
        """Return layer norm or RMS norm with its gain and bias, as `NORMS`: (N, C) -> (N, C)."""
        if self.config.norm == "layernorm":
            x = x - x @ self.average[x.shape[-1]]
        x = self.rms_norm(x, self.norm_eps) * layer.weight
        return x if layer.bias is None else x + layer.bias

    def rms_norm(self, x: Array, eps: Array) -> Array:
        """Return RMS norm without a gain: (..., C) -> (..., C)."""
        mean_square = (x * x) @ self.average[x.shape[-1]]  # (..., 1)
        return x / self.xp.sqrt(mean_square + eps)


def gelu(x: Array) -> Array:
    """Return torch's GELU, because NumPy has no error function: the only activation for which sampling loads torch."""
    import torch

    y = torch.nn.functional.gelu(torch.as_tensor(x))
    return y.numpy() if isinstance(x, np.ndarray) else y
