"""Arrays to plot: attention maps, and the surprisal (-ln p, in nats) and most likely tokens of each character."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from gpt.attention import make_mask
from gpt.evaluation import exact, surprisals
from gpt.model import GPT, Block
from gpt.positions import position_tables

NUM_TOP = 5  # number of most likely tokens to keep for each character


@torch.no_grad()
def attention_maps(model: GPT, tokens: Tensor) -> Tensor:
    """Return the weight with which position i attends to j: (T,) int64 -> [layer, head, i, j] fp32, T <= context."""
    config = model.config
    with exact(model):
        tables = position_tables(config, len(tokens), tokens.device)
        x = model.embed(tokens[None], tables)  # (1, T, C)
        positions = torch.arange(len(tokens), device=x.device)  # (T,)
        mask, maps = make_mask(positions, positions, config.window), []  # (T, T)
        for block in model.blocks:
            assert isinstance(block, Block)
            q, k, _ = block.attention.queries_keys_values(block.norm1(x), tables)  # (1, H, T, D)
            scores = (q @ k.mT * q.shape[-1] ** -0.5).float()  # (1, H, T, T)
            maps.append((scores + mask).softmax(-1)[0])  # (H, T, T)
            x = block(x, tables)  # (1, T, C)
    return torch.stack(maps).cpu()  # (layers, H, T, T)


class Surprisals(NamedTuple):
    """The surprisals of N consecutive characters, and the K tokens most likely at the first token of each."""

    tokens: Tensor  # (M,) int64, M > N if a character has several
    begins: Tensor  # (N,) int64, index in `tokens` of each character's first token
    nats: Tensor  # (N,) float64, summed over the tokens of each character
    top: Tensor  # (N, K) int64, the most likely first
    probabilities: Tensor  # (N, K) float32 of `top`; all 0 for the first token of a text, which is not predicted

    @property
    def millinats(self) -> Tensor:
        """`nats` in rounded thousandths of a nat, (N,), clipped so that they fit into uint16."""
        return (self.nats * 1000).round().clamp(max=2**16 - 1)


def _by_token(
    predicted: Iterable[tuple[Tensor, Tensor]], first: int | None, vocabulary: int
) -> Iterator[tuple[Tensor, ...]]:
    """Yield the columns of `Surprisals` without `begins`, with a row for each token, by batch."""
    none = torch.zeros(1, min(NUM_TOP, vocabulary))
    if first is not None:
        yield torch.tensor([first]), torch.tensor([vocabulary]).double().log(), none.long(), none
    for logits, targets in predicted:
        best = logits.float().softmax(-1).topk(none.shape[1])
        yield targets.cpu(), surprisals(logits, targets), best.indices.cpu(), best.values.cpu()


def by_character(
    predicted: Iterable[tuple[Tensor, Tensor]], first: int | None, sizes: np.ndarray, size: int
) -> Iterator[Surprisals]:
    """Yield a `Surprisals` per `size` characters of a text, the last of which has fewer.

    `predicted` comes from `gpt.evaluation.predictions`, in the order of the text; `first` and `sizes`, the tokenizer's
    `token_sizes`, are those of `gpt.evaluation.evaluate`.
    """
    starts, held = torch.from_numpy(sizes[:, 0]), list[Tensor]()  # `starts`: 0 for bytes that continue a character
    for piece in _by_token(predicted, first, len(sizes)):
        held = [torch.cat(pair) for pair in zip(held, piece, strict=True)] if held else list(piece)
        while len(begins := _begins(held[0], starts)) > size:  # the last character may be incomplete
            cut = int(begins[size])
            yield _merged([column[:cut] for column in held], begins[:size])
            held = [column[cut:] for column in held]
    yield _merged(held, _begins(held[0], starts))


def letters(characters: Surprisals, decode: Callable[[Any], str]) -> str:
    """Return exactly N code points, one per character; U+FFFD stands for invalid UTF-8."""
    text = decode(characters.tokens.numpy())
    if len(text) == len(characters.begins):
        return text
    parts = (decode(part.numpy()) for part in characters.tokens.tensor_split(characters.begins[1:]))
    return "".join(part if len(part) == 1 else "\N{REPLACEMENT CHARACTER}" for part in parts)


def _begins(tokens: Tensor, starts: Tensor) -> Tensor:
    begin = starts[tokens].bool()  # (M,)
    begin[0] = True
    return begin.nonzero()[:, 0]  # (N,)


def _merged(columns: list[Tensor], begins: Tensor) -> Surprisals:
    tokens, nats, top, probabilities = columns
    owner = torch.bucketize(torch.arange(len(tokens)), begins, right=True) - 1
    sums = torch.zeros(len(begins), dtype=torch.float64).index_add(0, owner, nats)
    return Surprisals(tokens, begins, sums, top[begins], probabilities[begins])
