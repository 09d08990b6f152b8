"""Compute the arrays that are plotted during training: attention, surprisal, histograms."""

import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from gpt.analysis import attention_maps
from gpt.evaluation import predictions, surprisals
from gpt.model import GPT

if TYPE_CHECKING:
    from data.text import Text

NUM_HEADS = 4  # heads whose attention is plotted by default
NUM_TOKENS = 320  # tokens of the passage whose surprisal is plotted


@dataclass(frozen=True)
class PicturedText:
    """A passage of the validation text, of M tokens and N characters, that is plotted at each validation.

    Attributes:
        names: the V tokens of the vocabulary as text.
        attended: (T,) int64, the first tokens of the passage, at most a context; their attention is plotted.
        characters: the N characters of the passage; their surprisal is plotted.
        owners: (M,) int64, the index of the character that each token of the passage belongs to.
        windows: evaluation windows of the passage and the text before it; the last M predictions are the passage's.
    """

    names: list[str]
    attended: Tensor
    characters: list[str]
    owners: Tensor
    windows: list[tuple[Tensor, Tensor, Tensor]]


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
    bits = torch.zeros(len(passage.characters)).index_add(0, passage.owners, nats.float() / math.log(2))  # (N,)
    yield plot("view/surprisal", "surprisal", characters=passage.characters, bits=bits)


def spread_over(layers: int, heads: int) -> list[tuple[int, int]]:
    """Choose up to `NUM_HEADS` heads, evenly from the first head of the first layer to the last of the last layer."""
    count = min(NUM_HEADS, layers * heads)
    return [divmod(round(index), heads) for index in np.linspace(0, layers * heads - 1, count).tolist()]


@torch.no_grad()
def histograms(model: GPT, passage: Tensor) -> Iterator[tuple[str, Tensor]]:
    """Yield tag and values: of every weight, of every block's activations for a passage (T,), and of its logits."""
    for name, weight in model.named_parameters():
        yield f"weights/{name}", weight.detach().float().cpu()
    seen: dict[str, Tensor] = {}

    def keep(name: str) -> Callable[[nn.Module, Any, Tensor], None]:
        return lambda module, given, made: seen.update({name: made.float().cpu()})

    parts = re.compile(r"blocks\.\d+(\.attention|\.mlp)?|head")
    watched = {name: module for name, module in model.named_modules() if parts.fullmatch(name)}
    hooks = [module.register_forward_hook(keep(name)) for name, module in watched.items()]
    try:
        tokens = passage[None]  # (1, T)
        # Only the hooks' activations are used: the targets, here the tokens themselves, do not matter.
        list(predictions(model, [(tokens, tokens, torch.ones_like(tokens, dtype=torch.bool))]))
    finally:
        for hook in hooks:
            hook.remove()
    for name, values in seen.items():
        yield f"activations/{'logits' if name == 'head' else name}", values


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
