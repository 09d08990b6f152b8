"""How far each group of weights moves: ||change|| / ||weight||."""

import torch
from torch import Tensor

from gpt.model import GPT
from gpt.sharded_tensors import whole


def group_of(name: str) -> str:
    """The part of the model that a weight belongs to: embedding, attention, mlp, norm or head."""
    layers = name.split(".")
    layer = layers[2] if layers[0] == "blocks" else layers[0]
    return {"shift": "embedding", "position_embedding": "embedding", "norm1": "norm", "norm2": "norm"}.get(layer, layer)


def relative_updates(before: dict[str, Tensor], model: GPT) -> dict[str, float]:
    """How far a step has moved the weights, by their group: ||after - before|| / ||before||.

    Args:
        before: the weights before the step, by name; where they are spread over devices, all must ask.
        model: the model after it.
    """
    weights: dict[str, list[Tensor]] = {}
    moves: dict[str, list[Tensor]] = {}
    for name, parameter in model.named_parameters():
        old = before[name]
        weights.setdefault(group_of(name), []).append(old.float())
        moves.setdefault(group_of(name), []).append((parameter.detach() - old).float())

    def norm(tensors: list[Tensor]) -> Tensor:
        return whole(torch.nn.utils.get_total_norm(tensors))

    ratios = [norm(moves[group]) / norm(weights[group]) for group in weights]
    return dict(zip(weights, torch.stack(ratios).tolist(), strict=True))  # waits for a GPU once
