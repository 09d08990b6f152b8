"""Arrays to plot: attention maps, and the surprisal and the most likely tokens of each character."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gpt.attention_kernels import make_bias
from gpt.evaluation import exact, surprisals
from gpt.model import GPT, Block
from gpt.positions import position_tables, slopes_in

NUM_TOP = 5  # number of most likely tokens to keep for each character


@torch.no_grad()
def attention_maps(model: GPT, tokens: Tensor) -> Tensor:
    """Return every head's attention weights for T tokens, T <= context: (T,) -> (layers, H, T, T) fp32 on the CPU."""
    config = model.config
    with exact(model):
        x = model.embed(tokens[None])  # (1, T, C)
        tables = position_tables(config, len(tokens), x.device)
        positions = torch.arange(len(tokens), device=x.device)  # (T,)
        bias, maps = make_bias(positions, positions, config.window, slopes_in(tables, config)), []  # (1 or H, T, T)
        for block in model.blocks:
            assert isinstance(block, Block)
            q, k, _ = block.attention.queries_keys_values(block.norm1(x), tables)  # (1, H, T, D)
            scores = (q @ k.mT * q.shape[-1] ** -0.5).float()  # (1, H, T, T)
            maps.append((scores + bias).softmax(-1)[0])  # (H, T, T)
            x = block(x, tables)  # (1, T, C)
    return torch.stack(maps).cpu()  # (layers, H, T, T)


class Surprisals(NamedTuple):
    """The surprisals of N consecutive characters of a text, and what the model expected instead.

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

    @property
    def millinats(self) -> Tensor:
        """The surprisals in thousandths of a nat, as pages store them: whole numbers that fit into uint16."""
        return (self.nats * 1000).round().clamp(max=2**16 - 1)


def token_surprisals(
    predicted: Iterable[tuple[Tensor, Tensor]], first: int, vocabulary: int, k: int
) -> Iterator[tuple[Tensor, ...]]:
    """Yield the surprisals of a text's tokens, and the k most likely tokens at each position (all V if k > V).

    Args:
        predicted: the logits and targets of all tokens but the first, from `gpt.evaluation.predictions`.
        first: the first token of the text, whose surprisal is ln V.
        vocabulary: the number of tokens in the vocabulary, V.
        k: how many of the most likely tokens to yield.

    Yields:
        For each batch of N tokens: the tokens (N,), their surprisals in nats (N,), the most likely tokens (N, k), the
        best first, and the probabilities of these (N, k).
    """
    none = torch.zeros(1, min(k, vocabulary))
    yield torch.tensor([first]), torch.tensor([vocabulary]).double().log(), none.long(), none
    for logits, targets in predicted:
        best = logits.float().softmax(-1).topk(none.shape[1])
        yield targets.cpu(), surprisals(logits, targets), best.indices.cpu(), best.values.cpu()


def by_character(pieces: Iterable[tuple[Tensor, ...]], starts: Tensor, size: int) -> Iterator[Surprisals]:
    """Yield the surprisals of `size` characters at a time, the last time perhaps fewer.

    The surprisal of a character is the sum over its tokens. Its most likely tokens are those for its first token.

    Args:
        pieces: what `token_surprisals` yields.
        starts: (V,), nonzero for tokens that begin a character; other tokens continue the character before them.
        size: the number of characters to yield at a time.
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
    """Return N characters as a string of exactly N code points; a character that is not valid UTF-8 becomes U+FFFD."""
    text = decode(characters.tokens.numpy())
    if len(text) == len(characters.begins):
        return text
    parts = (decode(part.numpy()) for part in characters.tokens.tensor_split(characters.begins[1:]))
    return "".join(part if len(part) == 1 else "\N{REPLACEMENT CHARACTER}" for part in parts)


def _begins(tokens: Tensor, starts: Tensor) -> Tensor:
    """Return the indices in `tokens`, (M,), at which a character begins: (N,) int64. Index 0 is always among them."""
    begin = starts[tokens].bool()
    begin[0] = True
    return begin.nonzero()[:, 0]


def _merged(columns: list[Tensor], begins: Tensor) -> Surprisals:
    tokens, nats, top, probabilities = columns
    owner = torch.bucketize(torch.arange(len(tokens)), begins, right=True) - 1
    sums = torch.zeros(len(begins), dtype=torch.float64).index_add(0, owner, nats)
    return Surprisals(tokens, begins, sums, top[begins], probabilities[begins])
