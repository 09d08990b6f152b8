"""What a model has learned, as plain arrays to draw."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gpt.attention import make_bias
from gpt.evaluation import surprisals
from gpt.model import GPT, Block

BINS = 10  # of confidence


class Calibration(NamedTuple):
    """How often the most likely token came, by how likely the model thought it.

    Source: Guo et al., On Calibration of Modern Neural Networks, arXiv:1706.04599, equations 1 to 3.

    Attributes:
        counts: (BINS,) int64, predictions in each bin: bin m holds confidences above m / BINS, up to (m + 1) / BINS.
        confidence: (BINS,) float64, their mean; 0 where there is none.
        accuracy: (BINS,) float64, the share of them that were right; 0 where there is none.
        error: the expected calibration error: the mean distance of the two, weighted by the counts.
    """

    counts: Tensor
    confidence: Tensor
    accuracy: Tensor
    error: float


def calibration_totals(logits: Tensor, targets: Tensor) -> Tensor:
    """Sum, in each bin of confidence, the predictions, their confidence and those that were right.

    Args:
        logits: (N, V).
        targets: (N,) int64.

    Returns:
        (3, BINS) float64 on the CPU, which add up over batches.
    """
    confidence, guess = logits.float().softmax(-1).max(-1)  # (N,)
    values = torch.stack((torch.ones_like(confidence), confidence, guess == targets)).cpu().double()  # (3, N)
    bins = ((confidence * BINS).ceil().long() - 1).clamp(min=0).cpu()  # (N,)
    return torch.zeros(3, BINS, dtype=torch.float64).index_add(1, bins, values)


def calibration(totals: Tensor) -> Calibration:
    """Turn (3, BINS) totals into a `Calibration`."""
    counts, confidence, right = totals  # (BINS,)
    least = counts.clamp(min=1)
    error = float((right - confidence).abs().sum() / counts.sum().clamp(min=1))
    return Calibration(counts.long(), confidence / least, right / least, error)


@torch.no_grad()
def attention_maps(model: GPT, tokens: Tensor) -> Tensor:
    """What each place of a passage looks at, in every head.

    Args:
        model: the model; its mode does not matter, nothing is dropped.
        tokens: (T,) int64, at most a context of them.

    Returns:
        (layers, heads, T, T) float32 on the CPU: row t adds up to 1 over the columns 0 to t.
    """
    training, config = model.training, model.config
    model.eval()
    try:
        with torch.autocast(tokens.device.type, enabled=False):
            x, tables = model.embed(tokens[None]), model.position_tables(len(tokens))  # (1, T, C)
            places, slopes = (
                torch.arange(len(tokens), device=x.device),
                tables[0] if config.positions == "alibi" else None,
            )
            bias, maps = make_bias(places, places, config.window, slopes), []  # (1 or H, T, T)
            for block in model.blocks:
                assert isinstance(block, Block)
                q, k, _ = block.attention.queries_keys_values(block.norm1(x), tables)  # (1, H, T, D)
                scores = (q @ k.mT * q.shape[-1] ** -0.5).float()  # (1, H, T, T)
                maps.append((scores + bias).softmax(-1)[0])  # (H, T, T)
                x = block(x, tables)  # (1, T, C)
    finally:
        model.train(training)
    return torch.stack(maps).cpu()  # (layers, H, T, T)


class Costs(NamedTuple):
    """N consecutive tokens or characters of a text.

    Attributes:
        tokens: (M,) int64; M = N where each has one token.
        begins: (N,) int64, where in `tokens` each begins.
        nats: (N,) float64, the surprisal of each.
        likely: (N, K) int64, the K most likely tokens in its place, the best first.
        chances: (N, K) float32, their probabilities; all 0 for the first token of a text, which nothing comes before.
    """

    tokens: Tensor
    begins: Tensor
    nats: Tensor
    likely: Tensor
    chances: Tensor


def costs(predicted: Iterable[tuple[Tensor, Tensor]], first: int, vocabulary: int, likely: int) -> Iterator[Costs]:
    """What each token of a text costs.

    Args:
        predicted: logits (N, V) and targets (N,), in the order of the text; see `gpt.evaluation.predictions`.
        first: the text's first token, which costs ln V.
        vocabulary: V.
        likely: how many of the most likely tokens to name; at most V are.
    """
    likely = min(likely, vocabulary)
    begin, none = torch.zeros(1, dtype=torch.int64), torch.zeros(1, likely)
    yield Costs(torch.tensor([first]), begin, torch.tensor([vocabulary]).double().log(), none.long(), none)
    for logits, targets in predicted:
        best = logits.float().softmax(-1).topk(likely)
        nats = surprisals(logits, targets)
        yield Costs(targets.cpu(), torch.arange(len(nats)), nats, best.indices.cpu(), best.values.cpu())


def by_character(pieces: Iterable[Costs], starts: Tensor, size: int) -> Iterator[Costs]:
    """Put the tokens of each character together: it costs their sum, and what is likely is said of the first.

    Args:
        pieces: what the tokens of a text cost, in its order.
        starts: (V,) whether a token begins a character; others belong to the one before them.
        size: characters in each piece; the last has fewer.
    """
    held: list[Costs] = []
    count = 0
    for piece in pieces:
        held.append(piece)
        count += int(starts[piece.tokens].sum())
        if count <= size:  # one more must have begun to know that the last one is whole
            continue
        tokens, nats, likely, chances = _joined(held)
        begins = _begins(tokens, starts)
        whole = (len(begins) - 1) // size * size
        for place in range(0, whole, size):
            cut = slice(int(begins[place]), int(begins[place + size]))
            yield _characters(tokens[cut], nats[cut], likely[cut], chances[cut], starts)
        rest = slice(int(begins[whole]), None)
        held = [Costs(tokens[rest], tokens[:0], nats[rest], likely[rest], chances[rest])]
        count = int(starts[held[0].tokens].sum())
    yield _characters(*_joined(held), starts)


def letters(costs: Costs, decode: Callable[[Any], str]) -> str:
    """The characters themselves: one code point for each, U+FFFD for bytes that are none.

    Args:
        costs: of N characters.
        decode: tokens to text.
    """
    text = decode(costs.tokens.numpy())
    if len(text) == len(costs.begins):
        return text
    parts = (decode(part.numpy()) for part in costs.tokens.tensor_split(costs.begins[1:]))
    return "".join(part if len(part) == 1 else "\N{REPLACEMENT CHARACTER}" for part in parts)


def _joined(pieces: list[Costs]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    tokens, _, nats, likely, chances = (torch.cat(column) for column in zip(*pieces, strict=True))
    return tokens, nats, likely, chances


def _begins(tokens: Tensor, starts: Tensor) -> Tensor:
    """Where characters begin; the first token begins one even if it is the rest of one."""
    begin = starts[tokens].bool()
    begin[0] = True
    return begin.nonzero()[:, 0]


def _characters(tokens: Tensor, nats: Tensor, likely: Tensor, chances: Tensor, starts: Tensor) -> Costs:
    begins = _begins(tokens, starts)
    sums = torch.zeros(len(begins), dtype=torch.float64)
    owner = torch.bucketize(torch.arange(len(tokens)), begins, right=True) - 1
    return Costs(tokens, begins, sums.index_add(0, owner, nats), likely[begins], chances[begins])
