"""Arrays to plot: attention maps, and the surprisal (-ln p, in nats) and most likely tokens of each character."""

import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from gpt.attention import make_mask
from gpt.evaluation import in_fp32_without_dropout, surprisals
from gpt.model import GPT, Block
from gpt.positions import position_tables
from gpt.windows import EvaluationText

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


class TokenSurprisals(NamedTuple):
    """The surprisals of M consecutive tokens, and the K tokens that were most likely at each."""

    tokens: np.ndarray  # (M,) int64
    nats: np.ndarray  # (M,) float64
    top: np.ndarray  # (M, K) int64, the most likely first
    # (M, K) float32 of `top`; all 0 for the first token of a text, which is not predicted
    probabilities: np.ndarray

    def rows(self, rows: slice) -> "TokenSurprisals":
        """Return some of the tokens with their surprisals."""
        return TokenSurprisals(
            self.tokens[rows], self.nats[rows], self.top[rows], self.probabilities[rows]
        )


class Surprisals(NamedTuple):
    """The surprisals of N consecutive characters, and the K tokens most likely at the first token of each."""

    tokens: np.ndarray  # (M,) int64, M > N if a character has several
    begins: np.ndarray  # (N,) int64, index in `tokens` of each character's first token
    nats: np.ndarray  # (N,) float64, summed over the tokens of each character
    top: np.ndarray  # (N, K) int64, the most likely first
    # (N, K) float32 of `top`; all 0 for the first token of a text, which is not predicted
    probabilities: np.ndarray

    @property
    def millinats(self) -> np.ndarray:
        """`nats` in rounded thousandths of a nat, (N,) uint16, clipped to its range."""
        return (self.nats * 1000).round().clip(max=2**16 - 1).astype(np.uint16)

    def likely(self, names: list[str], digits: int) -> Iterator[list[tuple[str, float]]]:
        """Yield for each character the names and rounded probabilities of its most likely tokens."""
        for top, probabilities in zip(self.top.tolist(), self.probabilities.tolist(), strict=True):
            yield [
                (names[token], round(p, digits))
                for token, p in zip(top, probabilities, strict=True)
                if p > 0  # none for the first token of a text
            ]


def _first_token(text: EvaluationText) -> TokenSurprisals:
    """Return the surprisal ln V of a text's first token; none of a list of documents.

    There a window predicts the first token after an end mark, like the first token of every other
    document.
    """
    vocabulary = len(text.token_sizes)
    top = min(NUM_TOP, vocabulary)
    tokens = [] if text.first_token is None else [text.first_token]
    num_tokens = len(tokens)  # 0 or 1
    return TokenSurprisals(
        tokens=np.array(tokens, np.int64),
        nats=np.full(num_tokens, math.log(vocabulary)),
        top=np.zeros((num_tokens, top), np.int64),
        probabilities=np.zeros((num_tokens, top), np.float32),
    )


def _token_surprisals(logits: Tensor, targets: Tensor) -> TokenSurprisals:
    """Return the surprisals of a batch of targets: (N, V), (N,) -> N tokens."""
    nats = surprisals(logits, targets)  # (N,)
    probabilities = logits.float().softmax(-1)  # (N, V)
    top = probabilities.topk(min(NUM_TOP, logits.shape[-1]))  # values and indices, (N, K) each
    return TokenSurprisals(
        targets.cpu().numpy(), nats.numpy(), top.indices.cpu().numpy(), top.values.cpu().numpy()
    )


def by_character(
    predicted: Iterable[tuple[Tensor, Tensor]], text: EvaluationText, size: int
) -> Iterator[Surprisals]:
    """Yield the `Surprisals` of a text, `size` characters at a time, and of the rest at the end.

    Args:
        predicted: logits (N, V) and targets (N,) from `gpt.evaluation.predictions`, in the order
            of the text.
        text: the text.
        size: number of characters, at least 1.
    """
    # (V,), false for bytes that continue a character
    starts_character = text.token_sizes[:, 0] > 0
    pending = _first_token(text)  # the tokens of characters that are not yielded yet
    for logits, targets in predicted:
        batch = _token_surprisals(logits, targets)
        pending = TokenSurprisals(*map(np.concatenate, zip(pending, batch, strict=True)))
        begins = _begins(pending.tokens, starts_character)  # (characters,)
        while len(begins) > size:  # the last character may be incomplete
            next_begin = int(begins[size])
            yield _merged(pending.rows(slice(next_begin)), begins[:size])
            pending = pending.rows(slice(next_begin, None))
            begins = _begins(pending.tokens, starts_character)  # (characters,)
    assert len(pending.tokens), "the text is empty"
    yield _merged(pending, _begins(pending.tokens, starts_character))


def letters(characters: Surprisals, decode: Callable[[Any], str]) -> str:
    """Return exactly N code points, one per character; U+FFFD stands for invalid UTF-8."""
    text = decode(characters.tokens)
    if len(text) == len(characters.begins):
        return text
    text = ""
    for tokens in np.split(characters.tokens, characters.begins[1:]):  # of one character
        character = decode(tokens)
        if len(character) != 1:
            character = "\N{REPLACEMENT CHARACTER}"
        text += character
    return text


def _begins(tokens: np.ndarray, starts_character: np.ndarray) -> np.ndarray:
    """Return the index of each character's first token: (M,), (V,) -> (N,)."""
    begins_character = starts_character[tokens]  # (M,)
    begins_character[0] = True  # a text of bytes may begin inside a character
    return begins_character.nonzero()[0]  # (N,)


def _merged(tokens: TokenSurprisals, begins: np.ndarray) -> Surprisals:
    """Return the surprisals of the N characters that M tokens form, and whose first tokens are at `begins`."""
    tokens_per_character = np.diff(begins, append=len(tokens.tokens))  # (N,)
    # (M,), which one each token is in
    character = np.repeat(np.arange(len(begins)), tokens_per_character)
    nats = np.bincount(character, tokens.nats, len(begins))  # (N,)
    return Surprisals(
        tokens.tokens, begins, nats, tokens.top[begins], tokens.probabilities[begins]
    )
