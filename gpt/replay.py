"""Sampling on a GPU: one step that draws a token of each text and reads it, recorded once and replayed.

`gpt.decode.Decoder` follows Python's numbers: how many slots are filled, where the next one is. Here the same window
rule, on the same weights, is a piece of work as `gpt.capture.record` wants it. Shapes stay what they are: attention
looks at all slots, and a bias hides those that a place does not see. Where tokens go is known beforehand, so the host
writes it down for a chunk of steps; tokens and logits are fetched once a chunk.

Prompts are read by a `Decoder`, and so is the last half of a full context where positions are absolute.

Shapes: B texts, C = dim, H heads of size D, T = context, S = span, R slots of the cache, V = vocabulary.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from gpt.capture import Recorder, Repeated
from gpt.decode import EPS, Decoder, Linear, Weights

if TYPE_CHECKING:
    from gpt.generate import Drawing

CHUNK = 64  # steps between two looks at the GPU
COLDEST = 1e-290  # temperature below which all but the most likely tokens have no share, and logits no quotient


def stream(
    weights: Weights,
    prompts: Sequence[np.ndarray],
    count: int,
    drawing: "Drawing",
    generators: Sequence[np.random.Generator],
    record: Recorder,
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """`gpt.generate.stream` with steps that `record` records; `generators` are what the texts draw from."""
    texts = Texts(weights, prompts, drawing)
    step = Repeated(texts.step, record)  # held here: a `Texts` that held it would hold itself, and its memory
    for start in range(0, count, CHUNK):
        numbers = np.stack([each.random(min(CHUNK, count - start)) for each in generators], axis=1)  # (n, B)
        yield from zip(*texts.go_on(numbers, step), strict=True)


class Texts:
    """B texts on a device, and the step that they go on by.

    Args:
        weights: of the model, as tensors.
        prompts: B of them, (n,) int64 each, of any lengths, at least 1.
        drawing: how tokens are drawn.
    """

    def __init__(self, weights: Weights, prompts: Sequence[np.ndarray], drawing: "Drawing") -> None:
        """Read the prompts."""
        from gpt.generate import by_length

        config, device, dtype = weights.config, weights.device, weights.embedding.dtype
        B, V, H, D, S = len(prompts), len(weights.embedding), config.heads, config.head_dim, config.span
        self.weights, self.drawing = weights, drawing
        # A key's offset half goes to the slot of the place that comes next, which may not be one that is still seen.
        self.slots = R = S + 8 * config.key_offset

        def zeros(*shape: int, dtype: torch.dtype = dtype) -> Tensor:
            return torch.zeros(shape, dtype=dtype, device=device)

        self.cache = [zeros(2, B, H, R, D) for _ in range(config.layers)]  # keys and values
        self.logits = zeros(B, V)  # of what comes next
        self.before = zeros(B, dtype=torch.int64)  # the last token of each text; V is none
        self.k = zeros(1, dtype=torch.int64)  # number of the step in its chunk, and what a chunk holds:
        self.numbers = zeros(CHUNK, B, dtype=torch.float64)
        self.where = zeros(CHUNK, 4, B, dtype=torch.int64)  # see `_plan`
        self.turns = zeros(CHUNK, B, D // 2, dtype=dtype.to_complex())
        self.drawn = zeros(CHUNK, B, dtype=torch.int64)
        self.drawn_from = zeros(CHUNK, B, V)

        self.gain = zeros(config.dim) + config.dim**-0.5  # `weights` hold the root, see `Decoder._unit`
        self.share = zeros(D) + D**-0.25
        self.each = torch.arange(R, device=device)
        self.strip = weights.numbers(_strip(R, S, weights.slopes))  # (1 or H, 4R - 2)
        frequency = np.zeros(D // 2)  # channels that are not turned are turned by nothing
        frequency[: len(weights.frequency)] = weights.frequency
        self.frequency = torch.from_numpy(frequency).to(device)  # (D / 2,)
        moved = np.arange(D) >= D - D // 2 * config.key_offset
        self.moved = torch.from_numpy(moved & np.array([[True], [False]])).view(2, 1, 1, 1, D).to(device)

        self.place = np.zeros(B, np.int64)  # where the next token of each text goes
        self.text = np.zeros((B, config.context), np.int64)  # the last tokens of each, for absolute positions
        for rows, tokens in by_length(weights, prompts):
            self.logits[self._put(rows)] = self._read(tokens, rows)
        seen = np.zeros((B, V), bool)  # which tokens have occurred in each
        for row, prompt in enumerate(prompts):
            self.text[row, -len(prompt) :] = prompt[-config.context :]
            seen[row, prompt] = True
        self.seen = self._put(seen)

    @contextmanager
    def _here(self) -> Iterator[None]:
        """On the device of the texts; and whatever order its threads take, a step gives the same."""
        mode = torch.get_deterministic_debug_mode()
        torch.set_deterministic_debug_mode("default")  # which cumsum refuses to be otherwise
        try:
            with torch.cuda.device_of(self.k):
                yield
        finally:
            torch.set_deterministic_debug_mode(mode)

    def go_on(self, numbers: np.ndarray, step: Callable[[], None]) -> tuple[np.ndarray, np.ndarray]:
        """Go on by n tokens, at most a chunk: `step` does what `self.step` does.

        Args:
            numbers: (n, B) float64 in [0, 1), what is drawn with.
            step: see above.

        Returns:
            tokens (n, B) int64 and the logits (n, B, V) float64 that they were drawn from.
        """
        config, n, done = self.weights.config, len(numbers), 0
        self.numbers[:n] = torch.from_numpy(numbers)
        self.k.zero_()
        while done < n:
            steps = n - done
            if config.absolute:
                self._make_room()
                steps = min(steps, config.context - int(self.place.max()))
            self._plan(done, steps)
            with self._here():
                for _ in range(steps):
                    step()
            self.place += steps
            if config.absolute:
                new = self.drawn[done : done + steps].cpu().numpy()  # (steps, B)
                self.text = np.concatenate((self.text, new.T), axis=1)[:, steps:]
            done += steps
        tokens, logits = (made[:n].to("cpu", copy=True) for made in (self.drawn, self.drawn_from))
        return tokens.numpy(), logits.double().numpy()

    def _plan(self, start: int, steps: int) -> None:
        """Write down for the steps that come: slots of a token and of the one after it, where on the strip, places."""
        places, R = self.place + np.arange(steps)[:, None], self.slots  # (steps, B)
        on_strip = np.where(places < R, R - 1 - places, 3 * R - 2 - places % R)
        where = np.stack((places % R, (places + 1) % R, on_strip, places), axis=1)  # (steps, 4, B)
        self.where[start : start + steps] = self._put(where)
        if self.weights.config.positions == "rotary":
            angles = self._put(places)[..., None] * self.frequency  # (steps, B, D / 2) float64
            self.turns[start : start + steps] = torch.polar(torch.ones_like(angles), angles)

    def _make_room(self) -> None:
        """The window rule of absolute positions, see `Decoder._make_room`."""
        T = self.weights.config.context
        full = np.flatnonzero(self.place == T)
        if len(full) and T > 1:
            self._read(self.text[full, T - T // 2 :], full)
        elif len(full):
            self.place[full] = 0
            self.before[self._put(full)] = len(self.weights.embedding)

    def _read(self, tokens: np.ndarray, rows: np.ndarray) -> Tensor:
        """Begin rows anew with tokens, (rows, n): the logits of what follows, (rows, V)."""
        decoder, R = Decoder(self.weights, len(rows)), self.slots
        logits = decoder.read(tokens)[:, -1]
        place = int(decoder.place[0])
        held = np.arange(max(0, place - self.weights.config.span), place)
        row, old, new = map(self._put, (rows, held % self.weights.config.span, held % R))
        for i, (keys, values) in enumerate(self.cache):
            keys[row[:, None], :, new] = decoder.keys[i][:, :, old].transpose(1, 2)  # (rows, held, H, D)
            values[row[:, None], :, new] = decoder.values[i][:, :, old].transpose(1, 2)  # (rows, held, H, D)
            if decoder.offset:
                keys[row, :, place % R, decoder.own :] = decoder.moved[i]
        self.place[rows] = place
        self.before[row] = self._put(tokens[:, -1])
        return torch.from_numpy(logits).to(self.logits)

    def _put(self, values: np.ndarray) -> Tensor:
        """Beside the texts; 64-bit numbers stay what they are."""
        return torch.from_numpy(np.ascontiguousarray(values)).to(self.k.device)

    def step(self) -> None:
        """Draw a token of each text and read it: work to be recorded, see `gpt.capture.record`."""
        w, config = self.weights, self.weights.config
        B, H, D, R = len(self.logits), config.heads, config.head_dim, self.slots
        tokens = draw(self.logits, self.drawing, self.numbers.index_select(0, self.k)[0], self.seen)
        self.drawn.index_copy_(0, self.k, tokens[None])
        self.drawn_from.index_copy_(0, self.k, self.logits[None])
        if self.drawing.repetition_penalty != 1:
            self.seen.scatter_(1, tokens[:, None], True)

        slot, following, on_strip, place = self.where.index_select(0, self.k)[0]  # 4 x (B,)
        x = w.embedding.index_select(0, tokens)  # (B, C)
        if config.token_shift:
            x += w.shifted.index_select(0, self.before)
            self.before.copy_(tokens)
        if config.absolute:
            x += w.positions.index_select(0, place)
        bias = self.strip[:, on_strip[:, None] + self.each].transpose(0, 1)  # (B, 1 or H, R)
        if config.positions == "rotary":
            turn = self.turns.index_select(0, self.k)[0][:, None]  # (B, 1, D / 2)
        goes = slot.view(1, B, 1, 1, 1)  # (1, B, 1, 1, 1)
        if config.key_offset:
            goes = torch.where(self.moved, following.view(1, B, 1, 1, 1), goes)  # (2, B, 1, 1, D)
        goes = goes.expand(2, B, H, 1, D)

        for layer, cache in zip(w.layers, self.cache, strict=True):
            weight = layer.qkv.weight.view(-1, 3, H * D).transpose(0, 1)  # (3, C, H * D)
            qkv = torch.bmm(self._norm(x).expand(3, -1, -1), weight)  # (3, B, H * D)
            if layer.qkv.bias is not None:
                qkv += layer.qkv.bias.view(3, 1, H * D)
            qkv = qkv.view(3, B, H, D)
            qk = qkv[:2]
            if config.qk_norm:
                qk = F.rms_norm(qk, (D,), self.share, float(torch.finfo(x.dtype).eps))
            if config.positions == "rotary":
                torch.mul(qk.view(turn.dtype), turn, out=qkv[:2].view(turn.dtype))
            elif config.qk_norm:
                qkv[:2] = qk
            cache.scatter_(3, goes, qkv[1:].unsqueeze(3))
            keys, values = cache.view(2, B * H, R, D)
            scores = torch.bmm(qkv[0].view(B * H, 1, D), keys.transpose(1, 2)).view(B, H, R)
            shares = scores.add_(bias).softmax(-1).view(B * H, 1, R)
            onto_stream(x, layer.proj, torch.bmm(shares, values).view(B, H * D))
            h = layer.up(self._norm(x))
            onto_stream(x, layer.down, F.relu(h).square_() if config.activation == "relu2" else F.gelu(h))
        self.logits.copy_(w.head(self._norm(x)))
        self.k += 1

    def _norm(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, x.shape[-1:], self.gain, EPS)


def onto_stream(x: Tensor, linear: Linear, y: Tensor) -> None:
    """Add what a layer makes of `y` to `x`, (B, C)."""
    x.addmm_(y, linear.weight)
    if linear.bias is not None:
        x += linear.bias


def _strip(R: int, S: int, slopes: Tensor | None) -> np.ndarray:
    """Biases of slots, by where they are from a token's slot on: (1 or H, 4R - 2).

    The R that a token's slots need are a stretch of them. First those where places from 0 on are in their slots: of
    place p, slot 0 is at R - 1 - p. Then those where the ring is full: slot 0 is at 3R - 2 - p % R.
    """
    beyond = np.arange(1 - R, R)
    distance = np.concatenate((-beyond, -beyond % R))  # of a place to what is in a slot; below 0, nothing is
    seen = (distance >= 0) & (distance < S)
    fall = np.zeros((1, 1)) if slopes is None else slopes[:, :, 0].double().cpu().numpy()
    return np.where(seen, -fall * np.where(seen, distance, 0), -np.inf)


def draw(logits: Tensor, drawing: "Drawing", numbers: Tensor, seen: Tensor) -> Tensor:
    """What `gpt.generate.probabilities` and `draw` do: (B, V), (B,) float64, (B, V) bool -> (B,) int64."""
    logits = logits.double()
    if drawing.repetition_penalty != 1:
        less = torch.where(logits > 0, logits * (1 / drawing.repetition_penalty), logits * drawing.repetition_penalty)
        logits = torch.where(seen, less, logits)
    if drawing.temperature == 0:
        return logits.argmax(-1)
    logits = logits / max(drawing.temperature, COLDEST)
    if drawing.top_k is not None or drawing.top_p < 1:
        ranked, order = logits.sort(dim=-1, descending=True, stable=True)
        if drawing.top_k is not None:
            ranked[:, drawing.top_k :] = -torch.inf
        if drawing.top_p < 1:
            full = ranked.softmax(-1).cumsum(-1)[:, :-1] >= drawing.top_p
            ranked[:, 1:].masked_fill_(full, -torch.inf)
        logits = torch.empty_like(logits).scatter_(-1, order, ranked)
    if drawing.min_p > 0:
        logits = logits.masked_fill(logits - logits.amax(-1, keepdim=True) < float(np.log(drawing.min_p)), -torch.inf)
    total = logits.softmax(-1).cumsum(-1)  # (B, V)
    return (total <= numbers[:, None] * total[:, -1:]).sum(-1)
