"""Compute the arrays that are plotted during training: attention and surprisal."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from gpt.analysis import attention_maps
from gpt.evaluation import predictions, surprisals
from gpt.model import GPT

if TYPE_CHECKING:
    from data.text import Text

NUM_HEADS = 4  # heads whose attention is plotted by default
NUM_TOKENS = 320  # tokens of the passage whose surprisal is plotted


@dataclass(frozen=True)
class PicturedText:
    """A passage of the validation text, of M tokens and N characters, that is plotted at each validation."""

    names: list[str]  # the V tokens of the vocabulary as text
    attended: Tensor  # (T,) int64, the first tokens, at most a context: their attention is plotted
    characters: list[str]  # the N characters: their surprisal is plotted
    owners: Tensor  # (M,) int64, the index of the character that each token belongs to
    windows: list[tuple[Tensor, Tensor, Tensor]]  # of the passage and the text before it; its M predictions come last


def plots(model: GPT, passage: PicturedText, heads: list[tuple[int, int]], step: int) -> Iterator[dict[str, Any]]:
    """Yield a dict for each plot: `tag`, `step`, and `name` and `arguments` of a function in reports/pictures.py.

    Args:
        model: the model.
        passage: the passage to plot.
        heads: (layer, head) of each attention plot; if empty, up to `NUM_HEADS` heads across the layers.
        step: optimizer steps so far.
    """

    def plot(tag: str, name: str, **arguments: Any) -> dict[str, Any]:
        return {"tag": tag, "step": step, "name": name, "arguments": {"step": step} | arguments}

    device = model.embedding.weight.device
    maps = attention_maps(model, passage.attended.to(device)).half()  # (layers, heads, T, T)
    names = [passage.names[token] for token in passage.attended.tolist()]
    for layer, head in heads or spread_over(model.config.layers, model.config.heads):
        which, weights = f"L{layer}H{head}", maps[layer, head].clone()  # (T, T)
        yield plot(f"view_attention/{which}", "attention", head=which, characters=names, weights=weights)

    nats = torch.cat([surprisals(*batch) for batch in predictions(model, passage.windows)])[-len(passage.owners) :]
    costs = torch.zeros(len(passage.characters)).index_add(0, passage.owners, nats.float())  # (N,)
    yield plot("view/surprisal", "surprisal", characters=passage.characters, nats=costs)


def spread_over(layers: int, heads: int) -> list[tuple[int, int]]:
    """Choose up to `NUM_HEADS` heads, evenly from the first head of the first layer to the last of the last layer."""
    count = min(NUM_HEADS, layers * heads)
    return [divmod(round(index), heads) for index in np.linspace(0, layers * heads - 1, count).tolist()]


def choose_passage(text: "Text", context: int) -> PicturedText:
    """Choose the passage to plot: part of the validation text with many different characters."""
    from data.batches import evaluation_windows
    from data.passages import ATTENDED, varied_line

    tokens, tokenizer, begin = text.validation, text.tokenizer, varied_line(text)
    passage = tokens[begin : begin + NUM_TOKENS].astype("int64")
    # A byte belongs to the character that began last; bytes before the first whole character belong to the first.
    owners = np.maximum(tokenizer.token_sizes[:, 0][passage].cumsum() - 1, 0)
    around = tokens[max(0, begin - context) : begin + NUM_TOKENS]
    # A stride of half a context gives each token at least half a context before it, if the text has so much.
    windows = evaluation_windows(around, context, batch=4, stride=max(1, context // 2))
    return PicturedText(
        names=tokenizer.names,
        attended=torch.from_numpy(passage[: min(ATTENDED, context)]),
        characters=[tokenizer.decode(passage[owners == owner]) for owner in range(owners[-1] + 1)],
        owners=torch.from_numpy(owners),
        windows=list(windows),
    )
