"""Compute what the plots of a model show: attention, surprisal, histograms."""

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
    """The passage of the validation text that is plotted at each validation.

    Attributes:
        names: each of the V tokens as text.
        attended: (T,) int64, its first tokens, whose attention is plotted; at most a context.
        characters: its N characters, whose surprisal is plotted.
        owners: (M,) int64, for each of its tokens the index of its character.
        windows: evaluation windows whose last M predictions are its tokens.
    """

    names: list[str]
    attended: Tensor
    characters: list[str]
    owners: Tensor
    windows: list[tuple[Tensor, Tensor, Tensor]]


def plots(model: GPT, shown: PicturedText, heads: list[tuple[int, int]], step: int) -> Iterator[dict[str, Any]]:
    """Yield a dict for each plot: `tag`, `step`, and `name` and `arguments` of the function that draws it.

    Args:
        model: the model.
        shown: the passage.
        heads: (layer, head) of each attention plot; empty for up to `NUM_HEADS` across the layers.
        step: optimizer steps so far.
    """

    def plot(tag: str, name: str, **arguments: Any) -> dict[str, Any]:
        return {"tag": tag, "step": step, "name": name, "arguments": {"step": step} | arguments}

    device = model.embedding.weight.device
    maps = attention_maps(model, shown.attended.to(device)).half()  # (layers, heads, T, T)
    names = [shown.names[token] for token in shown.attended.tolist()]
    for layer, head in heads or spread_over(model.config.layers, model.config.heads):
        which, weights = f"L{layer}H{head}", maps[layer, head].clone()  # (T, T)
        yield plot(f"view_attention/{which}", "attention", head=which, characters=names, weights=weights)

    nats = torch.cat([surprisals(*each) for each in predictions(model, shown.windows)])[-len(shown.owners) :]
    bits = torch.zeros(len(shown.characters)).index_add(0, shown.owners, nats.float() / math.log(2))  # (N,)
    yield plot("view/surprisal", "surprisal", characters=shown.characters, bits=bits)


def spread_over(layers: int, heads: int) -> list[tuple[int, int]]:
    """Choose up to `NUM_HEADS` heads, evenly from the first head of the first layer to the last of the last layer."""
    count = min(NUM_HEADS, layers * heads)
    return [divmod(round(index), heads) for index in np.linspace(0, layers * heads - 1, count).tolist()]


@torch.no_grad()
def histograms(model: GPT, passage: Tensor) -> Iterator[tuple[str, Tensor]]:
    """Yield the tag and values of every weight and, for a passage, of the activations of every block and the logits."""
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
        for _ in predictions(model, [(tokens, tokens, torch.ones_like(tokens, dtype=torch.bool))]):
            pass  # the hooks have what is needed
    finally:
        for hook in hooks:
            hook.remove()
    for name, values in seen.items():
        yield f"activations/{'logits' if name == 'head' else name}", values


def choose_shown(text: "Text", context: int) -> PicturedText:
    """Choose a passage of the validation text with many different characters."""
    from data.batches import evaluation_windows
    from data.passages import ATTENDED, lines_to_show

    tokens, tokenizer, begin = text.validation, text.tokenizer, lines_to_show(text)
    passage = tokens[begin : begin + NUM_TOKENS].astype("int64")
    # Bytes that continue a character belong to it, those before the first to the first.
    owners = np.maximum(tokenizer.token_sizes[:, 0][passage].cumsum() - 1, 0)
    around = tokens[max(0, begin - context) : begin + NUM_TOKENS]
    # Each token has at least half a context before it.
    windows = evaluation_windows(around, context, batch=4, stride=max(1, context // 2))
    return PicturedText(
        names=tokenizer.names,
        attended=torch.from_numpy(passage[: min(ATTENDED, context)]),
        characters=[tokenizer.decode(passage[owners == owner]) for owner in range(owners[-1] + 1)],
        owners=torch.from_numpy(owners),
        windows=list(windows),
    )
