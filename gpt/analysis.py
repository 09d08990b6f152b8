"""Arrays to plot: attention maps, and the surprisal and the most likely tokens of each character.

The surprisal of a token is -ln of the probability that the model assigns to the token, in nats.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gpt.attention_kernels import make_mask
from gpt.evaluation import exact, surprisals
from gpt.model import GPT, Block
from gpt.positions import position_tables

NUM_TOP = 5  # number of most likely tokens to keep for each character


@torch.no_grad()
def attention_maps(model: GPT, tokens: Tensor) -> Tensor:
    """Return the attention weights of every head for one text: (T,) int64 -> (layers, H, T, T) fp32 on the CPU.

    Entry [l, h, i, j] is the weight with which position i attends to position j. T must be at most `context`.
    """
    config = model.config
    with exact(model):
        x = model.embed(tokens[None])  # (1, T, C)
        tables = position_tables(config, len(tokens), x.device)
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
    """The surprisals of N consecutive characters of a text, and the tokens that the model considered most likely.

    Attributes:
        tokens: the tokens of the characters, (M,) int64, with M > N if a character consists of several tokens.
        begins: index in `tokens` of the first token of each character, (N,) int64.
        nats: surprisal of each character in nats, summed over its tokens, (N,) float64.
        top: the K tokens that were most likely at the first token of each character, the most likely first, (N, K)
            int64.
        probabilities: the probabilities of the tokens in `top`, (N, K) float32. For the first token of a text, which is
            not predicted, they are all 0.
    """

    tokens: Tensor
    begins: Tensor
    nats: Tensor
    top: Tensor
    probabilities: Tensor

    @property
    def millinats(self) -> Tensor:
        """`nats` in thousandths of a nat, (N,), rounded, and clipped to 65,535 so that the values fit into uint16."""
        return (self.nats * 1000).round().clamp(max=2**16 - 1)


def token_surprisals(
    predicted: Iterable[tuple[Tensor, Tensor]], first: int, vocabulary: int, k: int
) -> Iterator[tuple[Tensor, ...]]:
    """Yield the surprisals of a text's tokens and the K most likely tokens at each position, one batch at a time.

    Args:
        predicted: batches of logits (N, V) and targets (N,), which together cover all tokens but the first, as
            `gpt.evaluation.predictions` yields them.
        first: the first token of the text. Its surprisal is ln V, because no text precedes it.
        vocabulary: the number of tokens in the vocabulary, V.
        k: how many of the most likely tokens to yield. K is the smaller of k and V.

    Yields:
        For each batch a tuple of four tensors: the tokens (N,), their surprisals in nats (N,), the K most likely tokens
        at each position (N, K), the most likely first, and the probabilities of these K tokens (N, K). The first batch
        is the first token alone, with zeros as its most likely tokens and their probabilities.
    """
    none = torch.zeros(1, min(k, vocabulary))
    yield torch.tensor([first]), torch.tensor([vocabulary]).double().log(), none.long(), none
    for logits, targets in predicted:
        best = logits.float().softmax(-1).topk(none.shape[1])
        yield targets.cpu(), surprisals(logits, targets), best.indices.cpu(), best.values.cpu()


def by_character(pieces: Iterable[tuple[Tensor, ...]], starts: Tensor, size: int) -> Iterator[Surprisals]:
    """Merge the surprisals of tokens into surprisals of characters, and yield one `Surprisals` per `size` characters.

    The surprisal of a character is the sum over its tokens. Its most likely tokens are the ones predicted at its first
    token. The last `Surprisals` may have fewer characters.

    Args:
        pieces: batches of tokens with their surprisals, as `token_surprisals` yields them.
        starts: (V,), nonzero for each token that begins a character, and 0 for each token that continues a character.
        size: the number of characters in each `Surprisals`.
    """
    held: list[Tensor] = []
    for piece in pieces:
        held = [torch.cat(pair) for pair in zip(held, piece, strict=True)] if held else list(piece)
        while len(begins := _begins(held[0], starts)) > size:  # the last character may be incomplete
            cut = int(begins[size])
            yield _merged([column[:cut] for column in held], begins[:size])
            held = [column[cut:] for column in held]
    yield _merged(held, _begins(held[0], starts))


def letters(characters: Surprisals, decode: Callable[[Any], str]) -> str:
    """Return the N characters whose surprisals are in `characters`, as a string of exactly N code points.

    `decode` converts tokens to text, like the method `decode` of a tokenizer. If the bytes of a character are not valid
    UTF-8, U+FFFD represents the character.
    """
    text = decode(characters.tokens.numpy())
    if len(text) == len(characters.begins):
        return text
    parts = (decode(part.numpy()) for part in characters.tokens.tensor_split(characters.begins[1:]))
    return "".join(part if len(part) == 1 else "\N{REPLACEMENT CHARACTER}" for part in parts)


def _begins(tokens: Tensor, starts: Tensor) -> Tensor:
    """Return the indices in `tokens`, (M,), at which a character begins: (N,) int64. Index 0 is always included.

    `starts`, (V,), is nonzero for each token of the vocabulary that begins a character.
    """
    begin = starts[tokens].bool()
    begin[0] = True
    return begin.nonzero()[:, 0]


def _merged(columns: list[Tensor], begins: Tensor) -> Surprisals:
    tokens, nats, top, probabilities = columns
    owner = torch.bucketize(torch.arange(len(tokens)), begins, right=True) - 1
    sums = torch.zeros(len(begins), dtype=torch.float64).index_add(0, owner, nats)
    return Surprisals(tokens, begins, sums, top[begins], probabilities[begins])
