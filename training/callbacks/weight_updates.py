"""Measure how far a step moves each group of weights."""

import torch
from torch import Tensor
from torch.nn.utils import get_total_norm

from gpt.model import GPT
from training.sharding import whole


def group_of(name: str) -> str:
    """Return the group of a weight: embedding, attention, mlp, norm or head."""
    layers = name.split(".")
    layer = layers[2] if layers[0] == "blocks" else layers[0]
    return {"shift": "embedding", "position_embedding": "embedding", "norm1": "norm", "norm2": "norm"}.get(layer, layer)


def relative_updates(before: dict[str, Tensor], model: GPT) -> dict[str, float]:
    """Return ||after - before|| / ||before|| by group; if the weights are sharded, all ranks must call this."""
    weights: dict[str, list[Tensor]] = {}
    moves: dict[str, list[Tensor]] = {}
    for name, parameter in model.named_parameters():
        old = before[name]
        weights.setdefault(group_of(name), []).append(old.float())
        moves.setdefault(group_of(name), []).append((parameter.detach() - old).float())

    ratios = [whole(get_total_norm(moves[group])) / whole(get_total_norm(weights[group])) for group in weights]
    return dict(zip(weights, torch.stack(ratios).tolist(), strict=True))  # a single GPU synchronization
