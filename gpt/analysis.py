"""What a model has learned, as arrays to plot."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gpt.attention_kernels import make_bias
from gpt.evaluation import exact, surprisals
from gpt.model import GPT, Block
from gpt.position_tables import position_tables


@torch.no_grad()
def attention_maps(model: GPT, tokens: Tensor) -> Tensor:
    """Return every head's attention weights for T tokens, T <= context: (T,) -> (layers, H, T, T) fp32 on the CPU."""
    config = model.config
    with exact(model):
        x = model.embed(tokens[None])  # (1, T, C)
        tables = position_tables(config, len(tokens), x.device)
        positions = torch.arange(len(tokens), device=x.device)  # (T,)
        slopes = tables[0] if config.positions == "alibi" else None
        bias, maps = make_bias(positions, positions, config.window, slopes), []  # (1 or H, T, T)
        for block in model.blocks:
            assert isinstance(block, Block)
            q, k, _ = block.attention.queries_keys_values(block.norm1(x), tables)  # (1, H, T, D)
            scores = (q @ k.mT * q.shape[-1] ** -0.5).float()  # (1, H, T, T)
            maps.append((scores + bias).softmax(-1)[0])  # (H, T, T)
            x = block(x, tables)  # (1, T, C)
    return torch.stack(maps).cpu()  # (layers, H, T, T)


class Costs(NamedTuple):
    """The surprisals of N consecutive tokens or characters of a text, and what the model expected instead.

    Attributes:
        tokens: (M,) int64; M > N where a character has several tokens.
        begins: (N,) int64, the index in `tokens` of the first token of each character.
        nats: (N,) float64, surprisals.
        top: (N, K) int64, the K most likely tokens, the best first.
        probabilities: (N, K) float32 of the tokens in `top`; all 0 for the first token of a text.
    """

    tokens: Tensor
    begins: Tensor
    nats: Tensor
    top: Tensor
    probabilities: Tensor


def costs(predicted: Iterable[tuple[Tensor, Tensor]], first: int, vocabulary: int, k: int) -> Iterator[Costs]:
    """Yield the surprisals of a text's tokens, with the k most likely tokens at each position (all V if k > V).

    `predicted` are the text's `gpt.evaluation.predictions`. Its first token, `first`, costs ln V.
    """
    k = min(k, vocabulary)
    begin, none = torch.zeros(1, dtype=torch.int64), torch.zeros(1, k)
    yield Costs(torch.tensor([first]), begin, torch.tensor([vocabulary]).double().log(), none.long(), none)
    for logits, targets in predicted:
        best = logits.float().softmax(-1).topk(k)
        nats = surprisals(logits, targets)
        yield Costs(targets.cpu(), torch.arange(len(nats)), nats, best.indices.cpu(), best.values.cpu())


def by_character(pieces: Iterable[Costs], starts: Tensor, size: int) -> Iterator[Costs]:
    """Merge the tokens of each character: add up their surprisals, and take the top tokens of the first one.

    `starts`, (V,), says whether a token begins a character; other tokens continue the character before them. Each
    yielded piece has `size` characters, the last one perhaps fewer.
    """
    held: list[Costs] = []
    count = 0
    for piece in pieces:
        held.append(piece)
        count += int(starts[piece.tokens].sum())
        if count <= size:  # a character is known to be whole when the next one has begun
            continue
        columns = _columns(held)
        begins = _begins(columns[0], starts)
        whole = (len(begins) - 1) // size * size
        for first in range(0, whole, size):
            cut = slice(int(begins[first]), int(begins[first + size]))
            yield _characters([column[cut] for column in columns], starts)
        tokens, *others = [column[int(begins[whole]) :] for column in columns]
        held, count = [Costs(tokens, tokens, *others)], int(starts[tokens].sum())
    yield _characters(_columns(held), starts)


def letters(costs: Costs, decode: Callable[[Any], str]) -> str:
    """Decode N characters into N code points; bytes that are not UTF-8 become U+FFFD."""
    text = decode(costs.tokens.numpy())
    if len(text) == len(costs.begins):
        return text
    parts = (decode(part.numpy()) for part in costs.tokens.tensor_split(costs.begins[1:]))
    return "".join(part if len(part) == 1 else "\N{REPLACEMENT CHARACTER}" for part in parts)


def _columns(pieces: list[Costs]) -> list[Tensor]:
    """Concatenate each field of the pieces, except `begins`."""
    tokens, _, *others = (torch.cat(column) for column in zip(*pieces, strict=True))
    return [tokens, *others]


def _begins(tokens: Tensor, starts: Tensor) -> Tensor:
    """Return the indices at which characters begin; index 0 always counts as a beginning."""
    begin = starts[tokens].bool()
    begin[0] = True
    return begin.nonzero()[:, 0]


def _characters(columns: list[Tensor], starts: Tensor) -> Costs:
    tokens, nats, top, probabilities = columns
    begins = _begins(tokens, starts)
    sums = torch.zeros(len(begins), dtype=torch.float64)
    owner = torch.bucketize(torch.arange(len(tokens)), begins, right=True) - 1
    return Costs(tokens, begins, sums.index_add(0, owner, nats), top[begins], probabilities[begins])
