"""Arrays to plot: attention maps, and the surprisal (-ln p, in nats) and most likely tokens of each character."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from gpt.attention import make_mask
from gpt.evaluation import in_fp32_without_dropout, surprisals
from gpt.model import GPT, Block
from gpt.positions import position_tables

NUM_TOP = 5  # number of most likely tokens to keep for each character


@torch.no_grad()
def attention_maps(model: GPT, tokens: Tensor) -> Tensor:
    """Return the weight with which position i attends to j: (T,) int64 -> [layer, head, i, j] fp32, T <= context."""
    config = model.config
    maps: list[Tensor] = []  # of each layer, (H, T, T)
    with in_fp32_without_dropout(model):
        tables = position_tables(config, len(tokens), tokens.device)
        x = model.embed(tokens[None], tables)  # (1, T, C)
        positions = torch.arange(len(tokens), device=x.device)  # (T,)
        mask = make_mask(positions, positions, config.window)  # (T, T)
        for block in model.blocks:
            assert isinstance(block, Block)
            q, k, _ = block.attention.queries_keys_values(block.norm1(x), tables)  # (1, H, T, D)
            scores = (q @ k.mT * q.shape[-1] ** -0.5).float()  # (1, H, T, T)
            weights = (scores + mask).softmax(-1)  # (1, H, T, T)
            maps.append(weights[0])
            x = block(x, tables)  # (1, T, C)
    return torch.stack(maps).cpu()  # (layers, H, T, T)


def spread_over(layers: int, heads: int, most: int) -> list[tuple[int, int]]:
    """Return up to `most` pairs (layer, head), evenly spaced among all heads; each layer has `heads`."""
    chosen = np.linspace(0, layers * heads - 1, min(most, layers * heads))
    return [divmod(round(index), heads) for index in chosen.tolist()]


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
    predicted: Iterable[tuple[Tensor, Tensor]], first_token: int | None, vocabulary: int
) -> Iterator[tuple[Tensor, ...]]:
    """Yield the columns of `Surprisals` without `begins`, with a row for each token, by batch."""
    top = min(NUM_TOP, vocabulary)
    if first_token is not None:  # not predicted, so its probability is 1 / V
        tokens = torch.tensor([first_token])  # (1,)
        nats = torch.tensor([vocabulary]).double().log()  # (1,)
        zeros = torch.zeros(1, top)  # (1, K)
        yield tokens, nats, zeros.long(), zeros
    for logits, targets in predicted:  # (N, V), (N,)
        best = logits.float().softmax(-1).topk(top)  # values and indices, (N, K) each
        yield targets.cpu(), surprisals(logits, targets), best.indices.cpu(), best.values.cpu()


def by_character(
    predicted: Iterable[tuple[Tensor, Tensor]], first_token: int | None, sizes: np.ndarray, size: int
) -> Iterator[Surprisals]:
    """Yield the `Surprisals` of a text, `size` characters at a time, and of the rest at the end.

    Args:
        predicted: logits (N, V) and targets (N,) from `gpt.evaluation.predictions`, in the order of the text.
        first_token: as for `gpt.evaluation.evaluate`.
        sizes: the tokenizer's `token_sizes`, (V, 2).
        size: number of characters, at least 1.
    """
    starts = torch.from_numpy(sizes[:, 0])  # (V,), 0 for bytes that continue a character
    pending: list[Tensor] = []  # columns of the tokens that are not yet yielded, (M, ...) each
    for batch in _by_token(predicted, first_token, len(sizes)):
        if pending:
            pending = [torch.cat(pair) for pair in zip(pending, batch, strict=True)]
        else:
            pending = list(batch)
        begins = _begins(pending[0], starts)  # (characters,)
        while len(begins) > size:  # the last character may be incomplete
            cut = int(begins[size])
            yield _merged([column[:cut] for column in pending], begins[:size])
            pending = [column[cut:] for column in pending]
            begins = _begins(pending[0], starts)  # (characters,)
    yield _merged(pending, _begins(pending[0], starts))


def letters(characters: Surprisals, decode: Callable[[Any], str]) -> str:
    """Return exactly N code points, one per character; U+FFFD stands for invalid UTF-8."""
    text = decode(characters.tokens.numpy())
    if len(text) == len(characters.begins):
        return text
    text = ""
    for tokens in characters.tokens.tensor_split(characters.begins[1:]):  # of one character
        character = decode(tokens.numpy())
        text += character if len(character) == 1 else "\N{REPLACEMENT CHARACTER}"
    return text


def _begins(tokens: Tensor, starts: Tensor) -> Tensor:
    """Return the index of each character's first token: (M,), (V,) -> (N,)."""
    begins_character = starts[tokens].bool()  # (M,)
    begins_character[0] = True
    return begins_character.nonzero()[:, 0]  # (N,)


def _merged(columns: list[Tensor], begins: Tensor) -> Surprisals:
    """Return the `Surprisals` of N characters from M rows of `_by_token` and the `begins` of the characters."""
    tokens, nats, top, probabilities = columns
    index = torch.arange(len(tokens))  # (M,)
    character = torch.bucketize(index, begins, right=True) - 1  # (M,), which one each token is in
    sums = torch.zeros(len(begins), dtype=torch.float64).index_add(0, character, nats)  # (N,)
    return Surprisals(tokens, begins, sums, top[begins], probabilities[begins])
