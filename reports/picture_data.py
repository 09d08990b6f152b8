"""What pictures show of a model, as arrays: attention, cost of characters, calibration, histograms."""

import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from gpt.analysis import attention_maps, calibration
from gpt.evaluation import predictions, surprisals
from gpt.model import GPT

if TYPE_CHECKING:
    from data.text import Text

HEADS_DRAWN = 4


@dataclass(frozen=True)
class Shown:
    """What of the validation text is looked at, the same at each validation.

    Attributes:
        names: each of the V tokens as text.
        passage: (T,) int64, of which attention is drawn; at most a context of them.
        characters: the N characters of a longer passage, of which it is drawn what they cost.
        owners: (M,) int64, which of them each of its tokens is a part of.
        windows: that count each of these tokens, last.
    """

    names: list[str]
    passage: Tensor
    characters: list[str]
    owners: Tensor
    windows: list[tuple[Tensor, Tensor, Tensor]]


def learned(
    model: GPT, totals: Tensor, shown: Shown, heads: list[tuple[int, int]], step: int
) -> Iterator[dict[str, Any]]:
    """What is to be drawn of a model, each with its `tag` and `step`, and what `reports.pictures` needs to draw it.

    Args:
        model: the model.
        totals: of its calibration, see `gpt.analysis`.
        shown: what of the text is looked at.
        heads: layer and head of those whose attention is drawn; none are up to `HEADS_DRAWN` across all.
        step: steps taken.
    """

    def picture(tag: str, name: str, **arguments: Any) -> dict[str, Any]:
        return {"tag": tag, "step": step, "name": name, "arguments": {"step": step} | arguments}

    device = model.embedding.weight.device
    maps = attention_maps(model, shown.passage.to(device)).half()  # (layers, heads, T, T)
    names = [shown.names[token] for token in shown.passage.tolist()]
    for layer, head in heads or spread_over(model.config.layers, model.config.heads):
        name = f"L{layer}H{head}"
        yield picture(
            f"view_attention/{name}", "attention", head=name, characters=names, weights=maps[layer, head].clone()
        )

    nats = torch.cat([surprisals(*each) for each in predictions(model, shown.windows)])[-len(shown.owners) :]
    bits = torch.zeros(len(shown.characters)).index_add(0, shown.owners, nats.float() / math.log(2))  # (N,)
    yield picture("view/surprisal", "surprisal", characters=shown.characters, bits=bits)

    yield picture("view/calibration", "calibration", **calibration(totals)._asdict())


def spread_over(layers: int, heads: int) -> list[tuple[int, int]]:
    """Up to `HEADS_DRAWN` heads, evenly from the first of the first layer to the last of the last."""
    count = min(HEADS_DRAWN, layers * heads)
    return [divmod(round(index), heads) for index in np.linspace(0, layers * heads - 1, count).tolist()]


@torch.no_grad()
def histograms(model: GPT, passage: Tensor) -> Iterator[tuple[str, Tensor]]:
    """Every weight, and what comes out of every block and its two parts, and at the end, where a passage goes in.

    Yields:
        tags and values, of any shape.
    """
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
            pass
    finally:
        for hook in hooks:
            hook.remove()
    for name, values in seen.items():
        yield f"activations/{'logits' if name == 'head' else name}", values


COLOURED = 320  # tokens of the passage whose cost is drawn


def what_is_shown(text: "Text", context: int) -> "Shown":
    """Choose what pictures look at: lines of the validation text with many different characters, and what there is."""
    import numpy as np
    import torch

    from data.batches import evaluation_windows
    from data.passages import ATTENDED, lines_to_show

    tokens, tokenizer, begin = text.validation, text.tokenizer, lines_to_show(text)
    passage = tokens[begin : begin + COLOURED].astype("int64")
    owners = np.maximum(tokenizer.token_sizes[:, 0][passage].cumsum() - 1, 0)
    windows = evaluation_windows(
        tokens[max(0, begin - context) : begin + COLOURED], context, 4, stride=max(1, context // 2)
    )
    return Shown(
        names=tokenizer.names,
        passage=torch.from_numpy(passage[: min(ATTENDED, context)]),
        characters=[tokenizer.decode(passage[owners == owner]) for owner in range(owners[-1] + 1)],
        owners=torch.from_numpy(owners),
        windows=list(windows),
    )
