"""Start from another model's weights: a longer context, new characters."""

from dataclasses import replace

import torch
from torch import Tensor

from gpt.model import GPT


def with_context(model: GPT, context: int) -> GPT:
    """The same weights for windows of another length, also a longer one than they were trained with.

    Within the shorter of both, logits stay the same. What lies beyond has never been trained on: positions decide what
    comes of it.

    Raises:
        ValueError: learned positions, of which there are no more.
    """
    if model.config.positions == "learned" and context > model.config.context:
        raise ValueError(f"must be at most {model.config.context}, the places that the model has learned")
    other = GPT(replace(model.config, context=context), model.vocabulary).to(model.head.weight)
    init_from(other, model, torch.arange(model.vocabulary, device=model.head.weight.device))
    return other


@torch.no_grad()
def init_from(model: GPT, trained: GPT, places: Tensor) -> None:
    """Start from the weights of a trained model, whose tokens are some of this one's.

    In a text of tokens that it knows, their logits are what the trained model gives. The rows of a new token in
    embedding and head are the means of the trained rows: its logit is the mean of theirs, so that n new tokens beside
    V trained ones add at most ln(1 + n / V) nats to the loss of such a text.
    Source: Hewitt, Initializing New Word Embeddings for Pretrained Language Models (2021).

    Args:
        model: of the same shape, but for its vocabulary, its dropout and its context; learned positions may be fewer.
        trained: the trained model.
        places: (V,) int64: the token of `model` that each of the V tokens of `trained` is.
    """
    weights = trained.state_dict()
    for name, weight in model.state_dict().items():
        if name in ("embedding.weight", "head.weight"):
            weight[:] = weights[name].mean(0)
            weight[places] = weights[name]
        else:
            weight[:] = weights[name][: len(weight)]  # the first of the learned positions, all of what else there is
