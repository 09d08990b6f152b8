"""Arrays to plot: attention maps, and the surprisal (-ln p, in nats) and most likely tokens of each character."""

import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from gpt.attention import make_mask
from gpt.evaluation import Predictions, in_fp32_without_dropout
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


class Surprisals(NamedTuple):
    """N consecutive characters of a text, their surprisals, and the K tokens most likely at the first token of each."""

    text: str  # N code points; U+FFFD stands for invalid UTF-8
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


def by_character(
    predicted: Iterable[Predictions], text: EvaluationText, decode: Callable[[Any], str], size: int
) -> Iterator[Surprisals]:
    """Yield the `Surprisals` of a text, `size` characters at a time, and of the rest at the end.

    Args:
        predicted: from `gpt.evaluation.predictions`, in the order of the text.
        text: the text.
        decode: that of its tokenizer.
        size: number of characters, at least 1.
    """
    vocabulary = len(text.token_sizes)
    num_top = min(NUM_TOP, vocabulary)
    token_dtype = np.dtype([
        ("token", np.int64), ("nats", np.float64),
        ("top", np.int64, (num_top,)), ("probabilities", np.float32, (num_top,)),
    ])  # fmt: skip
    # (V,), false for bytes that continue a character
    starts_character = text.token_sizes[:, 0] > 0
    pending = np.zeros(0, token_dtype)  # the tokens of characters that are not yielded yet
    if text.first_token is not None:
        pending = np.zeros(1, token_dtype)
        pending["token"] = text.first_token
        pending["nats"] = math.log(vocabulary)
    for logits, targets, nats in predicted:
        most_likely = logits.float().softmax(-1).topk(num_top)  # values and indices, (N, K) each
        batch = np.empty(len(targets), token_dtype)
        batch["token"] = targets.cpu().numpy()
        batch["nats"] = nats.numpy()
        batch["top"] = most_likely.indices.cpu().numpy()
        batch["probabilities"] = most_likely.values.cpu().numpy()
        pending = np.concatenate((pending, batch))
        begins = _begins(pending, starts_character)  # (characters,)
        num_pieces = (len(begins) - 1) // size  # the last character may be incomplete
        *pieces, pending = np.split(pending, begins[size : num_pieces * size + 1 : size])
        for piece in pieces:
            yield _merged(piece, starts_character, decode)
    assert len(pending), "the text is empty"
    yield _merged(pending, starts_character, decode)


def _begins(tokens: np.ndarray, starts_character: np.ndarray) -> np.ndarray:
    """Return the index of each character's first token: (M,), (V,) -> (N,)."""
    begins_character = starts_character[tokens["token"]]  # (M,)
    begins_character[0] = True  # a text of bytes may begin inside a character
    return begins_character.nonzero()[0]  # (N,)


def _merged(
    tokens: np.ndarray, starts_character: np.ndarray, decode: Callable[[Any], str]
) -> Surprisals:
    """Return the surprisals of the N characters that M tokens form: (M,), (V,)."""
    begins = _begins(tokens, starts_character)  # (N,)
    text = decode(tokens["token"])
    if len(text) != len(begins):
        text = ""
        for character_tokens in np.split(tokens["token"], begins[1:]):
            character = decode(character_tokens)
            if len(character) != 1:
                character = "\N{REPLACEMENT CHARACTER}"
            text += character
    nats = np.add.reduceat(tokens["nats"], begins)  # (N,)
    first = tokens[begins]  # (N,)
    return Surprisals(text, nats, first["top"], first["probabilities"])
